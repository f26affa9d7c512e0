"""Methods beside each other: paired differences over seeds within a setting, ranks over settings.

A pair's verdict depends on that pair alone: differences have intervals of their own, and ranks are tested by Wilcoxon's
signed-rank test against one method, with Holm's correction. (Nemenyi's test goes by mean ranks, so whether two methods
differ would depend on which others are in the table.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedfeat.evidence.intervals import LEVEL, Interval, difference
from fedfeat.evidence.rules import MIN_SEEDS

Numbers = Mapping[str, Mapping[str, Mapping[int, float]]]
"""By setting and method: number by seed."""


class Pair(NamedTuple):
    """A method against another one in one setting, over the seeds that both have.

    Attributes:
        setting: Where.
        method: The method.
        interval: Of its numbers less those of the other, seed by seed; its ends are infinite of fewer than `MIN_SEEDS`,
            its mean NaN where a run has diverged.
        ahead: In how many seeds it is better.
    """

    setting: str
    method: str
    interval: Interval
    ahead: int


class Rank(NamedTuple):
    """A method over settings.

    Attributes:
        method: The method.
        mean: Its mean rank; 1 is the best, equal ones share theirs.
        p_value: Of Wilcoxon's test against the other method, corrected by Holm's; None where nothing is said.
    """

    method: str
    mean: float
    p_value: float | None = None


def pairs(numbers: Numbers, against: str, high: bool = True) -> list[Pair]:
    """Compare every method with one, setting by setting.

    Args:
        numbers: The numbers.
        against: The method that others are compared with.
        high: Whether more is better.
    """
    found = []
    for setting, methods in numbers.items():
        other = methods.get(against, {})
        for method, own in methods.items():
            interval = difference(own, other) if method != against else None
            if interval is not None:
                sign = 1 if high else -1
                ahead = sum(sign * (own[seed] - other[seed]) > 0 for seed in own.keys() & other.keys())
                if interval.num_seeds < MIN_SEEDS and not math.isnan(interval.low):
                    interval = interval._replace(low=-math.inf, high=math.inf)
                found.append(Pair(setting, method, interval, ahead))
    return found


def complete(numbers: Numbers) -> dict[str, dict[str, float]]:
    """Give the mean of each method over the seeds that all have, in the settings where all have one."""
    methods = {method for found in numbers.values() for method in found}
    means = {}
    for setting, found in numbers.items():
        seeds = set.intersection(*({*one} for one in found.values())) if found else set()
        if found.keys() == methods and seeds:
            means[setting] = {
                method: sum(one[seed] for seed in seeds) / len(seeds) for method, one in found.items()
            }
    return means


def ranks(means: Mapping[str, Mapping[str, float]], against: str, high: bool = True) -> list[Rank]:
    """Rank methods within settings and average over these, the best first; what has diverged comes last.

    Args:
        means: Number by setting and method, all methods in each.
        against: The method that others are tested against.
        high: Whether more is better.

    Returns:
        With p values where `smallest_p` leaves room for significance.
    """
    from scipy import stats

    methods = [*next(iter(means.values()))]
    worst = -math.inf if high else math.inf
    rows = [
        [worst if math.isnan(one[method]) else one[method] for method in methods] for one in means.values()
    ]
    ranked = [stats.rankdata([-value if high else value for value in row]) for row in rows]
    average = [float(sum(column)) / len(rows) for column in zip(*ranked, strict=True)]
    tested = [method for method in methods if method != against]
    p_values: dict[str, float] = {}
    if smallest_p(len(rows), len(tested)) <= 1 - LEVEL + 1e-12:
        at = methods.index(against)
        raw = [
            _signed_rank([row[methods.index(one)] for row in rows], [row[at] for row in rows])
            for one in tested
        ]
        p_values = dict(zip(tested, holm(raw), strict=True))
    found = [Rank(method, mean, p_values.get(method)) for method, mean in zip(methods, average, strict=True)]
    return sorted(found, key=lambda rank: rank.mean)


def smallest_p(num_settings: int, num_tests: int) -> float:
    """Give the least p that Wilcoxon's two-sided test of so many settings can have, after Holm's correction."""
    return min(1.0, num_tests * 2.0 ** (1 - num_settings))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p values of several tests, so that all of them together err as seldom as one (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    corrected, largest = [0.0] * len(p_values), 0.0
    for done, at in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - done) * p_values[at]))
        corrected[at] = largest
    return corrected


def _signed_rank(one: Sequence[float], other: Sequence[float]) -> float:
    from scipy import stats

    # Of two that have both diverged, neither is ahead.
    gaps = [0.0 if a == b else a - b for a, b in zip(one, other, strict=True)]
    # An infinite gap is the largest of all, whatever its size.
    bound = 2 * max((abs(gap) for gap in gaps if math.isfinite(gap)), default=0.0) + 1.0
    finite = [gap if math.isfinite(gap) else math.copysign(bound, gap) for gap in gaps]
    return float(stats.wilcoxon(finite).pvalue) if any(finite) else 1.0
