"""Run what is left of a campaign, or say where it stands.

    uv run python scripts/campaign.py results/evidence.yaml              # all that is left of it, two runs at a time
    uv run python scripts/campaign.py results/evidence.yaml --status     # where it stands; also while it works
    uv run python scripts/campaign.py results/evidence.yaml --jobs 32 --launcher submitit_slurm

Runs lie below $FEDFEAT_CAMPAIGNS (~/.local/share/fedfeat/campaigns), in a folder by the campaign's key, so that any
checkout goes on with them. Ctrl-C or SIGTERM lets the runs under way save their round, where that takes no more than
a minute; the next start goes on with the last that is saved.
The small files of finished runs are copied to --into.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live

from fedfeat.config.command_line import Parser, number
from fedfeat.config.conditions import integer, interval
from fedfeat.config.explain import explain
from fedfeat.errors import ConfigError, UserError
from fedfeat.evidence.campaign import Cell
from fedfeat.evidence.campaign_file import read_campaign
from fedfeat.evidence.processes import SLURM, Process, is_submitted
from fedfeat.evidence.progress import overview
from fedfeat.evidence.queue import Queue
from fedfeat.evidence.stored import campaigns_root, check_neutral
from fedfeat.loggers.round_bar import Terminal
from fedfeat.runs.directory import is_locked, locked


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command.

    It ends with 1 where a run has failed, with 2 and one sentence for a refusal, and with 130 where it was interrupted.
    """
    options = _options(argv)
    try:
        code = _perform(options)
    except (UserError, OSError) as error:
        print(explain(error), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(code)


def _perform(options: argparse.Namespace) -> int:
    campaign = read_campaign(options.file)
    check_neutral(options.extra)
    runs = (options.runs or campaigns_root()) / campaign.key
    until = time.time() + 3600 * options.hours
    queue = Queue(campaign, runs, options.into or Path(campaign.into), options.launcher, options.extra, until)
    console = Terminal()
    if options.status:
        for cell in campaign.cells():
            queue.check(cell)
        running = [
            cell for cell in queue.open() if is_locked(runs / cell.name) or is_submitted(runs / cell.name)
        ]
        console.print(overview(queue, running, options.jobs))
        return 0
    make_folder(runs, "--runs" if options.runs else "FEDFEAT_CAMPAIGNS")
    make_folder(queue.kept, "--into" if options.into else "into")
    with locked(runs, ".campaign.lock", f"campaign {campaign.key}"):
        with console.status("Composing what was not run yet, and keeping what has ended."):
            # With it comes torch, which takes seconds.
            from fedfeat.commands.campaign_check import check_composed

            slow = check_composed(queue)
            for cell in campaign.cells():
                queue.collect(cell)
        for said in slow:
            console.print(said, markup=False)
        interrupted = _work(queue, options.jobs, console)
    left = len(queue.open())
    if queue.given_up:
        console.print("The last runs failed alike, so no other was started.")
    elif interrupted:
        console.print(f"Stopped: {left} left, with which the same command goes on.")
    elif options.hours < math.inf and left:
        console.print(f"--hours {options.hours:g} went this far: {left} left for the next time.")
    return 130 if interrupted else int(bool(queue.failed))


def make_folder(folder: Path, key: str) -> None:
    """Make a folder that is to be written to.

    Args:
        folder: The folder.
        key: What was set to it, for the refusal.

    Raises:
        ConfigError: It cannot be made, or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"{key} must be a folder that can be written, but {folder} is not: {error.strerror}."
        ) from error


def _work(queue: Queue, at_once: int, console: Console) -> bool:
    """Make the runs; True where it was interrupted."""
    jobs = queue.launcher == SLURM
    left = "jobs that are submitted go on by themselves" if jobs else "the runs under way save their round"

    def stop(number: int, frame: FrameType | None) -> None:
        console.print(f"Stopping: {left}.")
        signal.default_int_handler(number, frame)

    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, stop)
    interrupted, shown, running = True, set[Cell](), dict[Cell, Process]()
    live = Live(console=console, refresh_per_second=1)

    def show(cells: Sequence[Cell]) -> None:
        # Without a terminal a table that is updated would be written but once, and without an end of its line.
        (live.update if console.is_terminal else console.print)(overview(queue, cells, at_once))

    with live:
        with suppress(KeyboardInterrupt), closing(queue.work(at_once)) as course:
            for running in course:
                if console.is_terminal or (running and shown != {*running}):
                    shown = {*running}
                    show([*running])
                if time.time() >= queue.until:
                    console.print(f"The hours are over: {left}.")
                    break
            interrupted = False
        show([*running] if jobs else [])
    return interrupted


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("campaign.py", __doc__)
    parser.epilog = (
        "Ctrl-C lets runs save their round; the same command goes on. docs/campaigns.md has examples."
    )
    parser.add_argument("file", type=Path, help="the campaign, a YAML file")
    parser.add_argument("--jobs", type=number(integer(1)), default=2, metavar="N", help="runs at a time (2)")
    parser.add_argument(
        "--hours",
        type=number(interval("(0, inf)")),
        default=math.inf,
        metavar="H",
        help="end by then: what would take longer is not begun",
    )
    parser.add_argument(
        "--launcher", metavar="NAME", help="a hydra/launcher for each run, e.g. submitit_slurm"
    )
    parser.add_with()
    parser.add_argument("--into", type=Path, metavar="DIR", help="instead of the file's into, or results/KEY")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="instead of $FEDFEAT_CAMPAIGNS")
    parser.add_argument("--status", action="store_true", help="say where it stands, and end")
    return parser.read(argv)
