"""Finished runs, read from their directories."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedfeat.errors import UserError
from fedfeat.files import read_yaml
from fedfeat.runs.below import holders
from fedfeat.runs.directory import FAILURE, experiment_config, fingerprint_of, key_of
from fedfeat.runs.divergence import has_diverged
from fedfeat.runs.metrics_table import last_value, read_metrics, with_divergence
from fedfeat.runs.tables import METRICS, REPAIRED
from fedfeat.runs.text import flatten, written
from fedfeat.runs.told_apart import parts_by_examples
from fedfeat.runs.weight_files import noted

if TYPE_CHECKING:
    import pandas as pd

_UNREADABLE = (OSError, ValueError, AttributeError, LookupError, TypeError, yaml.YAMLError)


@dataclass(frozen=True)
class Run:
    """A finished run as its directory tells it.

    Attributes:
        path: Its directory.
        summary: What ``summary.json`` holds.
        setting: What fixes its numbers, but the seed: keys of the configuration.
        published: A paper's numbers for it, by quantity.
        metrics: ``metrics.csv``.
        choices: Option that was taken in each group of the configuration; empty where the directory does not say.
        written: Keys that were given on the command line, or by a sweep.
        data: What tells its data set from others of that name: shape of an input, classes, and the folder where these
            do not tell.
        data_root: Where it looked for its data.
        examples: Digest of its examples; empty where the directory does not say.
        diverged: Whether a client's update that was not finite has ended it, so that it measured nothing.
    """

    path: Path
    summary: dict[str, Any]
    setting: dict[str, Any]
    published: dict[str, float]
    metrics: pd.DataFrame
    choices: dict[str, str] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    data: str = ""
    data_root: str = ""
    examples: str = ""
    diverged: bool = False

    @cached_property
    def last_values(self) -> dict[str, float | None]:
        """Last number of every metric, see `last_value`."""
        names = [name for name in self.metrics if name not in ("round", "cohort_size", REPAIRED)]
        return {name: last_value(self.metrics, name) for name in names}


def find_runs(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Read all runs below `folders` that have finished or diverged; give them and a line for all that is skipped."""
    runs, skipped, seen = list[Run](), list[str](), set[Path]()
    for folder in folders:
        places = holders(folder, "metrics.csv", "summary.json")
        if not places:
            skipped.append(f"{folder}: skipped, no run in it.")
        for place in places:
            if (real := place.resolve()) in seen:
                continue
            seen.add(real)
            try:
                runs.append(read_diverged(place) if has_diverged(place) else read_run(place))
            except FileNotFoundError as error:
                skipped.append(f"{place}: skipped, {_unfinished(place, error)}.")
            except (*_UNREADABLE, UserError) as error:
                skipped.append(
                    f"{place}: skipped, unreadable ({(str(error).splitlines() or ['no message'])[0]})."
                )
    kept, repeated = _without_repetitions(runs)
    return kept, skipped + repeated


def finished_runs(folders: Sequence[Path]) -> list[Run]:
    """Read them as `find_runs`, with a line on stderr for each folder that is skipped.

    Raises:
        UserError: There is none.
    """
    runs, skipped = find_runs(folders)
    for line in skipped:
        print(line, file=sys.stderr)
    if not runs:
        where = ", ".join(map(str, folders))
        raise UserError(f"DIR must hold at least one finished run, but there is none in {where}.")
    return runs


def _unfinished(place: Path, error: FileNotFoundError) -> str:
    with suppress(OSError):
        return f"ended by: {(place / FAILURE).read_text().strip().removesuffix('.')}"
    return f"not finished ({Path(error.filename).name} is missing)"


def _without_repetitions(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Keep one run of each setting and seed: a second has the same numbers, and would make the spread look smaller."""
    # A directory of before there was data.json is taken to have the data that others have under that name.
    known = {run.setting.get("data.name"): run.data for run in reversed(runs) if run.data}
    named = [replace(run, data=run.data or known.get(run.setting.get("data.name"), "")) for run in runs]
    kept, repeated = dict[str, Run](), []
    for run in apart_by_examples(named):
        first = kept.setdefault(identity(run.setting, str(run.summary["seed"]), run.data), run)
        if first is not run:
            repeated.append(f"{run.path}: skipped, same setting and seed as {first.path}.")
    return list(kept.values()), repeated


def apart_by_examples(runs: Sequence[Run]) -> list[Run]:
    """Add folder and digest to the data of runs of which others had other examples, see `told_apart`."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(but_seeds(run), []).append(run)
    suffixes: dict[int, str] = {}
    for parts in map(parts_by_examples, groups.values()):
        if len(parts) > 1:
            suffixes |= {id(run): f"{part[0].data_root} {part[0].examples}" for part in parts for run in part}
    return [replace(run, data=run.data + suffixes.get(id(run), "")) for run in runs]


def but_seeds(run: Run) -> str:
    """Give a text that runs share which differ in nothing but keys that are, or may follow, the seed."""
    return identity({key: value for key, value in run.setting.items() if not key.endswith("seed")}, run.data)


def read_run(path: Path) -> Run:
    """Read a run directory."""
    summary = json.loads((path / "summary.json").read_text())
    if not isinstance(summary, dict) or not isinstance(summary.get("final"), dict) or "seed" not in summary:
        raise ValueError("summary.json must hold seed and final")
    metrics = read_metrics(path / METRICS)
    if "round" not in metrics:
        raise ValueError(f"{METRICS} must have the column round")
    return _run(path, summary, _config(path), metrics)


def read_diverged(path: Path) -> Run:
    """Read the directory of a run that has diverged (`runs.divergence.has_diverged`)."""
    config = _config(path)
    summary = {"seed": config["seed"], "algorithm": config["algorithm"]["name"], "final": {}}
    metrics = with_divergence(read_metrics(path / METRICS))
    return replace(_run(path, summary, config, metrics), diverged=True)


def _config(path: Path) -> dict[str, Any]:
    return read_yaml(path / "config.yaml") or {}


def _run(path: Path, summary: dict[str, Any], config: dict[str, Any], metrics: pd.DataFrame) -> Run:
    runtime = _runtime(path)
    # Keys of one's own may hold the run directory, by interpolation: where it was when the run began, or is.
    places = {str(path.resolve()), str(runtime.get("output_dir") or path.resolve())}
    setting = {
        key: value
        for key, value in flatten(experiment_config(config), ".").items()
        if key != "seed" and not _lies_in(value, places)
    }
    # A file of weights is what it holds: another may lie at its path by now, or it may have been moved.
    setting |= {
        key: f"{Path(str(setting.get(key))).name} {digest[:7]}" for key, digest in noted(path).items()
    }
    read = summary, setting, published_numbers(config), metrics
    root = str((config.get("data") or {}).get("root", ""))
    examples = next(iter(fingerprint_of(path)), "")
    choices = runtime.get("choices")
    options = choices.items() if isinstance(choices, Mapping) else ()
    chosen = {str(group): str(option) for group, option in options if option is not None}
    return Run(path, *read, chosen, _written(path), _data(path), root, examples)


def _lies_in(value: Any, places: Iterable[str]) -> bool:
    return isinstance(value, str) and any(value == one or value.startswith(f"{one}/") for one in places)


def _runtime(path: Path) -> Mapping[str, Any]:
    """Give what Hydra has kept of where a run was made and of which options; nothing where it has not."""
    try:
        kept = read_yaml(path / ".hydra" / "hydra.yaml")["hydra"]["runtime"]
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError):
        return {}
    return kept if isinstance(kept, Mapping) else {}


def _written(path: Path) -> frozenset[str]:
    """Give the keys of the overrides that a run was started with, as far as its directory has them."""
    try:
        words = read_yaml(path / ".hydra" / "overrides.yaml")
        return frozenset(key_of(str(word)) for word in words or ())
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        return frozenset()


def _data(path: Path) -> str:
    try:
        facts = json.loads((path / "data.json").read_text())
        return json.dumps([facts["input_shape"], facts["classes"]])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def published_numbers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Give what a paper published for a configuration, by quantity.

    ``published`` holds a number per quantity or, where the paper has one per setting, nested choices: ``by`` names
    keys of the configuration, and their values, one after the other, lead to the number, for example
    ``{by: [algorithm.name, partition.alpha], fedavg: 0.8, fed2: {0.1: 0.7, 0.5: 0.9}}``. A setting that is not among
    them has none.
    """
    values = flatten(config, ".")
    chosen = {quantity: _choose(node, values) for quantity, node in (config.get("published") or {}).items()}
    return {key: value for key, value in flatten(chosen, "/").items() if value is not None}


def _choose(node: Any, values: Mapping[str, Any]) -> Any:
    if not isinstance(node, Mapping) or "by" not in node:
        return node
    for key in node["by"]:
        if not isinstance(node, Mapping):
            break  # the paper's number does not depend on the keys that are left
        options = {str(option): child for option, child in node.items()}
        node = options.get(str(values.get(key)))
    return None if isinstance(node, Mapping) else node


def identity(setting: Mapping[str, Any], *more: str) -> str:
    """Give a text that two settings share only if they are one, and so is what else is given."""
    return json.dumps([{key: written(value) for key, value in setting.items()}, *more], sort_keys=True)
