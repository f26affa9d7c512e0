"""What an arm is tuned to: the point of a grid that is best on validation data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from fedfeat.evidence.campaign import Cell
from fedfeat.evidence.stored import score

METRIC = "val/acc"
"""What decides: accuracy on clients' held-out training examples, never on test data."""
LAST = 3
"""Evaluated rounds at the end that are averaged, for single rounds jump."""


def point_scores(places: Mapping[Cell, Path]) -> dict[str, float]:
    """Give the score of every point of a grid: the mean over its runs; -inf where one has diverged.

    Args:
        places: The finished runs of one arm, with their folders.
    """
    by_point: dict[str, list[Path]] = defaultdict(list)
    for cell, place in places.items():
        by_point[cell.point].append(place)
    return {point: score(found, METRIC, LAST) for point, found in by_point.items()}


def chosen_point(places: Mapping[Cell, Path]) -> str:
    """Give the best point of a grid, the first among equals."""
    scores = point_scores(places)
    return max(scores, key=lambda point: scores[point])
