"""A study in a folder: what is searched, and which trial comes next."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfeat.config.spaces import Interval, Space
from fedfeat.errors import ConfigError
from fedfeat.runs.directory import fixes_numbers, key_of
from fedfeat.seeding import derive_seed

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner

STUDY = "study.sqlite3"
_ASKED = "asked"


@dataclass(frozen=True)
class Asked:
    """What a search searches.

    Attributes:
        words: Overrides of every run.
        space: What is tried, by key.
        seed: Of the proposals; those of a trial depend on it, its number and the trials before.
        startup: Trials that end before any is cut short.
        warmup: Rounds after which a trial may be cut short.
    """

    words: tuple[str, ...]
    space: Space
    seed: int = 0
    startup: int = 5
    warmup: int = 0

    def record(self) -> dict[str, Any]:
        """Give what has to be the same when a search goes on."""
        tried = {key: str(one) for key, one in self.space.items()}
        words = sorted(word for word in self.words if fixes_numbers(key_of(word)))
        return {"words": words, "space": tried, "seed": self.seed}


def opened(folder: Path, asked: Asked) -> Study:
    """Open the study of a folder, or begin one.

    Raises:
        ConfigError: It is one of other words or of another space.
    """
    import optuna
    from sqlalchemy import URL

    quiet()
    folder.mkdir(parents=True, exist_ok=True)
    # Put together by its library, for a folder's name may hold signs that addresses have a use for.
    address = URL.create("sqlite", database=str((folder / STUDY).absolute())).render_as_string()
    study = optuna.create_study(
        storage=address,
        study_name="fedfeat",
        direction="maximize",
        load_if_exists=True,
        pruner=_pruner(asked),
    )
    record = asked.record()
    before = study.user_attrs.get(_ASKED, record)
    for key, value in record.items():
        if before[key] != value:
            rule = f"be a new folder, or one of the same {key} ({json.dumps(before[key])})"
            raise ConfigError(f"--out must {rule}, but {folder} is asked for {json.dumps(value)}.")
    study.set_user_attr(_ASKED, record)
    return study


def rehearsed(folder: Path, asked: Asked) -> Study:
    """Give a copy of a folder's study, or a new one, that nothing is written of."""
    import optuna

    quiet()
    study = optuna.create_study(direction="maximize", pruner=_pruner(asked))
    if (folder / STUDY).exists():
        study.add_trials(opened(folder, asked).get_trials())
    return study


def propose(study: Study, asked: Asked) -> int:
    """Add a trial to a study; the same one whether or not the search was interrupted before it."""
    import optuna

    number = len(study.get_trials(deepcopy=False))
    # Randomness with an address: a generator that lives on would begin again after an interruption.
    seed = derive_seed(asked.seed, "trial", number) % 2**32
    study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    return study.ask(distributions(asked.space)).number


def quiet() -> None:
    """Have Optuna say nothing by itself."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)


def words_of(space: Space, params: Mapping[str, Any]) -> list[str]:
    """Give the overrides of a trial's values."""
    return [space[key].word(key, params[key]) for key in space]


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Give a space in Optuna's words."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, BaseDistribution] = {}
    for key, one in space.items():
        if not isinstance(one, Interval):
            found[key] = CategoricalDistribution(one.texts)
        elif one.whole:
            found[key] = IntDistribution(int(one.low), int(one.high), log=one.log)
        else:
            found[key] = FloatDistribution(one.low, one.high, log=one.log)
    return found


def _pruner(asked: Asked) -> BasePruner:
    import optuna

    return optuna.pruners.MedianPruner(n_startup_trials=asked.startup, n_warmup_steps=asked.warmup)
