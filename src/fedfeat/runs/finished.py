"""Finished runs, read from their directories and put together over seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from fedfeat.runs.directory import experiment_config
from fedfeat.runs.figures import read_metrics
from fedfeat.runs.text import flatten

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Run:
    """A finished run as its directory tells it; `setting` is what fixes its numbers, but the seed."""

    path: Path
    summary: dict[str, Any]
    setting: dict[str, Any]
    published: dict[str, float]
    metrics: pd.DataFrame


def find_runs(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Read all finished runs below `folders`; give them and a line for everything that is skipped."""
    runs: dict[str, Run] = {}
    skipped, seen = [], set[Path]()
    for folder in folders:
        places = {path.parent for name in ("metrics.csv", "summary.json") for path in folder.rglob(name)}
        if not places:
            skipped.append(f"{folder}: skipped, no run in it.")
        for place in sorted(place for place in places if place.resolve() not in seen):
            seen.add(place.resolve())
            try:
                run = read_run(place)
            except FileNotFoundError as error:
                skipped.append(f"{place}: skipped, not finished ({Path(error.filename).name} is missing).")
            except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
                skipped.append(f"{place}: skipped, unreadable ({str(error).splitlines()[0]}).")
            else:
                # A repetition has the same numbers; counted twice it would make the spread look smaller.
                first = runs.setdefault(_identity({**run.setting, "seed": run.summary["seed"]}), run)
                if first is not run:
                    skipped.append(f"{place}: skipped, same setting and seed as {first.path}.")
    return list(runs.values()), skipped


def read_run(path: Path) -> Run:
    """Read a run directory."""
    summary = json.loads((path / "summary.json").read_text())
    if not isinstance(summary, dict) or not {"seed", "final"} <= summary.keys():
        raise ValueError("summary.json must hold seed and final")
    config = yaml.safe_load((path / "config.yaml").read_text()) or {}
    setting = {
        key: value
        for key, value in flatten(experiment_config(config), ".").items()
        # The run directory arrives in several keys, by interpolation.
        if key != "seed" and not (isinstance(value, str) and "/" in value and path.name in Path(value).parts)
    }
    return Run(path, summary, setting, published_numbers(config), read_metrics(path / "metrics.csv"))


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


def measured_numbers(run: Run) -> dict[str, Any]:
    """Give what a run measured, by quantity: metrics of the last round, costs of targets as ``to_target/...``.

    Beside those, ``last10/<metric>`` where a paper published it: the mean over the last 10 evaluated rounds, what
    docs/methods.md takes for the accuracy at convergence. It is absent where one of them lacks the metric.
    """
    final, costs = run.summary.get("final", {}), run.summary.get("to_target") or {}
    measured = flatten({**final, "to_target": costs})
    for quantity in run.published:
        last = run.metrics.get(quantity.removeprefix("last10/"), np.zeros(0))[-10:]
        if quantity.startswith("last10/") and np.isfinite(last).sum() == 10:
            measured[quantity] = float(last.mean())
    return measured


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Put runs of one setting together, under the shortest label that tells the settings apart."""
    # A key that follows `seed` in every run is the seed by another name; one that stays fixed is a choice.
    keys = {key for run in runs for key in run.setting if key.endswith("seed")}
    fixed = {
        key
        for key in keys
        for run in runs
        if run.setting.get(key, run.summary["seed"]) != run.summary["seed"]
    }
    settings, groups = dict[str, dict[str, Any]](), dict[str, list[Run]]()
    for run in sorted(runs, key=lambda run: run.summary["seed"]):
        setting = {key: value for key, value in run.setting.items() if key not in keys - fixed}
        settings.setdefault(_identity(setting), setting)
        groups.setdefault(_identity(setting), []).append(run)
    labels = label_settings(list(settings.values()))
    if len(groups) == 1:
        labels = [str(runs[0].summary.get("algorithm") or runs[0].path.name)]
    return dict(zip(labels, groups.values(), strict=True))


def label_settings(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Name each of different settings by as few keys as tell them all apart, e.g. ``partition.alpha=0.5``.

    Of equally many keys those called ``name`` win, and such a one alone needs only its value, e.g. ``fedavg``; then
    short ones. A setting without a key leaves it out.
    """
    keys = {key for setting in settings for key in setting}
    keys = {key for key in keys if len({_value(setting, key) for setting in settings}) > 1}
    ranked = sorted(keys, key=lambda key: (not key.endswith(".name"), "_target_" in key, len(key), key))

    def tells_apart(chosen: Sequence[str]) -> bool:
        return len({tuple(_value(setting, key) for key in chosen) for setting in settings}) == len(settings)

    # Searching more than three keys would take long where many differ; then all that differ are written.
    sizes = (chosen for size in (1, 2, 3) for chosen in combinations(ranked, size))
    best = next(filter(tells_apart, sizes), tuple(ranked))
    if len(best) == 1 and best[0].endswith(".name"):
        return [str(setting.get(best[0], "default")) for setting in settings]
    return [
        ", ".join(f"{key}={setting[key]}" for key in best if key in setting)
        or (f"algorithm.name={setting['algorithm.name']}" if "algorithm.name" in setting else "default")
        for setting in settings
    ]


def _value(setting: dict[str, Any], key: str) -> str | None:
    return str(setting[key]) if key in setting else None


def _identity(setting: dict[str, Any]) -> str:
    return json.dumps({key: str(value) for key, value in setting.items()}, sort_keys=True)
