"""Tables and figures of pages that are made from a campaign's stored runs, in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedfeat.errors import ConfigError
from fedfeat.evidence.archive import Archive
from fedfeat.evidence.association import association
from fedfeat.evidence.campaign import Study
from fedfeat.evidence.campaign_yaml import among
from fedfeat.evidence.leaderboard import HEADER, rows, trials
from fedfeat.evidence.pages import Maker
from fedfeat.evidence.wording import NONE, apart_text, association_text, markdown, mean_text, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Tables:
    """Makes parts of pages; each method that is called NAME_part is one, by its name.

    Attributes:
        archive: The runs.
        figures: Where pictures are written to; pages name them by ``figures/NAME.png``.
    """

    def __init__(self, archive: Archive, figures: Path) -> None:
        self.archive, self.figures = archive, figures

    def makers(self) -> dict[str, Maker]:
        """Give all parts by name."""
        ending = "_part"
        return {name.removesuffix(ending): getattr(self, name) for name in dir(self) if name.endswith(ending)}

    def accuracy_part(self, studies: str, quantity: str, arms: str = "", settings: str = "") -> str:
        """Give quantities: a line per arm, a column per setting and quantity, mean and interval over seeds.

        Raises:
            ConfigError: Runs have ended, and none has a quantity.
        """
        lines, wanted = self._arms(studies, arms), quantity.split(",")
        columns = {
            (setting, one): [self._mean(studies.split(","), setting, arm, one) for arm in lines]
            for one in wanted
            for setting in self._settings(studies, settings)
        }
        if any(cell.study in studies.split(",") for cell in self.archive.ended):
            for one in wanted:
                if all({*texts} == {NONE} for (_, name), texts in columns.items() if name == one):
                    raise ConfigError.rule("quantity", f"be one that a run of {studies} has", one)
        rows = [
            [arm, *line] for arm, *line in zip(lines, *columns.values(), strict=True) if {*line} != {NONE}
        ]
        header = [
            setting if setting and one == quantity else f"{setting} {one}".strip() for setting, one in columns
        ]
        return markdown(["arm", *header], rows)

    def published_part(self, study: str) -> str:
        """Set what a paper or a public code says of each arm beside what is measured, in the quantity that it says."""
        rows = []
        for setting in self._settings(study, ""):
            for arm in self._arms(study, ""):
                for quantity, said in self.archive.published(study, setting, arm).items():
                    measured = self._mean([study], setting, arm, quantity)
                    rows.append([setting or study, arm, quantity, number(said), measured])
        return markdown(["setting", "arm", "quantity", "published", "measured"], rows)

    def tuning_part(self, study: str) -> str:
        """Give the scores of every point of a grid, the chosen one of each arm in bold, with a star at the grid's edge.

        Raises:
            ConfigError: Its arms have points of their own, which `trials_part` lists.
        """
        (found_study,) = self._studies(study)
        points = [*found_study.grid]
        if found_study.own:
            raise ConfigError.rule("tuning study", "be one without own, which trials lists", study)
        rows = []
        for arm in found_study.arms:
            found = self.archive.tuned(study, arm)
            if found is not None:
                chosen, scores = found
                texts = {point: number(scores[point]) for point in points}
                texts[chosen] = f"**{texts[chosen]}**{self.archive.edge_mark(study, arm, chosen)}"
                rows.append([arm, *texts.values()])
        return markdown(["arm", *points], rows)

    def leaderboard_part(self, study: str, setting: str) -> str:
        """Give a line per method, the best first: accuracies, and what the rounds cost."""
        return markdown(HEADER, rows(self.archive, study, setting))

    def trials_part(self, study: str) -> str:
        """Say of every method how often its hyperparameters were tried, and what was chosen on validation data."""
        return markdown(["method", "trials", "chosen", "validation"], trials(self.archive, study))

    def curves_part(
        self, name: str, studies: str, metric: str, setting: str = "", arms: str = "", x: str = "round"
    ) -> str:
        """Draw a quantity over the rounds, or a cost, a curve per arm with its spread over seeds."""
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
        return self.picture(name, convergence(curves, x, metric, setting))

    def predicts_part(self, studies: str, quantities: str, target: str) -> str:
        """Say how well each of some quantities predicts another over the arms: rank correlation, p, arms."""
        rows, settings = [], self._settings(studies, "")
        for quantity in quantities.split(","):
            found = [
                association(self._means(studies, one, quantity), self._means(studies, one, target))
                for one in settings
            ]
            rows.append([quantity, *map(association_text, found)])
        return markdown(["quantity", *(one or target for one in settings)], rows)

    def _means(self, studies: str, setting: str, quantity: str) -> dict[str, float]:
        arms = self._arms(studies, "")
        found = {arm: self.archive.values(studies.split(","), setting, arm, quantity) for arm in arms}
        return {arm: sum(one.values()) / len(one) for arm, one in found.items() if one}

    def apart_part(self, studies: str, one: str, other: str, quantity: str) -> str:
        """Say how far two arms that should be equal come apart, from seed to seed and in a mean of three."""
        settings = self._settings(studies, "")
        numbers = [
            [self.archive.values(studies.split(","), setting, arm, quantity) for arm in (one, other)]
            for setting in settings
        ]
        gaps = [left[seed] - right[seed] for left, right in numbers for seed in left.keys() & right.keys()]
        return apart_text(gaps)

    def hours_part(self) -> str:
        """Say how many runs each study has and how long they took, then all of them."""
        rows, studies = [], self.archive.campaign.studies
        ended = Counter(cell.study for cell in self.archive.ended)
        hours = {study: self.archive.hours(study) for study in filter(ended.get, studies)}
        for study, spent in hours.items():
            every = sum(1 for _ in studies[study].cells())
            rows.append([study, f"{ended[study]} of {every}", f"{spent:.1f}"])
        if rows:
            rows.append(["all of these", str(ended.total()), f"{sum(hours.values()):.1f}"])
        return markdown(["study", "runs", "hours"], rows)

    def commits_part(self) -> str:
        """Name the commits that made the runs; one that went on under another counts for both."""
        counts = dict[str, int]()
        for cell in self.archive.places:
            summary = self.archive.run(cell).summary
            for commit in summary.get("git_commits") or [summary.get("git_commit")]:
                counts[str(commit)[:10]] = counts.get(str(commit)[:10], 0) + 1
        return ", ".join(f"{commit} ({number})" for commit, number in sorted(counts.items())) + "\n"

    def picture(self, name: str, figure: Figure) -> str:
        """Save a figure; give the line that shows it."""
        from fedfeat.runs.figures import save_figure

        save_figure(figure, self.figures / f"{name}.png")
        return f"![{name}](figures/{name}.png)\n"

    def _mean(self, studies: Sequence[str], setting: str, arm: str, quantity: str) -> str:
        """Write what is measured of an arm, mean and interval over seeds; `NONE` where no run has ended."""
        asked = (studies, setting, arm, quantity)
        return mean_text(self.archive.values(*asked), quantity, self.archive.step(*asked))

    def _studies(self, studies: str) -> list[Study]:
        known = self.archive.campaign.studies
        among("studies", studies.split(","), [*known], "campaign", "studies")
        return [known[study] for study in studies.split(",")]

    def _arms(self, studies: str, arms: str) -> list[str]:
        return _chosen("arms", arms, [arm for study in self._studies(studies) for arm in study.arms])

    def _settings(self, studies: str, settings: str) -> list[str]:
        every = [one for study in self._studies(studies) for one in study.settings]
        return _chosen("settings", settings, every)


def _chosen(key: str, text: str, every: Sequence[str]) -> list[str]:
    if text:
        among(key, text.split(","), every, what=key)
    return text.split(",") if text else [*dict.fromkeys(every)]
