"""What decides a claim: rules about stored numbers of arms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fedfeat.evidence.association import Association, association
from fedfeat.evidence.intervals import LEVEL, Interval, difference, mean_interval

Verdict = Literal["holds", "does not hold", "undecided", "not run"]
Numbers = Callable[[str, str], Mapping[int, float]]
"""Numbers by seed of (arm, quantity)."""

MIN_SEEDS = 3
"""Fewer decide nothing."""
MIN_ARMS = 5
"""No order of fewer has a p below 5 %."""
_ROUNDING = 1e-9


class Decided(NamedTuple):
    """What a rule makes of numbers.

    Attributes:
        numbers: Of each arm whose own level is told, by seed.
        found: What the rule is about; None where there are no numbers of it.
        verdict: What it decides.
        p_value: Of the two-sided test that has this verdict; NaN where nothing could be tested.
    """

    numbers: Sequence[Mapping[int, float]]
    found: Interval | Association | None
    verdict: Verdict
    p_value: float = math.nan


@dataclass(frozen=True)
class Rule:
    """What has to be so: an arm's number, or by how much it is ahead of another's, lies beyond a bound.

    Attributes:
        arm: The arm.
        against: The arm whose number is taken off seed by seed; None for the number itself.
        bound: The number.
        is_lower: Whether more than the bound is claimed, instead of less.
    """

    arm: str
    against: str | None
    bound: float
    is_lower: bool

    @property
    def arms(self) -> list[str]:
        """Its arms, by the names that a claim gives them."""
        return [self.arm] if self.against is None else [self.arm, self.against]

    def decided(self, numbers: Numbers, quantity: str) -> Decided:
        """Decide by the interval of the number or of the difference."""
        found = [numbers(arm, quantity) for arm in self.arms]
        interval = _interval(found)
        return Decided(found, interval, self.verdict(interval), self._p_value(interval))

    def verdict(self, found: Interval | None) -> Verdict:
        """Decide by an interval: all of it on the claimed side ``holds``, on the other ``does not hold``."""
        if found is None:
            return "not run"
        if found.num_seeds < MIN_SEEDS or math.isnan(found.mean):
            return "undecided"
        # Equal numbers differ by what rounding leaves.
        above, below = found.low > self.bound + _ROUNDING, found.high < self.bound - _ROUNDING
        if not above and not below:
            return "undecided"
        return "holds" if above == self.is_lower else "does not hold"

    def sentence(self, quantity: str) -> str:
        """Say it in words."""
        side = "more" if self.is_lower else "less"
        if self.against is None:
            return f"`{quantity}` of {self.arm} is {side} than {self.bound:g}"
        return f"`{quantity}` of {self.arm} minus that of {self.against} is {side} than {self.bound:g}"

    def _p_value(self, found: Interval | None) -> float:
        if found is None or found.num_seeds < MIN_SEEDS or not math.isfinite(found.mean):
            return math.nan
        return found.p_value(self.bound)


@dataclass(frozen=True)
class Prediction:
    """What has to be so: over some arms one quantity has the order of another.

    Attributes:
        target: What the claim's quantity predicts.
        arms: The arms; of each that has `MIN_SEEDS` the mean over its seeds counts.
    """

    target: str
    arms: tuple[str, ...]

    def decided(self, numbers: Numbers, quantity: str) -> Decided:
        """Decide by the permutation test of the rank correlation."""
        found = association(self._means(numbers, quantity), self._means(numbers, self.target))
        if not found.num_arms:
            return Decided((), None, "not run")
        return Decided((), found, self.verdict(found), found.p_value)

    def verdict(self, found: Association) -> Verdict:
        """Decide by a rank correlation: one that is not chance ``holds``, or where it is negative ``does not hold``."""
        if math.isnan(found.p_value) or found.p_value > 1 - LEVEL:
            return "undecided"
        return "holds" if found.rho > 0 else "does not hold"

    def sentence(self, quantity: str) -> str:
        """Say it in words."""
        return (
            f"over {', '.join(self.arms)} the rank correlation of `{quantity}` with `{self.target}` is more than 0, "
            f"with p at most {1 - LEVEL:.2f} in a permutation test of the arms' order"
        )

    def _means(self, numbers: Numbers, quantity: str) -> dict[str, float]:
        found = {arm: numbers(arm, quantity) for arm in self.arms}
        return {arm: sum(one.values()) / len(one) for arm, one in found.items() if len(one) >= MIN_SEEDS}


def _interval(numbers: Sequence[Mapping[int, float]]) -> Interval | None:
    if len(numbers) == 2:
        found = difference(*numbers)
    else:
        found = mean_interval([*numbers[0].values()]) if numbers[0] else None
    if found is not None and any(math.isnan(value) for arm in numbers for value in arm.values()):
        # Also where the other arm lacks that seed.
        return found._replace(mean=math.nan, low=math.nan, high=math.nan)
    return found
