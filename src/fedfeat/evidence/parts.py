"""The parts of pages that are made from stored runs: tables, figures, verdicts, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedfeat.evidence.archive import Archive
from fedfeat.evidence.association import association
from fedfeat.evidence.claims import Claim, Claims, Judgement, Values
from fedfeat.evidence.forest import forest
from fedfeat.evidence.intervals import Interval, mean_interval
from fedfeat.evidence.pages import Maker
from fedfeat.runs.text import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NONE = "-"


class Parts:
    """Makes the parts of pages; each public method but `makers` is one, by its name.

    Attributes:
        archive: The runs.
        claims: The claims.
        figures: Where pictures are written to; pages name them by ``figures/NAME.png``.
    """

    def __init__(self, archive: Archive, claims: Claims, figures: Path) -> None:
        self.archive, self.claims, self.figures = archive, claims, figures

    def makers(self) -> dict[str, Maker]:
        """Give all parts by name."""
        names = (
            "summary",
            "claims",
            "reading",
            "accuracy",
            "tuning",
            "curves",
            "forest",
            "predicts",
            "hours",
            "commits",
        )
        return {name: getattr(self, f"{name}_part") for name in names}

    def summary_part(self) -> str:
        """Give one line for each claim: what is claimed, published, measured, decided."""
        rows = [
            [
                f"[{claim.claim}](claims.md#{claim.id})",
                claim.published or _NONE,
                _measured(claim, judged),
                judged.verdict,
            ]
            for claim, judged in self.judged()
        ]
        return markdown(["claim", "published", "measured", "verdict"], rows)

    def claims_part(self) -> str:
        """Give the page of claims: rule and verdict of each, under their headings."""
        lines, group = list[str](), ""
        for claim, judged in self.judged():
            if claim.group != group:
                group = claim.group
                lines += [f"## {group}", ""]
            lines += _claim(claim, judged)
        return "\n".join(lines) + "\n"

    def reading_part(self) -> str:
        """Say which reading is chosen, and by which means."""
        reading, values = self.claims.reading, self.archive.values
        rows = []
        for arm in reading.order:
            found = [values(reading.studies, one, arm, reading.quantity) for one in reading.settings]
            rows.append([arm, *map(_mean, found)])
        chosen = reading.chosen(values)
        said = f"Chosen: `{chosen}`." if chosen else "Not all of it has three seeds yet."
        return markdown(["reading", *reading.settings], rows) + f"\n{said}\n"

    def accuracy_part(self, studies: str, quantity: str, arms: str = "", settings: str = "") -> str:
        """Give a table of a quantity: a line per arm, a column per setting, mean and interval over seeds."""
        chosen, rows = self._settings(studies, settings), []
        for arm in self._arms(studies, arms):
            found = [self.archive.values(studies.split(","), one, arm, quantity) for one in chosen]
            if any(found):
                rows.append([arm, *map(_mean, found)])
        return markdown(["arm", *(one or quantity for one in chosen)], rows)

    def tuning_part(self, study: str) -> str:
        """Give the scores of every point of a grid, the chosen one of each arm in bold."""
        points = [*self.archive.campaign.studies[study].grid]
        rows = []
        for arm in self.archive.campaign.studies[study].arms:
            found = self.archive.tuned(study, arm)
            if found is not None:
                chosen, scores = found
                texts = [_number(scores[point]) for point in points]
                rows.append(
                    [arm, *(f"**{t}**" if p == chosen else t for p, t in zip(points, texts, strict=True))]
                )
        return markdown(["arm", *points], rows)

    def curves_part(self, name: str, studies: str, metric: str, setting: str = "", arms: str = "") -> str:
        """Draw a quantity over the rounds, a curve per arm with its spread over seeds."""
        from fedfeat.runs.figures import convergence

        found = {
            arm: [
                run.metrics
                for study in studies.split(",")
                for run in self.archive.runs(study, setting, arm).values()
            ]
            for arm in self._arms(studies, arms)
        }
        curves = {arm: runs for arm, runs in found.items() if runs}
        if not curves:
            return "No run is finished yet.\n"
        return self._picture(name, convergence(curves, y=metric, title=setting))

    def forest_part(self, name: str) -> str:
        """Draw the intervals of all claims about differences of accuracies."""
        figure = forest(self.judged())
        return "No interval is there yet.\n" if figure is None else self._picture(name, figure)

    def _picture(self, name: str, figure: Figure) -> str:
        from fedfeat.runs.figures import save_figure

        save_figure(figure, self.figures / f"{name}.png")
        return f"![{name}](figures/{name}.png)\n"

    def predicts_part(self, studies: str, quantities: str, target: str) -> str:
        """Say how well each of some quantities predicts another over the arms: rank correlation, p, arms."""
        rows, settings = [], self._settings(studies, "")
        for quantity in quantities.split(","):
            found = [
                association(self._means(studies, one, quantity), self._means(studies, one, target))
                for one in settings
            ]
            rows.append(
                [quantity, *(f"{_number(a.rho)} (p {_number(a.p_value)}, {a.num_arms} arms)" for a in found)]
            )
        return markdown(["quantity", *settings], rows)

    def _means(self, studies: str, setting: str, quantity: str) -> dict[str, float]:
        arms = self._arms(studies, "")
        found = {arm: self.archive.values(studies.split(","), setting, arm, quantity) for arm in arms}
        return {arm: sum(one.values()) / len(one) for arm, one in found.items() if one}

    def hours_part(self) -> str:
        """Say how many runs each study has and how long they took."""
        rows = []
        for study in self.archive.campaign.studies:
            done = sum(cell.study == study for cell in self.archive.places)
            if done:
                every = sum(1 for _ in self.archive.campaign.studies[study].cells())
                rows.append([study, f"{done} of {every}", f"{self.archive.hours(study):.1f}"])
        return markdown(["study", "finished runs", "hours of one core"], rows)

    def commits_part(self) -> str:
        """Name the commits that made the runs."""
        counts = dict[str, int]()
        for cell in self.archive.places:
            commit = str(self.archive.run(cell).summary.get("git_commit"))[:10]
            counts[commit] = counts.get(commit, 0) + 1
        return ", ".join(f"{commit} ({number})" for commit, number in sorted(counts.items())) + "\n"

    def judged(self) -> list[tuple[Claim, Judgement]]:
        """Decide all claims."""
        values = self._with_reading()
        return [(claim, claim.judged(values)) for claim in self.claims.claims]

    def _with_reading(self) -> Values:
        """Give the archive's numbers, in which the chosen reading has its name."""
        reading, known = self.claims.reading, self.archive.values
        chosen = reading.chosen(known)

        def values(studies: Sequence[str], setting: str, arm: str, quantity: str) -> Mapping[int, float]:
            if arm != reading.name:
                return known(studies, setting, arm, quantity)
            return known(studies, setting, chosen, quantity) if chosen else {}

        return values

    def _arms(self, studies: str, arms: str) -> list[str]:
        every = [arm for study in studies.split(",") for arm in self.archive.campaign.studies[study].arms]
        return arms.split(",") if arms else [*dict.fromkeys(every)]

    def _settings(self, studies: str, settings: str) -> list[str]:
        every = [one for study in studies.split(",") for one in self.archive.campaign.studies[study].settings]
        return settings.split(",") if settings else [*dict.fromkeys(every)]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table, or that it has no rows yet."""
    return markdown_table(header, rows) if rows else "No run is finished yet.\n"


def _claim(claim: Claim, judged: Judgement) -> list[str]:
    """Write one claim of the page."""
    published = claim.published or "no number"
    lines = [f"### {claim.id}", "", claim.claim, ""]
    lines += [f"- Source: {claim.source}; published: {published}.", f"- Protocol: {claim.protocol}"]
    lines += [f"- Rule: {claim.rule.sentence(claim.quantity)}."]
    lines += [f"- {claim.note}"] if claim.note else []
    lines += [f"- Measured: {_measured(claim, judged)}.", f"- Verdict: **{judged.verdict}**", ""]
    return lines


def _measured(claim: Claim, judged: Judgement) -> str:
    texts = []
    for setting, found in judged.found.items():
        text = "not yet" if found is None else _interval(found)
        texts.append(f"{setting}: {text}" if setting else text)
    return "; ".join(texts)


def _interval(found: Interval) -> str:
    """Write ``mean [low, high]`` and the number of seeds."""
    seeds = f"{found.num_seeds} seed{'s' if found.num_seeds > 1 else ''}"
    if not math.isfinite(found.low) and not math.isfinite(found.high):
        return f"{_number(found.mean)} ({seeds})"
    return f"{_number(found.mean)} [{_number(found.low)}, {_number(found.high)}] ({seeds})"


def _mean(values: Mapping[int, float]) -> str:
    """Write ``mean ± half of the interval`` of values by seed, and their number where it is not three."""
    if not values:
        return _NONE
    found = mean_interval([*values.values()])
    half = (found.high - found.low) / 2
    text = f"{_number(found.mean)} ± {_number(half)}" if math.isfinite(half) else _number(found.mean)
    return text if found.num_seeds == 3 else f"{text} ({found.num_seeds})"


def _number(value: float) -> str:
    """Write a share with three places, what is counted with one."""
    if not math.isfinite(value):
        return "never" if value == math.inf else str(value)
    return f"{value:.3f}" if abs(value) < 2 else f"{value:.1f}"
