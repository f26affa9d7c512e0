"""Runs as processes of their own, several at a time; whatever was interrupted goes on where it stands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from fedfeat.config.search_path import override_of
from fedfeat.runs.directory import FAILURE, is_locked

LOG = "campaign.log"
"""File in a run's folder that has what it printed."""
_JOBS = ".submitit"
SLURM = "submitit_slurm"
"""Hydra's launcher whose jobs go on without the process that submitted them."""
_LOOK_S = 20.0

Item = TypeVar("Item", bound=Hashable)


class Process(Protocol):
    """What is asked of a run's process; `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """Give its exit code; None while it runs."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal."""

    def wait(self) -> int:
        """Wait for its end."""


class Elsewhere:
    """A run that another process goes on with, such as one whose starter was killed: it is left alone, and awaited.

    Args:
        place: Its folder.
    """

    def __init__(self, place: Path) -> None:
        self._place = place

    def poll(self) -> int | None:
        """Give 0 where nobody holds the folder any more."""
        return None if is_locked(self._place) else 0

    def send_signal(self, sig: int) -> None:
        """Leave it alone."""

    def wait(self) -> int:
        """Wait for nothing."""
        return 0


class Submitted(Elsewhere):
    """A run with a job that an earlier start has submitted to SLURM."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._waits, self._looked = True, time.monotonic()

    def poll(self) -> int | None:
        """Give 0 where the job has left the queue and nobody holds the folder; it asks SLURM every 20 seconds."""
        if self._waits and time.monotonic() - self._looked > _LOOK_S:
            self._waits, self._looked = is_submitted(self._place), time.monotonic()
        return None if self._waits else super().poll()


class Source(Protocol[Item]):
    """Who says which runs are to be made.

    Attributes:
        launcher: Hydra's launcher that starts them; None is a process of this machine.
    """

    launcher: str | None

    def ready(self, running: Sequence[Item]) -> Item | None:
        """Give a run that can be started; None where there is none now."""

    def start(self, item: Item) -> Process:
        """Start a run, or go on with it."""

    def refused(self, item: Item, error: OSError) -> None:
        """Take note that a run cannot be started."""

    def ended(self, item: Item, code: int) -> None:
        """Take note of the end of a process."""


def start_run(
    place: Path,
    words: Sequence[str],
    launcher: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Start a run, or go on with it; its output goes to `LOG` in its folder.

    Args:
        place: Its folder.
        words: Its overrides.
        launcher: Hydra's launcher that starts it; None is a process of this machine.
        environment: Environment variables beside or instead of this process's.
    """
    place = place.absolute()
    place.mkdir(parents=True, exist_ok=True)
    if is_locked(place):
        return Elsewhere(place)
    if launcher == SLURM and is_submitted(place):
        return Submitted(place)
    # Of an earlier start: what this one fails by is said by itself.
    (place / FAILURE).unlink(missing_ok=True)
    with (place / LOG).open("ab") as log:
        # A group of its own: Ctrl-C reaches this process alone, which passes it on once.
        return subprocess.Popen(
            command_of(place, words, launcher), stdout=log, stderr=subprocess.STDOUT,
            env=os.environ | (environment or {}), start_new_session=True,
        )  # fmt: skip


def command_of(place: Path, words: Sequence[str], launcher: str | None = None) -> list[str]:
    """Give the command line of a run; see `start_run`."""
    where = [override_of("hydra.run.dir", str(place))]
    if launcher:  # a sweep of one, whatever axes its preset has
        where = [
            "--multirun",
            f"hydra/launcher={launcher}",
            override_of("hydra.sweep.dir", str(place)),
            "hydra.sweep.subdir=.",
            "hydra.sweeper.params=null",
        ]
    # Options stand before overrides, as argparse wants them.
    return [sys.executable, "-m", "fedfeat", *where, *words]


def end_run(process: Process, place: Path, launcher: str | None = None) -> None:
    """Ask a run to end after its round, with a checkpoint; its jobs on a cluster are cancelled.

    Args:
        process: Its process, or the one that waits for its jobs.
        place: Its folder.
        launcher: See `start_run`.
    """
    if launcher == SLURM and (jobs := _jobs(place)):
        subprocess.run(["scancel", *jobs], capture_output=True, check=False)
    leave_run(process, launcher)


def is_submitted(place: Path) -> bool:
    """Whether a job that was submitted for a run waits or runs on SLURM; it may where SLURM gives no answer."""
    if not (jobs := _jobs(place)):
        return False
    command = ["squeue", "--noheader", "--array", "--me", "--format=%i"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError:  # of another machine's runs
        return False
    return said.returncode != 0 or not {*jobs}.isdisjoint(said.stdout.split())


def _jobs(place: Path) -> list[str]:
    return [path.name for path in (place / _JOBS).glob("[0-9]*")]


def leave_run(process: Process, launcher: str | None = None) -> None:
    """Ask a run of this machine to end after its round, with a checkpoint; jobs of a cluster go on by themselves.

    Args:
        process: See `end_run`.
        launcher: See `start_run`.
    """
    if launcher not in (None, SLURM) and isinstance(process, subprocess.Popen) and process.poll() is None:
        # Jobs of this machine are of the group of the process that waits for them, and go on after SIGTERM.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
    process.send_signal(signal.SIGTERM)


def note(place: Path, line: str) -> None:
    """Write a last line into a run's log, for whoever looks at it."""
    with (place / LOG).open("a") as log:
        log.write(f"{line}\n")


def failure(place: Path) -> str:
    """Give the sentence that a run has left, else the last line of its log that is not empty."""
    with suppress(OSError):
        return (place / FAILURE).read_text(errors="replace").strip()
    with suppress(OSError):
        if lines := (place / LOG).read_text(errors="replace").strip().splitlines():
            return lines[-1]
    return "no output"


def work(
    source: Source[Item],
    at_once: int,
    pause_s: float = 1.0,
    look: Callable[[Mapping[Item, Process]], None] | None = None,
) -> Generator[dict[Item, Process]]:
    """Make all runs, giving those under way after every pause; closed early, it lets them save and stop.

    Args:
        source: Says which.
        at_once: So many runs at a time.
        pause_s: Seconds between two looks.
        look: Called with those under way before every pause.
    """
    running: dict[Item, Process] = {}
    try:
        while True:
            for item in [item for item, process in running.items() if process.poll() is not None]:
                source.ended(item, running.pop(item).poll() or 0)
            while len(running) < at_once and (ready := source.ready([*running])) is not None:
                try:
                    running[ready] = source.start(ready)
                except OSError as error:
                    source.refused(ready, error)
            if look:
                look(running)
            yield running
            if not running:
                return
            time.sleep(pause_s)
    finally:
        for process in running.values():
            leave_run(process, source.launcher)
        for process in running.values():
            process.wait()
