"""Where a campaign stands: a line per study, and the time that is left."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from functools import cache
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedfeat.evidence.campaign import Cell
from fedfeat.evidence.lengths import standing
from fedfeat.evidence.processes import LOG, failure
from fedfeat.evidence.queue import Queue
from fedfeat.runs.directory import FAILURE
from fedfeat.runs.divergence import has_diverged


def overview(queue: Queue, running: Collection[Cell], at_once: int) -> Group:
    """Draw runs by study, those under way or stopped with their rounds, and below them why runs have failed."""
    every = queue.campaign.cells()
    ended = queue.places(every)
    left = queue.left()
    when = duration(sum(left.values()) / at_once if left or not queue.open() else None)
    table = Table(box=None, pad_edge=False)
    table.add_column("study")
    table.add_column("runs", justify="right")
    table.add_column("not ended", overflow="fold")
    failed = {cell: said for cell in every if (said := _failure(queue, cell, running, ended))}
    lost = f", {len(failed)} failed" if failed else ""
    heading = f"{queue.campaign.key}: {len(ended)} of {len(every)} runs{lost}, {when} left"
    for study in queue.campaign.ordered():
        cells = [*study.cells()]
        lines = [
            f"{_short(cell)} failed" if cell in failed else _line(queue, cell, running)
            for cell in cells
            if cell in failed or cell not in ended
        ]
        done = [ended[cell] for cell in cells if cell in ended]
        diverged = sum(map(_diverged, done))
        counted = f"{len(done)}/{len(cells)}" + (f", {diverged} diverged" if diverged else "")
        # As text: what failed runs say is no markup, and may have brackets.
        table.add_row(Text(study.name), counted, Text("\n".join(filter(None, lines))))
    return Group(Text(heading), table, *map(Text, _sentences(queue, failed)))


@cache
def _diverged(place: Path) -> bool:
    """Say it of an ended run, once: it stays so, and a display asks for all runs every second."""
    return has_diverged(place)


def _failure(queue: Queue, cell: Cell, running: Collection[Cell], ended: Container[Cell]) -> str:
    """Give why a run has failed, in this process or before it; nothing where it has not."""
    place = queue.runs / cell.name
    if cell in queue.failed or cell in running or cell in ended:
        return queue.failed.get(cell, "")
    if (place / FAILURE).exists():
        return failure(place)
    # A run that was refused has said so, and written nothing else; one that has just begun has said nothing yet.
    spoke = (place / LOG).exists() and (place / LOG).stat().st_size > 0
    return failure(place) if spoke and not (place / "config.yaml").exists() else ""


def _sentences(queue: Queue, failed: Mapping[Cell, str]) -> list[str]:
    """Give each sentence once, with the runs that ended by it."""
    alike: dict[str, list[Cell]] = {}
    for cell, said in failed.items():
        alike.setdefault(said.replace(str(queue.runs.absolute() / cell.name), "RUN"), []).append(cell)
    return [
        f"{cells[0].name}{f' and {len(cells) - 1} more' if cells[1:] else ''}: {failed[cells[0]]}"
        for cells in alike.values()
    ]


def _line(queue: Queue, cell: Cell, running: Collection[Cell]) -> str:
    found = standing(queue.runs / cell.name)
    if cell not in running:
        return f"{_short(cell)} stopped at round {found.round_idx}/{found.num_rounds}" if found else ""
    return f"{_short(cell)} round {found.round_idx}/{found.num_rounds}" if found else f"{_short(cell)} begins"


def _short(cell: Cell) -> str:
    return cell.name.partition("/")[2]


def duration(seconds: float | None) -> str:
    """Write how long something takes, in hours and minutes, or in seconds."""
    if seconds is None:
        return "unknown time"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
