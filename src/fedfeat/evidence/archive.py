"""The runs that are kept, read by study, setting, arm and seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from fedfeat.evidence.campaign import Campaign, Cell
from fedfeat.evidence.stored import has_diverged, is_finished, seconds
from fedfeat.evidence.tuning import chosen_point, point_scores
from fedfeat.runs.finished import Run, read_run
from fedfeat.runs.quantities import COSTS, measured_numbers


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
        """Give a quantity of an arm's finished runs in some studies by seed.

        What reaching an accuracy took is inf of a run that never came there.
        """
        found = dict[int, float]()
        for seed, run in ((s, r) for study in studies for s, r in self.runs(study, setting, arm).items()):
            numbers = measured_numbers(run, [quantity])
            if quantity in numbers:
                found[seed] = numbers[quantity]
            elif quantity.startswith("to_target/"):
                found[seed] = float("inf")
        return found

    def bounded(self, studies: Sequence[str], setting: str, arm: str, quantity: str) -> dict[int, float]:
        """Give the same, finite: what a run that never came there would have needed at least.

        It is the cost of one evaluation more than the run made, at the price of its last.
        """
        found = self.values(studies, setting, arm, quantity)
        for seed, run in ((s, r) for study in studies for s, r in self.runs(study, setting, arm).items()):
            if found.get(seed) == float("inf"):
                before, last = run.metrics[COSTS[quantity.rpartition("/")[2]]].to_numpy(float)[-2:]
                found[seed] = float(2 * last - before)
        return found

    def tuned(self, study: str, arm: str) -> tuple[str, Mapping[str, float]] | None:
        """Give the chosen point of an arm's grid and the scores of all; None while a run is missing."""
        cells = [cell for cell in self.campaign.studies[study].cells() if cell.arm == arm]
        places = {cell: self.ended[cell] for cell in cells if cell in self.ended}
        return (chosen_point(places), point_scores(places)) if len(places) == len(cells) else None

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
