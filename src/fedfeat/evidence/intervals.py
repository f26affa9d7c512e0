"""Means and paired differences over seeds, with 95 % intervals of Student's t."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.95
"""Share of intervals that cover the true mean, were the campaign repeated."""


class Needed(float):
    """What a run took until it was at a target: known to the step between two evaluations.

    Attributes:
        step: What lay between the two evaluations.
        never: Whether the run never came there, so that it is known from below alone.
    """

    step: float
    never: bool

    def __new__(cls, value: float, step: float, never: bool = False) -> Needed:
        """Make the number."""
        made = super().__new__(cls, value)
        made.step, made.never = step, never
        return made


class Interval(NamedTuple):
    """A mean with its interval.

    Attributes:
        mean: Mean over seeds; NaN where a number is, and between a number of inf and one of -inf.
        low: Lower end; NaN where a number is, -inf of one seed or where nothing is known, the smallest number where one
            is infinite (a run that never came there).
        high: Upper end; inf of one seed or where nothing is known, the largest number where one is infinite.
        num_seeds: How many there are.
    """

    mean: float
    low: float
    high: float
    num_seeds: int

    def p_value(self, bound: float) -> float:
        """Give the p of the two-sided test that the true mean is ``bound``; NaN without a finite interval."""
        from scipy import stats

        half = self.high - self.mean
        if not math.isfinite(half):
            return math.nan
        if half == 0:
            return float(self.mean == bound)
        distance = abs(self.mean - bound) / half * stats.t.ppf((1 + LEVEL) / 2, self.num_seeds - 1)
        return float(2 * stats.t.sf(distance, self.num_seeds - 1))


def mean_interval(values: Sequence[float], least_variance: float = 0.0) -> Interval:
    """Give the mean of numbers that are independent and normal about it, with its interval.

    Args:
        values: One number for each seed.
        least_variance: Which numbers have by how they are measured, however alike they are.

    Raises:
        ValueError: There are none.
    """
    from scipy import stats

    if not values:
        raise ValueError("an interval needs at least one value")
    number, mean = len(values), sum(values) / len(values)
    if any(map(math.isnan, values)):
        return Interval(math.nan, math.nan, math.nan, number)
    if not math.isfinite(mean):
        return Interval(mean, min(values), max(values), number)
    if number == 1:
        return Interval(mean, -math.inf, math.inf, number)
    variance = math.fsum((value - mean) ** 2 for value in values) / (number - 1)
    spread = math.sqrt(max(variance, least_variance) / number)
    half = float(stats.t.ppf((1 + LEVEL) / 2, number - 1)) * spread
    return Interval(mean, mean - half, mean + half, number)


def difference(one: Mapping[int, float], other: Mapping[int, float]) -> Interval | None:
    """Give the interval of ``one - other``, seed by seed.

    Of a seed, the split is common to both, and the first weights where their network is one.

    Of `Needed` numbers, who never came there is ahead of nobody, and each is uniform in its own step: a difference has
    a variance of at least the sum of both steps' squares over 12. Where nobody came there nothing is known.

    Args:
        one: Number by seed.
        other: Number by seed.

    Returns:
        None where they have no seed in common but those in which both are infinite, which tell nothing.
    """
    shared = sorted(one.keys() & other.keys())
    common = [seed for seed in shared if not (math.isinf(one[seed]) and one[seed] == other[seed])]
    pairs = [_gap(one[seed], other[seed]) for seed in common]
    if not pairs:
        return None
    if all(_never(numbers[seed]) for seed in common for numbers in (one, other)):
        return Interval(0.0, -math.inf, math.inf, len(pairs))
    known = math.fsum(_variance(numbers[seed]) for seed in common for numbers in (one, other))
    return mean_interval(pairs, known / len(pairs))


def _variance(value: float) -> float:
    return value.step**2 / 12 if isinstance(value, Needed) else 0.0


def _gap(one: float, other: float) -> float:
    if math.isnan(one) or math.isnan(other):
        return math.nan
    return 0.0 if _never(min(one, other)) else one - other


def _never(value: float) -> bool:
    return isinstance(value, Needed) and value.never
