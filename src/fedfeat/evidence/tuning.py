"""What an arm is tuned to: the point of a grid that is best on validation data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from fedfeat.config.objective import validated_by
from fedfeat.errors import ConfigError
from fedfeat.evidence.campaign import Cell
from fedfeat.evidence.stored import federation
from fedfeat.runs.divergence import has_diverged
from fedfeat.runs.tables import REPAIRED

LAST = 3
"""Evaluated rounds at the end that are averaged, for single rounds jump."""


def no_validation(value: object) -> ConfigError:
    """Build the refusal of a run that others are to be tuned by and that holds nothing out."""
    rule = "be above 0 in a study that others are tuned by"
    return ConfigError.rule("partition.val_fraction", rule, value)


def point_scores(places: Mapping[Cell, Path]) -> dict[str, float]:
    """Give the score of every point of a grid: the mean over its runs; -inf where one has diverged.

    Args:
        places: The ended runs of one arm, with their folders.
    """
    import numpy as np

    by_point: dict[str, list[float]] = defaultdict(list)
    for cell, place in places.items():
        by_point[cell.point].append(validation_score(place))
    return {
        point: float(np.mean(found)) if np.isfinite(found).all() else float("-inf")
        for point, found in by_point.items()
    }


def chosen_point(places: Mapping[Cell, Path]) -> str:
    """Give the best point of a grid, the first among equals."""
    scores = point_scores(places)
    return max(scores, key=lambda point: scores[point])


def validation_score(place: Path) -> float:
    """Give an ended run's accuracy on held-out training examples, the one of `validated_by`, never on test data.

    It is the mean of the last evaluated rounds; after fine-tuning there is the last one alone; NaN of a run that has
    diverged.

    Raises:
        ConfigError: The run has held nothing out.
    """
    from fedfeat.runs.metrics_table import read_metrics

    if has_diverged(place):
        return float("nan")
    metrics = read_metrics(place / "metrics.csv")
    name = validated_by([*metrics], federation(place)["target_metric"])
    if name is None:
        raise no_validation(f"0 in {place}")
    last = 1 if name.startswith("final_all/") else LAST
    if (trained := metrics["round"] > 0).any():
        metrics = metrics[trained]
    if REPAIRED in metrics:  # of which a lost row does not know what it measured
        metrics = metrics[(metrics[REPAIRED] != 1) | metrics[name].notna()]
    return float(metrics[name].to_numpy(float)[-last:].mean())
