"""A campaign: a queue of runs in one file, each known by study, setting, arm and seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Cell(NamedTuple):
    """One run of a campaign.

    Attributes:
        study: What it belongs to.
        setting: The study's second axis, such as a partition; empty where it has none.
        arm: What is compared.
        point: The point of the grid, where the study tunes; empty otherwise.
        seed: Its seed.
    """

    study: str
    setting: str
    arm: str
    point: str
    seed: int

    @property
    def name(self) -> str:
        """Its folder below the campaign's."""
        parts = (self.study, self.setting, self.arm, self.point, f"seed_{self.seed}")
        return "/".join(part for part in parts if part)


@dataclass(frozen=True)
class Tuned:
    """Where a study takes what its arms are tuned to.

    Attributes:
        study: The study with the grid.
        alike: Arms that take what another was tuned to, by name.
    """

    study: str
    alike: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """Runs that belong together: arms by settings by seeds.

    Attributes:
        name: Its name.
        words: Overrides of every run.
        arms: Overrides by arm.
        settings: Overrides by setting; one without a name where there is no such axis.
        grid: Overrides by point of the grid that is tried for every arm; one without a name where nothing is tuned.
        own: Of some arms, overrides by point of what each has beside the grid, to be tried with every point of it.
        seeds: The seeds.
        priority: Lower is earlier.
        tuned: Whose choices its arms take, or None.
        keeps: Files of a run that are kept beside those of every run, below its folder.
        then: Of some arms, a command that follows a finished run, with the run's folder as its last word. It is called
            in a folder there, of which tables are kept.
    """

    name: str
    words: tuple[str, ...]
    arms: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, tuple[str, ...]]
    grid: Mapping[str, tuple[str, ...]]
    seeds: tuple[int, ...]
    priority: float = 0.0
    tuned: Tuned | None = None
    keeps: tuple[str, ...] = ()
    then: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def points(self, arm: str) -> dict[str, tuple[str, ...]]:
        """Give the overrides of everything that is tried for an arm, by name."""
        own = self.own.get(arm, {"": ()})
        return {
            "/".join(name for name in (common, further) if name): (*words, *more)
            for common, words in self.grid.items()
            for further, more in own.items()
        }

    def cells(self) -> Iterator[Cell]:
        """Give its runs: seed by seed, so that what is compared is there together."""
        for seed in self.seeds:
            for setting in self.settings:
                for points in zip(*map(self.points, self.arms), strict=True):
                    for arm, point in zip(self.arms, points, strict=True):
                        yield Cell(self.name, setting, arm, point, seed)


@dataclass(frozen=True)
class Campaign:
    """What a file asks for.

    Attributes:
        key: Name of the folder that holds its runs, whatever checkout they are started from.
        words: Overrides of every run.
        environment: Environment variables of every run.
        studies: By name.
        into: Folder of what is kept of its runs, as seen from where the command is called.
    """

    key: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    studies: Mapping[str, Study]
    into: str = "results"

    def ordered(self) -> list[Study]:
        """Give the studies in the order in which their runs are to be made."""
        return sorted(self.studies.values(), key=lambda study: study.priority)

    def cells(self) -> list[Cell]:
        """Give all runs in the order in which they are to be made."""
        return [cell for study in self.ordered() for cell in study.cells()]

    def words_of(self, cell: Cell, point: Sequence[str] = ()) -> tuple[str, ...]:
        """Give the overrides of a run, without its directory.

        Args:
            cell: The run.
            point: What its arm is tuned to.
        """
        study = self.studies[cell.study]
        parts = (self.words, study.words, study.settings[cell.setting], study.arms[cell.arm], point)
        return (
            *(word for part in parts for word in part),
            *study.points(cell.arm)[cell.point],
            f"seed={cell.seed}",
        )

    def tuning_of(self, cell: Cell) -> list[Cell]:
        """Give the runs that decide what a run's arm is tuned to; none where nothing is."""
        tuned = self.studies[cell.study].tuned
        if tuned is None:
            return []
        arm = tuned.alike.get(cell.arm, cell.arm)
        return [other for other in self.studies[tuned.study].cells() if other.arm == arm]
