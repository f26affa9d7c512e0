"""How long the runs of a campaign take: those under way by their rounds so far, others by those that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from yaml import YAMLError

from fedfeat.evidence import stored
from fedfeat.evidence.campaign import Cell
from fedfeat.runs.divergence import has_diverged
from fedfeat.runs.tables import METRICS, rows_so_far

_FACTORS = ("federation.num_rounds", "federation.local_epochs", "data.loader.num_train")
"""What a run's length grows with."""


class _Overrides(NamedTuple):
    """What a run's overrides say, whatever its seed.

    Attributes:
        words: Those that give no factor of its length.
        factors: Those that do, by key; what its preset alone says is not among them.
    """

    words: frozenset[str]
    factors: frozenset[tuple[str, int]]


class Standing(NamedTuple):
    """One run that has begun.

    Attributes:
        round_idx: Its last evaluated round.
        num_rounds: Rounds in all.
        seconds: What the rounds took so far.
    """

    round_idx: int
    num_rounds: int
    seconds: float

    def whole(self) -> float | None:
        """Estimate the seconds of the whole run, by its rounds so far; None before the first."""
        return self.seconds * self.num_rounds / self.round_idx if self.round_idx else None


def standing(place: Path) -> Standing | None:
    """Read where a run stands; None where it has not begun."""
    rows = rows_so_far(place / METRICS)
    if not rows:
        return None
    with suppress(OSError, ValueError, KeyError, TypeError, YAMLError):
        return standing_of(rows, stored.federation(place))
    return None


def standing_of(rows: Sequence[Mapping[str, str]], federation: Mapping[str, Any]) -> Standing | None:
    """Say where a run stands by the rows of its metrics and its configuration's section of that name."""
    with suppress(ValueError, KeyError, TypeError, IndexError):
        last = rows[-1]
        return Standing(int(last["round"]), federation["num_rounds"], float(last["time/total_s"]))
    return None


@cache
def length(place: Path) -> float:
    """Give the seconds of an ended run; of one that has diverged, what all its rounds would have taken."""
    if has_diverged(place) and (found := standing(place)) and (whole := found.whole()):
        return whole
    return stored.seconds(place)


def expected(known: Mapping[Cell, float], words: Mapping[Cell, Sequence[str]]) -> dict[Cell, float]:
    """Estimate the seconds of runs by those that have most overrides in common with them; {} where none is known.

    That is their median, each for as many rounds, epochs and images as the run has that is asked for.

    Args:
        known: Seconds by run.
        words: Overrides of those, and of the runs whose length is asked for.
    """
    alike: dict[_Overrides, list[float]] = {}
    for cell, seconds in known.items():
        alike.setdefault(_overrides(words[cell]), []).append(seconds)
    if not alike:
        return {}
    medians = {those: median(found) for those, found in alike.items()}
    asked = {cell: _overrides(those) for cell, those in words.items() if cell not in known}
    estimates = {those: _estimate(those, medians) for those in {*asked.values()}}
    return {cell: estimates[those] for cell, those in asked.items()}


def _overrides(words: Sequence[str]) -> _Overrides:
    others, factors = set(), {}
    for key, _, value in (word.partition("=") for word in words if not word.startswith("seed=")):
        if key in _FACTORS and value.isdecimal():
            factors[key] = int(value)
        else:
            others.add(f"{key}={value}")
    return _Overrides(frozenset(others), frozenset(factors.items()))


def _estimate(asked: _Overrides, medians: Mapping[_Overrides, float]) -> float:
    # The number in common, not its share of both: by that, runs of few words would be near to everything.
    near = {those: (len(asked.words & those.words), -len(those.words)) for those in medians}
    nearest = max(near.values())
    return median(medians[those] * _ratio(asked, those) for those, found in near.items() if found == nearest)


def _ratio(asked: _Overrides, known: _Overrides) -> float:
    """Say how often one run is as long as another, by the factors that both are given."""
    one, other = dict(asked.factors), dict(known.factors)
    return prod(one[key] / other[key] for key in one.keys() & other.keys() if other[key])
