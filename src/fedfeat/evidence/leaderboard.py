"""The leaderboard: methods side by side, each by what it calls the client's own model."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedfeat.evidence.archive import Archive
from fedfeat.evidence.stored import THEN
from fedfeat.evidence.wording import NONE, mean_text, number
from fedfeat.runs.finished import Run
from fedfeat.runs.quantities import measured_numbers

HEADER = ("method", "model", "last round", "best on validation", "all test data", "MB", "TFLOP", "seconds")
_MODELS = {"personal": "own", "global": "server's", "final_all": "fine-tuned"}
_COSTS = (("comm/total_bytes", 1e6), ("compute/flops", 1e12), ("time/total_s", 1.0))


def rows(archive: Archive, study: str, setting: str) -> list[list[str]]:
    """Give a line per arm with finished runs, by the accuracy of the last round, the best first.

    The accuracy is that of ``federation.target_metric``, on clients' own test parts. A method of which a run has
    diverged comes last, and says so.
    """
    found = []
    for arm in archive.campaign.studies[study].arms:
        runs = archive.runs(study, setting, arm)
        lost = sum((cell.study, cell.setting, cell.arm) == (study, setting, arm) for cell in archive.diverged)
        if runs or lost:
            found.append(_line(arm, runs, lost))
        places = [archive.places[cell] for cell in archive.cells(study, setting, arm)]
        found += _calibrated(arm, places)
    return [cells for _, cells in sorted(found, key=lambda one: -one[0])]


def _line(arm: str, runs: Mapping[int, Run], lost: int) -> tuple[float, list[str]]:
    """Give the line of an arm and what it is sorted by; ``lost`` of its runs have diverged."""
    if not runs:
        return -math.inf, [arm, NONE, f"{lost} diverged", *[NONE] * (len(HEADER) - 3)]
    metric = _judged(next(iter(runs.values())))
    last = _numbers(runs, metric)
    mean, cells = sum(last.values()) / max(len(last), 1), _cells(runs, metric)
    if lost:
        cells[0] = f"{cells[0]}, {lost} diverged"
    if lost or math.isnan(mean):
        mean = -math.inf
    family = metric.partition("/")[0]
    return mean, [arm, _MODELS.get(family, family), *cells]


def _calibrated(arm: str, places: Sequence[Path]) -> list[tuple[float, list[str]]]:
    """Give the line of the same runs after `fedfeat-calibrate`, where that followed them."""
    tables = [place / THEN / "calibration.csv" for place in places]
    found = [next(csv.DictReader(path.read_text().splitlines())) for path in tables if path.exists()]
    if not found:
        return []
    accuracies = dict(enumerate(float(one["acc_calibrated"]) for one in found))
    mean = sum(accuracies.values()) / len(accuracies)
    return [(mean, [f"{arm} + CCVR", _MODELS["global"], NONE, NONE, mean_text(accuracies), NONE, NONE, NONE])]


def trials(archive: Archive, study: str) -> list[list[str]]:
    """Give per arm how many points were tried, the chosen one (a star: at the edge), and its validation accuracy.

    Of the points it says how many diverged: an arm has had so many fewer chances.
    """
    found = []
    for arm in archive.campaign.studies[study].arms:
        tuned = archive.tuned(study, arm)
        if tuned is not None:
            chosen, scores = tuned
            point = f"{chosen}{archive.edge_mark(study, arm, chosen)}"
            lost = sum(score == -math.inf for score in scores.values())
            tried = f"{len(scores)} ({lost} diverged)" if lost else str(len(scores))
            found.append([arm, tried, point, number(scores[chosen])])
    return found


def _cells(runs: Mapping[int, Run], metric: str) -> list[str]:
    accuracies = (metric, f"best_val/{metric}", "global/acc")
    costs = [_numbers(runs, name) for name, _ in _COSTS]
    means = [
        sum(cost.values()) / max(len(cost), 1) / unit for cost, (_, unit) in zip(costs, _COSTS, strict=True)
    ]
    return [*(mean_text(_numbers(runs, name)) for name in accuracies), *map(_amount, means)]


def _judged(run: Run) -> str:
    return str(run.setting["federation.target_metric"])


def _numbers(runs: Mapping[int, Run], quantity: str) -> dict[int, float]:
    found = {seed: measured_numbers(run, [quantity]) for seed, run in runs.items()}
    return {seed: numbers[quantity] for seed, numbers in found.items() if quantity in numbers}


def _amount(value: float) -> str:
    """Write three digits of what is counted."""
    return NONE if not value else f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
