"""Claims, what was measured for them, and their verdicts: a pure function of stored numbers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fedfeat.evidence.intervals import Interval, difference, mean_interval

Verdict = Literal["holds", "does not hold", "undecided", "not run"]
Values = Callable[[Sequence[str], str, str, str], Mapping[int, float]]
"""Numbers by seed of (studies, setting, arm, quantity)."""

MIN_SEEDS = 3
"""Fewer decide nothing."""
_ROUNDING = 1e-9


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


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        id: Its name in links.
        group: The heading it stands under.
        claim: What is claimed.
        source: Paper and place.
        published: The published numbers, in words.
        protocol: How it is measured here.
        studies: The studies of the campaign that have its runs.
        settings: Settings of theirs that decide; one without a name where they have none.
        quantity: What is compared, by its name in a report.
        rule: What has to be so.
        caveat: What its verdict is never read without.
        note: What else there is to say.
        asked_after: Whether it was written when its runs were there.
    """

    id: str
    group: str
    claim: str
    source: str
    published: str
    protocol: str
    studies: tuple[str, ...]
    settings: tuple[str, ...]
    quantity: str
    rule: Rule
    caveat: str = ""
    note: str = ""
    asked_after: bool = False

    @property
    def is_papers(self) -> bool:
        """Whether a paper has a number of it, and the question is not ours, asked of runs that were there."""
        return bool(self.published) and not self.asked_after

    @property
    def sentence(self) -> str:
        """What is claimed, with a word on when it was asked where that was late."""
        return f"{self.claim.removesuffix('.')} (asked after the runs)." if self.asked_after else self.claim

    def judged(self, values: Values) -> Judgement:
        """Decide by the numbers that there are."""
        numbers = {
            setting: [values(self.studies, setting, arm, self.quantity) for arm in self.rule.arms]
            for setting in self.settings
        }
        found = {setting: _interval(those) for setting, those in numbers.items()}
        verdicts = {setting: self.rule.verdict(interval) for setting, interval in found.items()}
        return Judgement(numbers, found, verdicts, overall(verdicts))


class Judgement(NamedTuple):
    """What was decided.

    Attributes:
        numbers: Of each arm of the rule, by setting; of an arm by seed.
        found: What the rule is about, by setting.
        verdicts: By setting.
        verdict: In all.
    """

    numbers: Mapping[str, Sequence[Mapping[int, float]]]
    found: Mapping[str, Interval | None]
    verdicts: Mapping[str, Verdict]
    verdict: str


def _interval(numbers: Sequence[Mapping[int, float]]) -> Interval | None:
    if len(numbers) == 2:
        found = difference(*numbers)
    else:
        found = mean_interval([*numbers[0].values()]) if numbers[0] else None
    if found is not None and any(math.isnan(value) for arm in numbers for value in arm.values()):
        # Also where the other arm lacks that seed.
        return found._replace(mean=math.nan, low=math.nan, high=math.nan)
    return found


def overall(verdicts: Mapping[str, Verdict]) -> str:
    """Join the verdicts of several settings: what holds in some and fails in all others ``holds only with`` these."""
    if len({*verdicts.values()}) == 1:
        return next(iter(verdicts.values()))
    settings = defaultdict[str, list[str]](list)
    for setting, verdict in verdicts.items():
        settings[verdict].append(setting)
    if settings.keys() == {"holds", "does not hold"}:
        return f"holds only with {', '.join(settings['holds'])}"
    order = ("holds", "does not hold", "undecided", "not run")
    return "; ".join(f"{kind} with {', '.join(settings[kind])}" for kind in order if kind in settings)


@dataclass(frozen=True)
class Reading:
    """How one of several readings of a method is chosen: the first of an order that learns.

    Attributes:
        name: What claims call the chosen one.
        studies: The studies with its runs.
        settings: Settings that decide.
        quantity: What is compared.
        order: Arms, the one that the texts support best first.
        margin: How far an arm's mean may be below the best one's in every setting.
    """

    name: str
    studies: tuple[str, ...]
    settings: tuple[str, ...]
    quantity: str
    order: tuple[str, ...]
    margin: float

    def chosen(self, values: Values) -> str | None:
        """Give the chosen arm; None while an arm has no run, or fewer than `MIN_SEEDS`, or where none is so near.

        An arm of which a run has diverged does not learn.
        """
        means = dict[tuple[str, str], float]()
        for setting in self.settings:
            for arm in self.order:
                found = values(self.studies, setting, arm, self.quantity)
                if len(found) < MIN_SEEDS:
                    return None
                mean = sum(found.values()) / len(found)
                means[setting, arm] = -math.inf if math.isnan(mean) else mean
        least = {one: max(means[one, arm] for arm in self.order) - self.margin for one in self.settings}
        near = (
            arm
            for arm in self.order
            if all(math.isfinite(mean := means[one, arm]) and mean >= least[one] for one in self.settings)
        )
        return next(near, None)


class Claims(NamedTuple):
    """What a file of claims holds.

    Attributes:
        reading: How a reading is chosen.
        claims: The claims.
    """

    reading: Reading
    claims: tuple[Claim, ...]
