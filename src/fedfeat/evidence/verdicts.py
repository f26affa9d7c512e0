"""Verdicts on claims as the parts of pages, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from fedfeat.config.objective import judged_by
from fedfeat.errors import ConfigError
from fedfeat.evidence.archive import Archive
from fedfeat.evidence.claims import Claim, Claims, Judgement, Values
from fedfeat.evidence.forest import forest
from fedfeat.evidence.intervals import LEVEL
from fedfeat.evidence.rules import Prediction
from fedfeat.evidence.tables import Tables
from fedfeat.evidence.wording import NONE, found_text, levels_text, markdown, number
from fedfeat.runs.finished import Run

_RANKED = "No run beside a published number yet; on small digits: [leaderboard](../leaderboard.md)."
_SCALE = (
    "Published is for all images and the paper's rounds; measured, for those of the table, is the mean over seeds 0, 1 "
    "and 2 with half of its 95 % interval, or the one seed of (1). `last5` and `last10` are means of as many last "
    "evaluations. What else a study changes: [results](../results.md), [claims](../claims.md)."
)


class Verdicts(Tables):
    """Makes the parts of pages that are about claims, beside those of `Tables`.

    Attributes:
        claims: The claims.
        board: The runs of the leaderboard, which methods' pages point to.
    """

    def __init__(self, archive: Archive, claims: Claims, figures: Path, board: Archive | None = None) -> None:
        super().__init__(archive, figures)
        self.claims, self.board = claims, board

    def summary_part(self, of: str = "all") -> str:
        """Give one line for each claim: what is claimed, published, measured, decided.

        Args:
            of: Which claims: of ``papers``, or questions of ``ours``, see `Claim.is_papers`; or ``all``.

        Raises:
            ConfigError: ``of`` is something else.
        """
        taken = {"papers": (True,), "ours": (False,), "all": (True, False)}
        if of not in taken:
            raise ConfigError.rule("of", f"be one of {', '.join(taken)}", of)
        rows = [
            [
                f"[{claim.sentence}](claims.md#{claim.id})",
                claim.published or NONE,
                _measured(claim, judged),
                judged.verdict + _caveat(claim),
            ]
            for claim, judged in self.judged
            if claim.is_papers in taken[of]
        ]
        return markdown(["claim", "published", "measured", "verdict"], rows)

    def claims_part(self) -> str:
        """Give the page of claims: rule and verdict of each, under their headings."""
        lines, group, first = list[str](), "", dict[str, str]()
        for claim, judged in self.judged:
            if claim.group != group:
                group = claim.group
                lines += [f"## {group}", ""]
            lines += _claim(claim, judged, first.setdefault(claim.protocol, claim.id))
        return "\n".join(lines) + "\n"

    def reading_part(self) -> str:
        """Say which reading is chosen, and by which means."""
        reading = self.claims.reading
        rows = [
            [arm, *(self._mean(reading.studies, one, arm, reading.quantity) for one in reading.settings)]
            for arm in reading.order
        ]
        said = (
            f"Chosen: `{self.chosen}`."
            if self.chosen
            else "None: an arm lacks a seed, or no arm is near the best everywhere."
        )
        return markdown(["reading", *reading.settings], rows) + f"\n{said}\n"

    def forest_part(self, name: str) -> str:
        """Draw the intervals of all claims about differences of accuracies."""
        figure = forest(self.judged)
        return "No interval is there yet.\n" if figure is None else self.picture(name, figure)

    def corrected_part(self) -> str:
        """Say which decisions do not stand with their number corrected for (Benjamini and Hochberg 1995, at 5 %)."""
        from scipy.stats import false_discovery_control

        tested = {
            f"{claim.id} {setting}".strip(): one
            for claim, judged in self.judged
            for setting, one in judged.decided.items()
            if not math.isnan(one.p_value)
        }
        if not tested:
            return "Nothing is tested yet.\n"
        corrected = false_discovery_control([one.p_value for one in tested.values()])
        decided = [name for name, one in tested.items() if one.verdict != "undecided"]
        lost = [name for name, p in zip(tested, corrected, strict=True) if name in decided and p > 1 - LEVEL]
        names = ", ".join(f"`{name}`" for name in lost) or "none"
        return f"{len(decided)} of {len(tested)} tests decide; with the correction these do not: {names}.\n"

    def method_part(self, algorithms: str) -> str:
        """Give what was measured with a method, beside what is published of it, and the claims about these runs."""
        places = dict.fromkeys((cell.study, cell.setting, cell.arm) for cell in self.archive.places)
        found = {
            place: [*self.archive.runs(*place).values()] for place in places if not self._tunes(place[0])
        }
        names = algorithms.split(",")
        own = {place: runs[0] for place, runs in found.items() if runs[0].setting["algorithm.name"] in names}
        rows = [row for place, run in own.items() for row in self._measured_rows(*place, run)]
        told = [
            f"- [{claim.sentence}](../claims.md#{claim.id}) {judged.verdict.capitalize()}{_caveat(claim)}."
            for claim, judged in self.judged
            if any(study in claim.studies and arm in self._arms_of(claim) for study, _, arm in own)
        ]
        if not rows and self._ranked & {*names}:
            return f"{_RANKED}\n"
        table = markdown(
            ["study", "setting", "arm", "images", "rounds", "quantity", "published", "measured"], rows
        )
        parts = ([_SCALE, ""] if rows else []) + [table, *told]
        return "\n".join([*parts, ""]) if told else "\n".join(parts)

    @cached_property
    def _ranked(self) -> set[str]:
        """The methods of the leaderboard."""
        if self.board is None:
            return set()
        arms = {(cell.study, cell.arm): cell for cell in self.board.places}
        return {self.board.run(cell).setting["algorithm.name"] for cell in arms.values()}

    def _arms_of(self, claim: Claim) -> set[str | None]:
        """Give the arms of a claim by the names of their runs; one over many arms tells of none of them."""
        if isinstance(claim.rule, Prediction):
            return set()
        named = {self.claims.reading.name: self.chosen}
        return {named.get(arm, arm) for arm in claim.rule.arms}

    def _tunes(self, study: str) -> bool:
        return len(self.archive.campaign.studies[study].grid) > 1

    def _measured_rows(self, study: str, setting: str, arm: str, run: Run) -> list[list[str]]:
        wanted: Mapping[str, float | None] = run.published or {self._own(study, arm, run): None}
        images, rounds = (run.setting.get(key) for key in ("data.loader.num_train", "federation.num_rounds"))
        made = [study, setting or NONE, arm, "all" if images is None else str(images), str(rounds)]
        rows = []
        for quantity, said in wanted.items():
            published = NONE if said is None else number(said)
            rows.append([*made, quantity, published, self._mean([study], setting, arm, quantity)])
        return rows

    def _own(self, study: str, arm: str, run: Run) -> str:
        """Name what is told of a run of which nothing is published: what its first claim is of, else its accuracy."""
        for claim in self.claims.claims:
            if study in claim.studies and arm in self._arms_of(claim):
                return claim.quantity
        target = judged_by(list(run.metrics), run.setting.get("federation.target_metric"))
        return f"last5/{target}" if len(run.metrics) >= 5 else str(target)

    @cached_property
    def chosen(self) -> str | None:
        """The reading that is chosen; None where none is."""
        return self.claims.reading.chosen(self.archive.bounded)

    @cached_property
    def judged(self) -> list[tuple[Claim, Judgement]]:
        """All claims and what is decided of them, once for all pages."""
        values = self._with_reading()
        return [(claim, claim.judged(values)) for claim in self.claims.claims]

    def _with_reading(self) -> Values:
        """Give the archive's numbers, in which the chosen reading has its name."""
        name, known, chosen = self.claims.reading.name, self.archive.bounded, self.chosen

        def values(studies: Sequence[str], setting: str, arm: str, quantity: str) -> Mapping[int, float]:
            if arm != name:
                return known(studies, setting, arm, quantity)
            return known(studies, setting, chosen, quantity) if chosen else {}

        return values


def _claim(claim: Claim, judged: Judgement, protocol_of: str) -> list[str]:
    """Write one claim of the page; its protocol stands where it is that of no claim before it."""
    published = claim.published or "no number"
    protocol = claim.protocol if protocol_of == claim.id else f"That of [{protocol_of}](#{protocol_of})."
    lines = [f"### {claim.id}", "", claim.sentence, ""]
    lines += [f"- Source: {claim.source}; published: {published}.", f"- Protocol: {protocol}"]
    lines += [f"- Rule: {claim.rule.sentence(claim.quantity)}."]
    lines += [f"- {claim.note}"] if claim.note else []
    lines += [
        f"- Measured: {_measured(claim, judged)}.",
        f"- Verdict: **{judged.verdict}**{_caveat(claim)}",
        "",
    ]
    return lines


def _caveat(claim: Claim) -> str:
    return f" ({claim.caveat})" if claim.caveat else ""


def _measured(claim: Claim, judged: Judgement) -> str:
    texts = []
    for setting, one in judged.decided.items():
        text = found_text(one.found, claim.quantity)
        if one.found is not None and len(one.numbers) > 1:
            text = f"{levels_text(one.numbers, claim.quantity)}: {text}"
        texts.append(f"{setting}: {text}" if setting else text)
    return "; ".join(texts)
