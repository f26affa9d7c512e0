"""Claims, what was measured for them, and their verdicts: a pure function of stored numbers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from fedfeat.evidence.rules import MIN_SEEDS, Decided, Prediction, Rule, Verdict

Values = Callable[[Sequence[str], str, str, str], Mapping[int, float]]
"""Numbers by seed of (studies, setting, arm, quantity)."""


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
    rule: Rule | Prediction
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
        decided = {
            setting: self.rule.decided(partial(values, self.studies, setting), self.quantity)
            for setting in self.settings
        }
        return Judgement(decided, overall({setting: one.verdict for setting, one in decided.items()}))


class Judgement(NamedTuple):
    """What was decided.

    Attributes:
        decided: By setting.
        verdict: In all.
    """

    decided: Mapping[str, Decided]
    verdict: str


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
