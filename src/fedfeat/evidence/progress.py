"""Where a campaign stands: a line per study, and the time that is left."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from yaml import YAMLError

from fedfeat.evidence import stored
from fedfeat.evidence.campaign import Cell
from fedfeat.evidence.queue import Queue
from fedfeat.runs.tables import METRICS, rows_so_far


class Standing(NamedTuple):
    """One run that has begun.

    Attributes:
        round_idx: Its last evaluated round.
        num_rounds: Rounds in all.
        seconds: What the rounds took so far.
    """

    round_idx: int
    num_rounds: int
    seconds: float

    def whole(self) -> float | None:
        """Estimate the seconds of the whole run, by its rounds so far; None before the first."""
        return self.seconds * self.num_rounds / self.round_idx if self.round_idx else None


def standing(place: Path) -> Standing | None:
    """Read where a run stands; None where it has not begun."""
    rows = rows_so_far(place / METRICS)
    if not rows:
        return None
    with suppress(OSError, ValueError, KeyError, TypeError, YAMLError):
        return standing_of(rows, stored.federation(place))
    return None


def standing_of(rows: Sequence[Mapping[str, str]], federation: Mapping[str, Any]) -> Standing | None:
    """Say where a run stands by the rows of its metrics and its configuration's section of that name."""
    with suppress(ValueError, KeyError, TypeError, IndexError):
        last = rows[-1]
        return Standing(int(last["round"]), federation["num_rounds"], float(last["time/total_s"]))
    return None


def seconds_left(queue: Queue, ended: Mapping[Cell, Path], at_once: int) -> float | None:
    """Estimate the time that is left: each open run takes as long as its study's runs did, else as all did."""
    known: dict[str, list[float]] = {}
    left: list[tuple[Cell, float]] = []
    for cell in queue.campaign.cells():
        if cell in ended:
            known.setdefault(cell.study, []).append(stored.seconds(ended[cell]))
        elif cell not in queue.failed:
            found = standing(queue.runs / cell.name)
            whole = found.whole() if found else None
            left.append((cell, found.seconds if found else 0.0))
            if whole:
                known.setdefault(cell.study, []).append(whole)
    every = [one for found in known.values() for one in found]
    if not every:
        return None
    total = sum(max(median(known.get(cell.study, every)) - done, 0.0) for cell, done in left)
    return total / at_once


def overview(queue: Queue, running: Collection[Cell], at_once: int) -> Group:
    """Draw runs by study, those under way with their rounds, failures with their sentence."""
    every = queue.campaign.cells()
    ended = queue.places(every)
    left = duration(seconds_left(queue, ended, at_once))
    heading = f"{queue.campaign.key}: {len(ended)} of {len(every)} runs, {left} left"
    table = Table(box=None, pad_edge=False)
    table.add_column("study")
    table.add_column("runs", justify="right")
    table.add_column("under way", overflow="fold")
    for study in queue.campaign.ordered():
        cells = [*study.cells()]
        lines = [_line(queue, cell) for cell in cells if cell in running]
        lines += [f"{_short(cell)} failed, {queue.failed[cell]}" for cell in cells if cell in queue.failed]
        done = sum(cell in ended for cell in cells)
        table.add_row(study.name, f"{done}/{len(cells)}", "\n".join(lines))
    return Group(heading, table)


def _line(queue: Queue, cell: Cell) -> str:
    found = standing(queue.runs / cell.name)
    return f"{_short(cell)} round {found.round_idx}/{found.num_rounds}" if found else f"{_short(cell)} begins"


def _short(cell: Cell) -> str:
    return cell.name.partition("/")[2]


def duration(seconds: float | None) -> str:
    """Write how long something takes, in hours and minutes, or in seconds."""
    if seconds is None:
        return "unknown time"
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
