"""Means and paired differences over seeds, with 95 % intervals of Student's t."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.95
"""Share of intervals that cover the true mean, were the campaign repeated."""


class Interval(NamedTuple):
    """A mean with its interval.

    Attributes:
        mean: Mean over seeds.
        low: Lower end; -inf of one seed, the smallest number where one is infinite (of a run that never came there).
        high: Upper end; inf of one seed, the largest number where one is infinite.
        num_seeds: How many there are.
    """

    mean: float
    low: float
    high: float
    num_seeds: int


def mean_interval(values: Sequence[float]) -> Interval:
    """Give the mean of numbers that are independent and normal about it, with its interval.

    Args:
        values: One number for each seed.

    Raises:
        ValueError: There are none.
    """
    from scipy import stats

    if not values:
        raise ValueError("an interval needs at least one value")
    number, mean = len(values), sum(values) / len(values)
    if not math.isfinite(mean):
        return Interval(mean, min(values), max(values), number)
    if number == 1:
        return Interval(mean, -math.inf, math.inf, number)
    variance = math.fsum((value - mean) ** 2 for value in values) / (number - 1)
    half = float(stats.t.ppf((1 + LEVEL) / 2, number - 1)) * math.sqrt(variance / number)
    return Interval(mean, mean - half, mean + half, number)


def difference(one: Mapping[int, float], other: Mapping[int, float]) -> Interval | None:
    """Give the interval of ``one - other``, seed by seed: of a seed, split and first weights are common to both.

    Args:
        one: Number by seed.
        other: Number by seed.

    Returns:
        None where they have no seed in common.
    """
    common = sorted(one.keys() & other.keys())
    # Of two runs that never came there, neither is ahead.
    pairs = [0.0 if one[seed] == other[seed] else one[seed] - other[seed] for seed in common]
    return mean_interval(pairs) if pairs else None
