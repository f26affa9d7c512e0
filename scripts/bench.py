"""The regression watch: every workload once, beside the loop by hand, as a line of results/bench.jsonl.

    uv run python scripts/bench.py          # make bench: all workloads, a few minutes
    uv run python scripts/bench.py W2

Contestants and workloads are those of ``benchmark.py``: rounds of ours and of the loop by hand, in two processes,
alternate, and ratios are taken round by round. A line says when, of which commit and on which machine; the history of
docs/performance.md is made of all of them.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from benchmark import WORKLOADS, Workload, compare, workload

from fedfeat.evidence.bench import FILE, PAGE, Line, append, makers, spread
from fedfeat.evidence.pages import filled
from fedfeat.files import atomic_write_text
from fedfeat.runs.machine import machine
from fedfeat.runs.provenance import git_commit

BASE = "by hand, 2 processes"
# Fewer than a table of the page has: all workloads together take less than 5 minutes on 2 cores.
ROUNDS = {"W1": 20, "W2": 5, "W3": 3, "W4": 2}


def here() -> dict[str, Any]:
    """Say what the numbers depend on beside the commit."""
    facts = machine(torch.device("cpu"))
    return facts | {"torch": torch.__version__, "load": round(os.getloadavg()[0], 1)}


def measure(name: str, w: Workload, commit: str) -> Line:
    """Time one workload."""
    ran_on = here()
    with tempfile.TemporaryDirectory() as folder:
        times = compare(w, [BASE, w.best], Path(folder))
    own, base = times[w.best], times[BASE]
    seconds = (round(statistics.median(own), 5), round(statistics.median(base), 5))
    ratio = tuple(round(value, 4) for value in spread(own, base))
    return Line(name, commit, date.today().isoformat(), ran_on, w.best, BASE, seconds, ratio, w.rounds)


def main(argv: Sequence[str] | None = None) -> None:
    """Add a line for each workload as soon as it is timed, and make the page's table again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", type=workload, metavar="W", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument(
        "--rounds", type=int, help=f"rounds of each ({', '.join(f'{k} {v}' for k, v in ROUNDS.items())})"
    )
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    options = parser.parse_args(argv)
    commit = git_commit() or "unknown"  # before the first line alters a tracked file
    for name in options.workloads or WORKLOADS:
        line = measure(name, replace(WORKLOADS[name], rounds=options.rounds or ROUNDS[name]), commit)
        append(options.root / FILE, line)
        middle, low, high = line.ratio
        print(
            f"{name}: {middle:.3f} ({low:.3f}-{high:.3f}) of {line.base}, {line.seconds[0]} s/round",
            flush=True,
        )
    page = options.root / PAGE
    atomic_write_text(page, filled(page.read_text(), makers(options.root)))


if __name__ == "__main__":
    main()
