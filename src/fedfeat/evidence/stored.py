"""Ended runs of campaigns: where they lie, whether they are what is asked for, and the small files that are kept."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fedfeat.config.search_path import overrides
from fedfeat.errors import ConfigError
from fedfeat.files import atomic_write_bytes, atomic_write_json, atomic_write_text, read_yaml
from fedfeat.runs.directory import (
    DATA,
    FAILURE,
    experiment_config,
    fingerprint_of,
    fixes_numbers,
    key_of,
    sets_place,
    sets_sweep,
    without_passwords,
)
from fedfeat.runs.divergence import has_diverged
from fedfeat.runs.tables import METRICS, rows_so_far

KEPT = (METRICS, "summary.json")
"""Files of a run that are kept as they are, beside its configuration and overrides."""
THEN = "then"
"""Folder of what followed a run: its tables are kept too."""


def campaigns_root() -> Path:
    """Give the folder of all campaigns' runs: ``FEDFEAT_CAMPAIGNS``, else one in the user's data."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(os.environ.get("FEDFEAT_CAMPAIGNS") or Path(data) / "fedfeat" / "campaigns")


def is_finished(place: Path) -> bool:
    """Whether a folder holds a finished run."""
    return (place / "summary.json").exists() and (place / "config.yaml").exists()


def has_ended(place: Path) -> bool:
    """Whether nothing is left to do of a run: it is finished, or has diverged and would do so again."""
    return is_finished(place) or has_diverged(place)


def made_with(place: Path) -> list[str]:
    """Give the overrides of a run.

    Args:
        place: Its folder, of a run directory or of what `keep` wrote.

    Raises:
        ConfigError: There are none.
    """
    for path in (place / ".hydra" / "overrides.yaml", place / "overrides.yaml"):
        with suppress(OSError, ValueError, yaml.YAMLError):
            found = read_yaml(path)
            if isinstance(found, list) and all(isinstance(word, str) for word in found):
                return found
    raise ConfigError(f"{place} must hold overrides.yaml with a list of words, but it does not.")


def check_neutral(words: Iterable[str], key: str = "--with") -> None:
    """Refuse what is no override of where and how fast runs are made.

    Args:
        words: What is to be added to runs.
        key: Where it was given.

    Raises:
        ConfigError: One of them can change a number, or sets nothing.
    """
    for word in words:
        if "=" not in word or fixes_numbers(key_of(word)):
            raise ConfigError.rule(key, "be an override that changes no number, such as executor=ray", word)
        if sets_place(word):
            raise ConfigError.rule(key, "leave the folders of runs as they are", word)
        if sets_sweep(word):
            raise ConfigError.rule(key, "leave out sweeps, for each run is one by itself", word)


def check_words(place: Path, words: Sequence[str]) -> None:
    """Refuse an ended run that was made with other overrides than are asked for.

    Args:
        place: Its folder, of a run directory or of what `keep` wrote.
        words: The overrides.

    Raises:
        ConfigError: An override which fixes numbers is another.
    """
    made, asked = (_fixing(without_passwords(list(some))) for some in (made_with(place), words))
    meanings = {word: _meaning(word) for word in made ^ asked}
    times = Counter(meanings.values())
    differing = sorted(word for word, meaning in meanings.items() if times[meaning] == 1)
    if differing:
        had, has = (" ".join(one for one in differing if one in those) for those in (made, asked))
        rule = "hold the run that the campaign asks for (an altered study is a new one, under a new name)"
        said = f"was made with {had or 'no such word'}, where the campaign has {has or 'no such word'}"
        raise ConfigError(f"{place} must {rule}, but it {said}.")


def keep(run_dir: Path, place: Path, words: Sequence[str], further: Sequence[str] = ()) -> None:
    """Copy what documents quote of an ended run; nothing of it names a folder of this machine.

    Args:
        run_dir: The run.
        place: Where its small files go.
        words: The campaign's overrides, without which the configuration cannot be composed again.
        further: Files that are kept beside those of every run.

    Raises:
        ConfigError: The run has none of one of them.
    """
    diverged = has_diverged(run_dir)
    missing = [name for name in further if not (run_dir / name).is_file()]
    if missing and not diverged:
        raise ConfigError(f"keeps must name files of the run, but {run_dir} has no {missing[0]}.")
    config = read_yaml(run_dir / "config.yaml")
    kept = {**experiment_config(config), "name": config["name"], "group": config["group"]}
    kept |= {"published": config["published"]} if config.get("published") else {}
    atomic_write_text(place / "config.yaml", yaml.safe_dump(kept, sort_keys=False))
    atomic_write_text(
        place / "overrides.yaml", yaml.safe_dump(without_passwords([*words]), sort_keys=False, width=1000)
    )
    if digests := fingerprint_of(run_dir):
        atomic_write_json(place / DATA, {"fingerprint": digests}, indent=None)
    followed = [f"{THEN}/{path.name}" for path in sorted((run_dir / THEN).glob("*.csv"))]
    # What says that a run has ended comes last: with it a run is there.
    names = (METRICS, FAILURE) if diverged else (*further, *followed, *KEPT)
    for name in names:
        atomic_write_bytes(place / name, (run_dir / name).read_bytes())


@cache
def federation(place: Path) -> Mapping[str, Any]:
    """Give the section of that name of the configuration of a run that has begun; read once, as `seconds`."""
    found: dict[str, Any] = read_yaml(place / "config.yaml")["federation"]
    return found


@cache
def seconds(place: Path) -> float:
    """Give how long a run took that is finished or has diverged; read once, for a display asks every second."""
    if has_diverged(place):
        return sum(float(row["time/total_s"]) for row in rows_so_far(place / METRICS)[-1:])
    return float(json.loads((place / "summary.json").read_text())["seconds"])


def _fixing(words: Iterable[str]) -> set[str]:
    """Give the words that fix numbers; of a key's several the last one counts."""
    return {*{key_of(word): word for word in words if fixes_numbers(key_of(word))}.values()}


def _meaning(word: str) -> str:
    """Give an override as it is parsed: Hydra's launchers write ``x=1e-9`` as ``x=1e-09``, ``x=true`` as ``x=True``."""
    override = next(overrides([word]), None)
    return f"{override.get_key_element()}={override.value()!r}" if override else word
