"""What every change does to the speed: a line for each workload of each benchmark, and the table made of them."""

from __future__ import annotations

import fcntl
import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedfeat.errors import ConfigError
from fedfeat.evidence.pages import Maker
from fedfeat.evidence.wording import markdown
from fedfeat.files import atomic_write_bytes

FILE = "results/bench.jsonl"
PAGE = "docs/performance.md"


@dataclass(frozen=True)
class Line:
    """One workload of one benchmark.

    Attributes:
        workload: Its name.
        commit: Of the source tree.
        date: Day, as 2026-11-22.
        machine: What it ran on, as `runs.machine`; ``torch``; and ``load``, the processes that ran before.
        ours: Overrides of our contestant.
        base: Name of the contestant that ratios refer to.
        seconds: Median seconds of a round, ours and the base's.
        ratio: Ours over the base's, round by round: median, smallest and largest.
        rounds: Rounds that were timed.
    """

    workload: str
    commit: str
    date: str
    machine: Mapping[str, Any]
    ours: str
    base: str
    seconds: tuple[float, float]
    ratio: tuple[float, float, float]
    rounds: int

    @property
    def benchmark(self) -> tuple[str, str, str]:
        """Day, commit and machine, without what changes from hour to hour."""
        place = f"{self.machine['cpu']}, {self.machine['cores']} cores, torch {self.machine['torch']}"
        return self.date, self.commit, place

    @property
    def text(self) -> str:
        """The ratio as tables write it."""
        middle, low, high = (f"{value:.2f}".lstrip("0") for value in self.ratio)
        return f"{middle} ({low}-{high})"


def spread(own: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Give median, smallest and largest of the ratios own / base, round by round."""
    ratios = [one / other for one, other in zip(own, base, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def append(path: Path, line: Line) -> None:
    """Put a line at the end of a file that has all of its lines at any time, whoever else adds some."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _held(path.parent):
        read(path)
        before = path.read_bytes() if path.exists() else b""
        atomic_write_bytes(path, before + json.dumps(asdict(line)).encode() + b"\n")


def read(path: Path) -> list[Line]:
    """Read all lines.

    Raises:
        ConfigError: One of them is none.
    """
    found = []
    text = path.read_text() if path.exists() else ""
    for number, one in enumerate(text.splitlines(), start=1):
        try:
            found.append(Line(**json.loads(one)))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{path}, line {number}, must be that of a benchmark, but it is not ({error})."
            ) from error
    if text and not text.endswith("\n"):
        raise ConfigError(f"{path} must end with a whole line, but its last one is cut.")
    return found


def history(lines: Sequence[Line]) -> str:
    """Give a table, a row for each benchmark and a column for each workload, and what our contestants were last."""
    names = sorted({line.workload for line in lines})
    rows: list[dict[str, Line]] = []
    for line in lines:
        if (
            not rows
            or line.workload in rows[-1]
            or line.benchmark not in {one.benchmark for one in rows[-1].values()}
        ):
            rows.append({})
        rows[-1][line.workload] = line
    table = markdown(["date", "commit", *names, "load", "machine"], [_row(names, row) for row in rows])
    last = {line.workload: line for line in lines}
    words = [f"- {name}: `{last[name].ours}` over {last[name].base}" for name in names]
    return "\n".join([table, *words, ""])


def _row(names: Sequence[str], row: Mapping[str, Line]) -> list[str]:
    date, commit, place = next(iter(row.values())).benchmark
    digest, *dirty = commit.split("-")
    load = max(line.machine["load"] for line in row.values())
    cells = [row[name].text if name in row else "" for name in names]
    return [date, "-".join([digest[:10], *dirty]), *cells, str(load), place]


def makers(root: Path) -> dict[str, Maker]:
    """Give the parts of the page that are made of the lines.

    Args:
        root: The checkout.
    """
    return {"history": lambda: history(read(root / FILE))}


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
