"""What a page shows beside the table, read from the runs' files: curves, splits, clients, alignment.

Each part has a bound, so that the page of hundreds of runs is not larger than a few megabytes; what a bound has left
out is said in a sentence.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedfeat.commands.report_figures import AXES
from fedfeat.commands.report_gathered import Gathered
from fedfeat.commands.report_rows import MAIN_METRICS, chosen, known_names
from fedfeat.errors import CheckpointError
from fedfeat.runs.data_facts import FILE
from fedfeat.runs.finished import Run
from fedfeat.runs.metrics_table import mean_and_std
from fedfeat.runs.text import written

MOST_POINTS = 300
"""Rounds of a curve."""
MOST_SPLITS = 12
MOST_MAPS = 12
MOST_ROWS = 100
"""Clients of a split or an alignment map."""
MOST_DOTS = 6000
"""Clients of all distributions together."""
_NO_CLASS_BYTE = 255
"""A neuron without a class, in a byte."""
_MORE_CURVES = ("global/loss", "train/loss", "align/agreement", "align/distance")
_OF_CLIENTS = {"personal": "personal_acc", "local_pre_agg": "local_acc", "final_all": "final_acc"}


class Facts(NamedTuple):
    """What a run's data.json says of its data.

    Attributes:
        name: Name of the data set.
        classes: Names of the classes.
        counts: Training examples by client and class.
        fingerprint: Digests of examples and split.
    """

    name: str = ""
    classes: Sequence[str] = ()
    counts: Sequence[Sequence[int]] = ()
    fingerprint: Sequence[str] = ()


def curves(found: Gathered) -> dict[str, Any]:
    """Give mean and spread of metrics over the rounds, and the mean of every axis, by setting.

    Returns:
        ``metrics`` and ``axes`` (names), ``settings`` by label: ``axes`` (name to a number per round), ``values``
        (metric to ``mean`` and ``std``, None where there is none), ``thinned`` if rounds were left out.
    """
    known = known_names(found.numbers)
    picked = {metric.heading(known): chosen(metric, found.numbers) for metric in found.metrics}
    plain = [name for name in (*MAIN_METRICS, *_MORE_CURVES) if name in found.columns]
    picked |= {name: dict.fromkeys(found.settings, name) for name in plain if name not in picked}
    thinned, drawn = False, dict[str, Any]()
    for label, setting in found.settings.items():
        tables = [run.metrics for run in setting.runs]
        axes = {name: mean_and_std(tables, "round", column)["mean"] for name, column in AXES.items()}
        values = {
            name: mean_and_std(tables, "round", by[label]) for name, by in picked.items() if label in by
        }
        rounds = sorted({int(at) for one in values.values() for at in one.index})
        if len(rounds) > MOST_POINTS:
            thinned = True
            kept = np.linspace(0, len(rounds) - 1, MOST_POINTS).round().astype(int)
            rounds = [rounds[at] for at in kept]
        drawn[label] = {
            "axes": {name: _short(one.reindex(rounds)) for name, one in axes.items() if len(one)},
            "values": {
                name: {part: _short(one[part].reindex(rounds)) for part in ("mean", "std")}
                for name, one in values.items()
                if len(one)
            },
        }
    there = {name for one in drawn.values() for name in one["values"]}
    axes_there = {name for one in drawn.values() for name in one["axes"]}
    return {
        "metrics": [name for name in picked if name in there],
        "axes": [name for name in AXES if name in axes_there],
        "settings": drawn,
        "thinned": thinned,
    }


def splits(found: Gathered) -> dict[str, Any]:
    """Give the training examples by client and class of every split among the settings' first runs."""
    parts = dict[str, dict[str, Any]]()
    for label, setting in found.settings.items():
        run = setting.runs[0]
        facts = data_facts(run)
        if any(facts.counts):
            one = parts.setdefault(
                json.dumps([facts.name, facts.counts]),
                {"settings": [], "seed": run.summary["seed"], **_split(facts)},
            )
            one["settings"].append(label)
    return {"splits": list(parts.values())[:MOST_SPLITS], "left_out": max(0, len(parts) - MOST_SPLITS)}


def alignments(found: Gathered) -> dict[str, Any]:
    """Give which class every neuron of every client encodes in the last measured round, of each setting's first run."""
    maps, left_out = list[dict[str, Any]](), 0
    for label, setting in found.settings.items():
        # The latest first; of one that a kill has torn, the one before.
        candidates = (
            (run, path)
            for run in setting.runs
            for path in sorted(
                (run.path / "figures").glob("encoding_round_*.npz"), key=_by_number, reverse=True
            )
        )
        one = next((one for run, path in candidates if (one := _alignment(run, path)) is not None), None)
        if one is not None and len(maps) < MOST_MAPS:
            maps.append({"setting": label, **one})
        elif one is not None:
            left_out += 1
    return {"maps": maps, "left_out": left_out}


def _by_number(path: Path) -> int:
    number = path.stem.rpartition("_")[2]
    return int(number) if number.isdigit() else -1


def distributions(found: Gathered) -> dict[str, Any]:
    """Give the accuracies of single clients in the last round that has them, of all runs of each setting.

    They are those of the models that the report's first metric is about: the clients' own, or the server's.
    """
    picked, settings = chosen(found.metrics[0], found.numbers), dict[str, Any]()
    room, thinned = max(20, MOST_DOTS // len(found.settings)), False
    for label, setting in found.settings.items():
        parts = picked.get(label, "").split("/")  # last5/personal/acc_mean, say
        column = next((_OF_CLIENTS[part] for part in parts if part in _OF_CLIENTS), "global_acc")
        dots = [(run.summary["seed"], *row) for run in setting.runs for row in _clients(run, column)]
        if dots:
            dots.sort(key=lambda dot: dot[2])
            values = [dot[2] for dot in dots]
            box = [float(f"{value:.4g}") for value in np.quantile(values, (0, 0.25, 0.5, 0.75, 1))]
            thinned |= len(dots) > room
            kept = np.unique(np.linspace(0, len(dots) - 1, min(room, len(dots))).round().astype(int))
            settings[label] = {"of": column, "box": box, "num": len(dots), "dots": [dots[at] for at in kept]}
    return {"settings": settings, "thinned": thinned}


def differing(found: Gathered) -> tuple[list[str], list[list[str]]]:
    """Give the keys of the configuration in which settings differ, and a row of values for each."""
    settings = list(found.settings.values())
    keys = dict.fromkeys(key for setting in settings for key in setting.values)
    rows = {
        key: [written(one.values[key]) if key in one.values else "" for one in settings]
        for key in sorted(keys)
    }
    kept = {key: row for key, row in rows.items() if len(set(row)) > 1}
    return [*kept], [*kept.values()]


def data_facts(run: Run) -> Facts:
    """Give what data.json says; nothing of what is missing or damaged."""
    try:
        fields = json.loads((run.path / FILE).read_text())
    except (OSError, ValueError):
        return Facts()
    fields = fields if isinstance(fields, dict) else {}
    counts, lists = fields.get("class_counts"), {}
    for name in ("classes", "fingerprint"):
        lists[name] = list(map(str, value)) if isinstance(value := fields.get(name), list) else []
    rows = counts if isinstance(counts, list) and all(isinstance(row, list) for row in counts) else []
    whole = all(isinstance(number, int) for row in rows for number in row)
    return Facts(str(fields.get("name", "")), lists["classes"], rows if whole else [], lists["fingerprint"])


def _split(facts: Facts) -> dict[str, Any]:
    rows = _spread(len(facts.counts))
    shown = {"data": facts.name, "classes": facts.classes, "clients": rows, "of": len(facts.counts)}
    return {**shown, "counts": [facts.counts[row] for row in rows]}


def _alignment(run: Run, path: Path) -> dict[str, Any] | None:
    from fedfeat.runs.feature_numbers import read_alignment, rows_of

    try:
        found = read_alignment(path)
    except CheckpointError:
        return None
    rows, names = _spread(len(rows_of(found))), rows_of(found)
    layers = []
    for layer, primaries in zip(found.layers, found.primaries, strict=True):
        table = np.stack([np.asarray(primaries[row]) for row in rows])
        if table.max(initial=0) >= _NO_CLASS_BYTE:
            return None
        data = np.where(table < 0, _NO_CLASS_BYTE, table).astype(np.uint8).tobytes()
        shown = {"name": layer, "neurons": table.shape[1], "data": base64.b64encode(data).decode()}
        layers.append(shown | {"agreement": _number(found.metrics.get(f"align/agreement_{layer}"))})
    round_idx = number if (number := _by_number(path)) >= 0 else None
    classes = data_facts(run).classes
    agreement = _number(found.metrics.get("align/agreement"))
    shown = {"seed": run.summary["seed"], "round": round_idx, "classes": classes, "agreement": agreement}
    return shown | {"clients": [names[row] for row in rows], "of": len(names), "layers": layers}


def _clients(run: Run, column: str) -> list[tuple[int, float, int]]:
    """Give client, accuracy and examples of the last round in which a column of clients.csv is filled."""
    import pandas as pd

    try:
        table = pd.read_csv(run.path / "clients.csv", usecols=["round", "client_id", "num_examples", column])
    except (OSError, ValueError):
        return []
    table = table.apply(pd.to_numeric, errors="coerce").dropna()
    last = table[table["round"] == table["round"].max()]
    return [
        (int(row.client_id), float(f"{row[column]:.4g}"), int(row.num_examples)) for _, row in last.iterrows()
    ]


def _spread(number: int) -> list[int]:
    """Choose rows evenly where there are more than `MOST_ROWS`."""
    return sorted({*np.linspace(0, number - 1, min(number, MOST_ROWS)).round().astype(int).tolist()})


def _short(values: Any) -> list[float | None]:
    """Round to six digits; None is what is not there."""
    return [_number(value) for value in values]


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
