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
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live

from fedfeat.config.command_line import Parser, number
from fedfeat.config.conditions import integer, interval
from fedfeat.errors import ConfigError, UserError
from fedfeat.evidence.campaign_file import read_campaign
from fedfeat.evidence.processes import SLURM
from fedfeat.evidence.progress import overview
from fedfeat.evidence.queue import Queue
from fedfeat.evidence.stored import campaigns_root
from fedfeat.runs.directory import fixes_numbers, key_of, locked


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command.

    It ends with 1 where a run has failed, with 2 and one sentence for a refusal, and with 130 where it was interrupted.
    """
    options = _options(argv)
    try:
        code = _perform(options)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    sys.exit(code)


def _perform(options: argparse.Namespace) -> int:
    campaign = read_campaign(options.file)
    for word in options.extra:
        if "=" not in word or fixes_numbers(key_of(word)):
            rule = "be an override that changes no number, such as executor=ray"
            raise ConfigError.rule("--with", rule, word)
    runs = (options.runs or campaigns_root()) / campaign.key
    until = time.time() + 3600 * options.hours
    queue = Queue(campaign, runs, options.into, options.launcher, options.extra, until)
    console = Console()
    if options.status:
        running = [
            cell for cell in campaign.cells() if (runs / cell.name).exists() and not queue.settled(cell)
        ]
        console.print(overview(queue, running, options.jobs))
        return 0
    runs.mkdir(parents=True, exist_ok=True)
    with locked(runs, ".campaign.lock", "--runs"):
        for cell in campaign.cells():
            queue.collect(cell)
        interrupted = _work(queue, options.jobs, console)
    for cell, sentence in queue.failed.items():
        console.print(f"{cell.name}: {sentence}", soft_wrap=True, markup=False)
    if queue.given_up:
        console.print("The last runs failed alike, so no other was started.")
    elif options.hours < math.inf and not interrupted and (left := len(queue.open())):
        console.print(f"--hours {options.hours:g} went this far: {left} left for the next time.")
    return 130 if interrupted else int(bool(queue.failed))


def _work(queue: Queue, at_once: int, console: Console) -> bool:
    """Make the runs; True where it was interrupted."""
    jobs = queue.launcher == SLURM
    left = "jobs that are submitted go on by themselves" if jobs else "the runs under way save their round"

    def stop(number: int, frame: FrameType | None) -> None:
        console.print(f"Stopping: {left}.")
        signal.default_int_handler(number, frame)

    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, stop)
    done: set[str] = set()
    with (
        suppress(KeyboardInterrupt),
        closing(queue.work(at_once)) as course,
        Live(console=console, refresh_per_second=1) as live,
    ):
        for running in course:
            if console.is_terminal:
                live.update(overview(queue, [*running], at_once))
            elif done != {cell.name for cell in running}:
                done = {cell.name for cell in running}
                console.print(overview(queue, [*running], at_once))
            if time.time() >= queue.until:
                console.print(f"The hours are over: {left}.")
                break
        return False
    return True


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
    parser.add_argument("--with", dest="extra", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--into", type=Path, default=Path("results/runs"), metavar="DIR", help="(results/runs)"
    )
    parser.add_argument("--runs", type=Path, metavar="DIR", help="instead of $FEDFEAT_CAMPAIGNS")
    parser.add_argument("--status", action="store_true", help="say where it stands, and end")
    return parser.read(argv)
