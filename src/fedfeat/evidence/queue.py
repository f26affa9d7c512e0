"""Runs the cells of a campaign: several at a time, each in a process of its own, whatever was interrupted goes on."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedfeat.config.explain import explain
from fedfeat.errors import ConfigError
from fedfeat.evidence import stored
from fedfeat.evidence.campaign import Campaign, Cell
from fedfeat.evidence.lengths import expected, length, standing
from fedfeat.evidence.processes import Process, failure, start_run, work
from fedfeat.evidence.tuning import chosen_point
from fedfeat.runs.directory import is_locked

_ALIKE = 3
"""Runs in a row that fail with one sentence before no other is started: what they lack, the others lack."""


def program_of(name: str) -> str | None:
    """Find a program: a console script of this environment, which need not be on the path, or any other on it."""
    return shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)


@dataclass
class Queue:
    """The runs of a campaign and where they stand.

    Attributes:
        campaign: What is asked for.
        runs: Folder of the runs.
        kept: Folder of what is kept of finished ones.
        launcher: Hydra's launcher that starts each run; None is a process of this machine.
        extra: Overrides of where and how fast runs are made, which fix no numbers.
        until: When it has to end, in seconds since the epoch: no run is begun that would take longer.
        failed: Runs that ended with an error in this process, with its last line.
    """

    campaign: Campaign
    runs: Path
    kept: Path
    launcher: str | None = None
    extra: Sequence[str] = ()
    until: float = math.inf
    failed: dict[Cell, str] = field(default_factory=dict)
    _last: deque[str] = field(default_factory=lambda: deque(maxlen=_ALIKE))
    _again: set[Cell] = field(default_factory=set)
    _settled: dict[Cell, Path] = field(default_factory=dict)
    _points: dict[tuple[Cell, ...], tuple[str, ...]] = field(default_factory=dict)

    def settled(self, cell: Cell) -> Path | None:
        """Give the folder of a run that is finished or has diverged, here or among what was kept; None if nowhere."""
        # What has ended stays so, and a display asks for all runs every second.
        if cell not in self._settled:
            places = (self.runs / cell.name, self.kept / cell.name)
            found = next((place for place in places if stored.has_ended(place)), None)
            if found is None:
                return None
            self._settled[cell] = found
        return self._settled[cell]

    def places(self, cells: Iterable[Cell]) -> dict[Cell, Path]:
        """Give the folders of those of some runs that have ended."""
        return {cell: place for cell in cells if (place := self.settled(cell)) is not None}

    def words(self, cell: Cell) -> tuple[str, ...] | None:
        """Give a run's overrides; None while those that it is tuned by have not ended."""
        point: tuple[str, ...] = ()
        tuning = self.campaign.tuning_of(cell)
        if tuning:
            places = self.places(tuning)
            if len(places) < len(tuning):
                return None
            point = self._point(tuple(tuning), places)
        return self.campaign.words_of(cell, point)

    def _point(self, tuning: tuple[Cell, ...], places: Mapping[Cell, Path]) -> tuple[str, ...]:
        if tuning not in self._points:
            study, _, arm, *_ = tuning[0]
            self._points[tuning] = self.campaign.studies[study].points(arm)[chosen_point(places)]
        return self._points[tuning]

    def check(self, cell: Cell) -> None:
        """Refuse a run that has begun with other overrides.

        Raises:
            ConfigError: It has, or what is kept of it was made with others.
        """
        words, place, kept = self.words(cell), self.runs / cell.name, self.kept / cell.name
        if words is None:
            return
        if self.has_begun(cell):
            stored.check_words(place, words)
        if stored.has_ended(kept):
            stored.check_words(kept, words)

    def has_begun(self, cell: Cell) -> bool:
        """Whether a run was accepted once, here."""
        return (self.runs / cell.name / "config.yaml").exists()

    def collect(self, cell: Cell) -> None:
        """Keep the small files of a run if it has ended and is not kept yet, after what follows a finished one.

        Raises:
            ConfigError: It was made with other overrides, or what is kept of it was.
        """
        place, words = self.settled(cell), self.words(cell)
        if place is None or words is None:
            return
        self.check(cell)
        target = self.kept / cell.name
        if stored.has_ended(target):
            return
        study = self.campaign.studies[cell.study]
        follows = cell.arm in study.then and stored.is_finished(place)
        if follows and not self._followed(cell, place, study.then[cell.arm]):
            return
        stored.keep(place, target, words, study.keeps)

    def _followed(self, cell: Cell, place: Path, command: Sequence[str]) -> bool:
        """Call what follows a run, in a folder of its own there; False where it fails."""
        folder = place.absolute() / stored.THEN
        folder.mkdir(exist_ok=True)
        words = [program_of(command[0]) or command[0], *command[1:], str(folder.parent)]
        environment = os.environ | {**self.campaign.environment}
        try:
            subprocess.run(
                words,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            said = (getattr(error, "stderr", None) or "").strip() or str(error)
            self.failed[cell] = f"{command[0]} after the run: {said.splitlines()[-1]}"
            return False
        return True

    @property
    def given_up(self) -> bool:
        """Whether the last runs of this process all failed with one sentence."""
        return len(self._last) == _ALIKE and len({*self._last}) == 1 and self._last[0] != ""

    def open(self) -> list[Cell]:
        """Give the runs that have not ended and have not failed in this process, in the order of the campaign."""
        cells = self.campaign.cells()
        return [cell for cell in cells if cell not in self.failed and self.settled(cell) is None]

    def left(self) -> dict[Cell, float]:
        """Estimate the seconds that each open run has still to go; {} where nothing is known."""
        known = {cell: length(place) for cell, place in self.places(self.campaign.cells()).items()}
        open_ones = self.open()
        begun = {cell: found for cell in open_ones if (found := standing(self.runs / cell.name))}
        own = {cell: whole for cell, found in begun.items() if (whole := found.whole())}
        words = {cell: self.campaign.words_of(cell) for cell in (*known, *open_ones)}
        lengths = expected(known | own, words) | own
        spent = {cell: found.seconds for cell, found in begun.items()}
        return {cell: max(length - spent.get(cell, 0.0), 0.0) for cell, length in lengths.items()}

    def ready(self, running: Sequence[Cell]) -> Cell | None:
        """Give the first run that can be started, and ends in time; None where there is none, or where `given_up`."""
        if self.given_up:
            return None
        rest = self.until - time.time()
        left = self.left() if rest < math.inf else {}
        for cell in self.open():
            in_time = left.get(cell, 0.0) <= rest
            if cell not in running and in_time and self.words(cell) is not None:
                return cell
        return None

    def start(self, cell: Cell) -> Process:
        """Start a run, or go on with it; its output goes to a file in its folder."""
        words = self.words(cell)
        assert words is not None
        root = {} if "FEDFEAT_ROOT" in os.environ else {"FEDFEAT_ROOT": str(self.runs.absolute())}
        return start_run(
            self.runs / cell.name, (*words, *self.extra), self.launcher, root | {**self.campaign.environment}
        )

    def work(self, at_once: int, pause_s: float = 1.0) -> Generator[dict[Cell, Process]]:
        """Make all runs; see `processes.work`.

        What ends while they are asked to stop is kept, too, unless a command follows it, which the next start calls.
        """
        begun = self.open()
        try:
            yield from work(self, at_once, pause_s)
        finally:
            for cell in self.places(cell for cell in begun if cell not in self.failed):
                follows = cell.arm in self.campaign.studies[cell.study].then
                if not follows and not stored.has_ended(self.kept / cell.name):
                    self.ended(cell, 0)

    def refused(self, cell: Cell, error: OSError) -> None:
        """Take note of a run that cannot be started; the others go on."""
        self.failed[cell] = explain(error)
        self._note_last(cell)

    def ended(self, cell: Cell, code: int) -> None:
        """Keep what an ended run has left, or the last line of one that failed.

        A run that has saved its round and stopped, for somebody else's process was asked to, goes on once more; one
        that somebody else's process holds is awaited.
        """
        place = self.runs / cell.name
        if self.settled(cell) is None:
            if is_locked(place):
                return
            if code == 0 and cell not in self._again:
                self._again.add(cell)
                return
            self.failed[cell] = f"exit {code}: {failure(place)}"
        try:
            self.collect(cell)
        except (ConfigError, OSError) as error:
            # The others go on; the next start is refused with it.
            self.failed[cell] = explain(error)
        self._note_last(cell)

    def _note_last(self, cell: Cell) -> None:
        self._last.append(self.failed.get(cell, "").replace(str(self.runs.absolute() / cell.name), "RUN"))
