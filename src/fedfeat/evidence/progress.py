"""Where a campaign stands: a line per study, and the time that is left."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedfeat.evidence.campaign import Cell
from fedfeat.evidence.lengths import standing
from fedfeat.evidence.queue import Queue


def overview(queue: Queue, running: Collection[Cell], at_once: int) -> Group:
    """Draw runs by study, those under way with their rounds, failures with their sentence."""
    every = queue.campaign.cells()
    ended = queue.places(every)
    left = queue.left()
    when = duration(sum(left.values()) / at_once if left or not queue.open() else None)
    heading = f"{queue.campaign.key}: {len(ended)} of {len(every)} runs, {when} left"
    table = Table(box=None, pad_edge=False)
    table.add_column("study")
    table.add_column("runs", justify="right")
    table.add_column("under way", overflow="fold")
    for study in queue.campaign.ordered():
        cells = [*study.cells()]
        lines = [_line(queue, cell) for cell in cells if cell in running]
        lines += [f"{_short(cell)} failed, {queue.failed[cell]}" for cell in cells if cell in queue.failed]
        done = sum(cell in ended for cell in cells)
        # As text: what failed runs say is no markup, and may have brackets.
        table.add_row(Text(study.name), f"{done}/{len(cells)}", Text("\n".join(lines)))
    return Group(Text(heading), table)


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
