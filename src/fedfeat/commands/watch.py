"""Watch the runs of a sweep, a campaign or a study while they are made, by their files alone.

uv run fedfeat-watch logs/sweeps/lr
uv run fedfeat-watch logs/tune/digits-fedprox --every 10
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedfeat.config.command_line import Parser
from fedfeat.runs.text import broken_name

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group
    from rich.text import Text

    from fedfeat.evidence.watching import Watched

_FRAME = 4  # lines of a terminal that are no runs


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script ``fedfeat-watch``."""
    args = _parser().read(arguments)
    from rich.console import Console

    console = Console()
    if args.once or not console.is_terminal:
        console.print(_drawn(args.folders))
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _follow(args.folders, args.every, console)
    except KeyboardInterrupt:
        console.print(_drawn(args.folders, console.height))


def _follow(folders: Sequence[Path], every: float, console: Console) -> None:
    from rich.live import Live

    finished: dict[Path, Watched] = {}
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(_drawn(folders, console.height, finished), refresh=True)
            time.sleep(every)


def _drawn(
    folders: Sequence[Path], height: int | None = None, finished: dict[Path, Watched] | None = None
) -> Group:
    from fedfeat.evidence.watching import watched

    return draw(watched(*folders, finished=finished), height)


def draw(runs: Sequence[Watched], height: int | None = None) -> Group:
    """Draw a line per run, those that want attention first.

    Args:
        runs: In the order in which they are shown.
        height: Lines of the terminal; what finds no room is counted. None is as many as it takes.
    """
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Column, Table
    from rich.text import Text

    from fedfeat.evidence.progress import duration
    from fedfeat.evidence.watching import STATES

    counts = [(sum(run.state == state for run in runs), state) for state in STATES]
    heading = ", ".join(f"{number} {state}" for number, state in counts if number) or "no run yet"
    table = Table(Column("run", ratio=1), box=None, pad_edge=False, expand=True)
    for name in ("", "round", "acc", "val acc", "left"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    fitting = runs if height is None else _fitting(runs, max(2, height - _FRAME))
    for run in fitting:
        done, total = (run.standing.round_idx, run.standing.num_rounds) if run.standing else (0, 0)
        bar = ProgressBar(total=max(total, 1), completed=done, width=8)
        left = duration(run.seconds_left) if run.seconds_left is not None else run.state
        cells = [_number(run.accuracy), _number(run.validation)]
        table.add_row(_Name(run.name), bar, f"{done}/{total}" if total else "", *cells, left)
        if run.said:
            # What is cut off may be the place of an error.
            table.add_row(Text(f"  {run.said}", style="dim", overflow="fold"))
    more = [f"... and {len(runs) - len(fitting)} more"] if len(fitting) < len(runs) else []
    return Group(Text(heading), table, *map(Text, more))


@dataclass(frozen=True)
class _Name:
    """A run's name, which takes several lines where its column is narrow."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        yield Text(broken_name(self.text, options.max_width))


def _fitting(runs: Sequence[Watched], room: int) -> list[Watched]:
    """Give the first runs, of which each takes a line, and another for its sentence."""
    found: list[Watched] = []
    for run in runs:
        room -= 2 if run.said else 1
        if room < 0:
            break
        found.append(run)
    return found


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _parser() -> Parser:
    parser = Parser("fedfeat-watch", __doc__)
    parser.add_folders()
    parser.add_argument(
        "--once", action="store_true", help="print one table, and end; so it does without a terminal"
    )
    parser.add_looks(2.0, "between two looks")
    return parser


if __name__ == "__main__":
    main()
