"""Whether a run that is made again has the numbers that are kept of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedfeat.runs.directory import experiment_config
from fedfeat.runs.tables import REPAIRED
from fedfeat.runs.text import flatten

SAME = 1e-6
"""Relative difference below which two numbers are the same: single precision has seven digits."""
_ROUND = "round"
_CLOCK = "time/"


class Parting(NamedTuple):
    """One quantity of a run and of its repetition.

    Attributes:
        quantity: A column of metrics.csv.
        kept: Its value in the last round that both have.
        again: The repetition's.
        since: First round in which they are not the same; None where they are in all.
        largest: Largest difference in a round; inf where one of them is missing or not finite.
    """

    quantity: str
    kept: float
    again: float
    since: int | None
    largest: float


def partings(kept: Sequence[Mapping[str, str]], again: Sequence[Mapping[str, str]]) -> list[Parting]:
    """Compare the quantities that two tables have both, in the rounds that both have; clocks are left out.

    So are rows that ``resume=repair`` has put in: most of their cells are empty.

    Args:
        kept: Rows of metrics.csv.
        again: The repetition's.
    """
    first, repeated = (
        {int(row[_ROUND]): row for row in rows if row.get(REPAIRED) != "1"} for rows in (kept, again)
    )
    both = [(at, row, repeated[at]) for at, row in first.items() if at in repeated]
    if not both:
        return []
    columns = [name for name in both[0][1] if name in both[0][2] and name not in (_ROUND, REPAIRED)]
    return [
        _parting(name, [(at, _value(one[name]), _value(other[name])) for at, one, other in both])
        for name in columns
        if not name.startswith(_CLOCK)
    ]


def altered(stored: Mapping[str, Any], today: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Give what fixes numbers of a stored configuration and is another in today's: both values by key.

    Keys that have been added since then are today's alone.
    """
    then, now = (flatten(experiment_config(config), ".") for config in (stored, today))
    return {key: (value, now.get(key)) for key, value in then.items() if now.get(key) != value}


def _parting(quantity: str, values: Sequence[tuple[int, float, float]]) -> Parting:
    apart = [(at, _distance(one, other)) for at, one, other in values if not _same(one, other)]
    _, kept, again = values[-1]
    since = apart[0][0] if apart else None
    return Parting(quantity, kept, again, since, max((distance for _, distance in apart), default=0.0))


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=SAME, abs_tol=SAME) or (math.isnan(one) and math.isnan(other))


def _distance(one: float, other: float) -> float:
    distance = abs(one - other)
    return distance if math.isfinite(distance) else math.inf


def _value(text: str) -> float:
    return float(text) if text else math.nan
