"""The runs that are kept, read by study, setting, arm and seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from fedfeat.config.objective import COSTS
from fedfeat.evidence.campaign import Campaign, Cell
from fedfeat.evidence.intervals import Needed
from fedfeat.evidence.stored import is_finished, seconds
from fedfeat.evidence.tuning import chosen_point, point_scores
from fedfeat.runs.divergence import has_diverged
from fedfeat.runs.finished import Run, read_diverged, read_run
from fedfeat.runs.quantities import is_target, measured_numbers


class Archive:
    """What is kept of a campaign's finished runs.

    Attributes:
        campaign: The campaign.
        folder: Where its runs are kept.
    """

    def __init__(self, campaign: Campaign, folder: Path) -> None:
        self.campaign, self.folder = campaign, folder

    @cached_property
    def places(self) -> dict[Cell, Path]:
        """Folders of the finished runs, in the order of the campaign."""
        return self._those(is_finished)

    @cached_property
    def diverged(self) -> dict[Cell, Path]:
        """Folders of the runs that ended because a client's update was not finite, in the order of the campaign."""
        return self._those(has_diverged)

    @cached_property
    def ended(self) -> dict[Cell, Path]:
        """Folders of both."""
        return self.places | self.diverged

    def _those(self, are: Callable[[Path], bool]) -> dict[Cell, Path]:
        places = {cell: self.folder / cell.name for cell in self.campaign.cells()}
        return {cell: place for cell, place in places.items() if are(place)}

    def runs(self, study: str, setting: str, arm: str) -> dict[int, Run]:
        """Give the finished runs of an arm by seed."""
        return {cell.seed: self.run(cell) for cell in self.cells(study, setting, arm)}

    def cells(self, study: str, setting: str, arm: str) -> list[Cell]:
        """Give the finished runs of an arm, by their names."""
        asked = (study, setting, arm)
        return [cell for cell in self.places if (cell.study, cell.setting, cell.arm) == asked]

    def values(self, studies: Sequence[str], setting: str, arm: str, quantity: str) -> dict[int, float]:
        """Give a quantity of an arm's ended runs in some studies by seed: NaN of a run that has diverged.

        What reaching an accuracy took is inf of a run that never came there.
        """
        lost = (cell for cell in self.diverged if cell.study in studies)
        found = {cell.seed: math.nan for cell in lost if (cell.setting, cell.arm) == (setting, arm)}
        for seed, run in self._every(studies, setting, arm):
            numbers = measured_numbers(run, [quantity])
            if quantity in numbers:
                found[seed] = numbers[quantity]
            elif is_target(quantity, run):
                found[seed] = math.inf
        return found

    def bounded(self, studies: Sequence[str], setting: str, arm: str, quantity: str) -> dict[int, float]:
        """Give the same, but what reaching an accuracy took is finite, and says how well it is known.

        Of a run that never came there it is the cost of one evaluation more than it made, at the price of its last.
        """
        found = self.values(studies, setting, arm, quantity)
        for seed, run in self._every(studies, setting, arm):
            if is_target(quantity, run):
                found[seed] = _needed(run, quantity, found[seed])
        return found

    def step(self, studies: Sequence[str], setting: str, arm: str, quantity: str) -> float:
        """Give how well `values` are known: to a step between two evaluations, where they say what a target took."""
        if not any(is_target(quantity, run) for _, run in self._every(studies, setting, arm)):
            return 0.0
        found = self.bounded(studies, setting, arm, quantity).values()
        return max((one.step for one in found if isinstance(one, Needed)), default=0.0)

    def _every(self, studies: Sequence[str], setting: str, arm: str) -> list[tuple[int, Run]]:
        return [pair for study in studies for pair in self.runs(study, setting, arm).items()]

    def tuned(self, study: str, arm: str) -> tuple[str, Mapping[str, float]] | None:
        """Give the chosen point of an arm's grid and the scores of all; None while a run is missing."""
        cells = [cell for cell in self.campaign.studies[study].cells() if cell.arm == arm]
        places = {cell: self.ended[cell] for cell in cells if cell in self.ended}
        return (chosen_point(places), point_scores(places)) if len(places) == len(cells) else None

    def edge_mark(self, study: str, arm: str, point: str) -> str:
        """Give a star for a point with the smallest or largest learning rate of its grid: a wider one may be better."""
        points = self.campaign.studies[study].points(arm)
        rates = {name: rate for name, words in points.items() if (rate := _rate(words)) is not None}
        is_edge = len({*rates.values()}) > 1 and rates.get(point) in (
            min(rates.values()),
            max(rates.values()),
        )
        return "\\*" if is_edge else ""

    def published(self, study: str, setting: str, arm: str) -> Mapping[str, float]:
        """Give the published numbers of an arm's ended runs, whose configuration has them; {} where none has ended."""
        for cell, place in self.ended.items():
            if (cell.study, cell.setting, cell.arm) == (study, setting, arm):
                return self.run(cell).published if cell in self.places else read_diverged(place).published
        return {}

    def hours(self, study: str) -> float:
        """Give how long the ended runs of a study took, in hours of their own clocks."""
        return sum(seconds(place) for cell, place in self.ended.items() if cell.study == study) / 3600

    def run(self, cell: Cell) -> Run:
        """Read a finished run."""
        if cell not in self._known:
            self._known[cell] = read_run(self.places[cell])
        return self._known[cell]

    @cached_property
    def _known(self) -> dict[Cell, Run]:
        return {}


def _needed(run: Run, quantity: str, value: float) -> Needed:
    """Give what a target took with the cost since the evaluation before; inf is a run that never came there."""
    costs = run.metrics[COSTS[quantity.rpartition("/")[2]]].to_numpy(float)
    never = value == math.inf
    at = len(costs) - 1 if never else int(costs.searchsorted(value).clip(0, len(costs) - 1))
    step = float(costs[at] - costs[max(at - 1, 0)])
    return Needed(costs[at] + step if never else value, step, never)


def _rate(words: Sequence[str]) -> float | None:
    """Give the learning rate that some overrides set, if they set one."""
    found = [word.partition("=")[2] for word in words if word.startswith("optimizer.lr=")]
    return float(found[-1]) if found else None
