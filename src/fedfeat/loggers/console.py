"""The terminal: a progress bar with the current metrics, or a plain line per evaluated round."""

from __future__ import annotations

import os
import shlex
import time
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfeat.loggers.base import RoundLogger, RunInfo
from fedfeat.runs.records import RoundRecord
from fedfeat.runs.text import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedfeat.loggers.round_bar import RoundBar

SHOWN = {
    "global/acc": "acc {:.4f}",
    "personal/acc_mean": "personal {:.4f}",
    "train/loss": "loss {:.4f}",
    "comm/total_bytes": "comm {}",
}
# What a run is for comes first in the table of final metrics, what it took comes last.
_FIRST = (
    *("global/acc", "global/client_acc", "personal/acc", "local_pre_agg/acc", "final_all/acc", "val/acc"),
    *("global/", "personal/", "val/", "train/"),
)
_LAST = ("clients/", "comm/", "compute/", "time/")


class ConsoleLogger(RoundLogger):
    """Show a run while it goes on, and a table of its final metrics.

    Args:
        console: Where to write; None is standard output. Without a terminal (a pipe, a batch job) there is no
            bar but one line per evaluated round.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._bar: RoundBar | None = None
        self._pictures: dict[str, Path] = {}

    def start(self, run: RunInfo) -> None:
        """Show the bar, at the resumed round."""
        from fedfeat.loggers.round_bar import RoundBar, Terminal

        self._console = self._console or Terminal()
        self._run, self._num_rounds = run, run.num_rounds
        self._latest: dict[str, float] = {}
        self._started, self._num_logged = time.perf_counter(), 0
        if self._console.is_terminal:
            self._bar = RoundBar(run.num_rounds, run.resumed_round or 0, self._console)
            self._bar.start()

    def log(self, record: RoundRecord) -> None:
        """Advance the bar, or print a line if the round was evaluated."""
        self._latest.update(record.metrics)
        if record.round_idx > 0:
            self._num_logged += 1
        else:  # What other loggers took to start is of no round.
            self._started = time.perf_counter()
        parts = self._describe()
        if self._bar is not None:
            with suppress(OSError):  # a terminal that is gone ends no run
                self._bar.show(record.round_idx, parts)
        elif record.evaluated:
            self._print("  ".join((f"round {record.round_idx}/{self._num_rounds}", *parts)))

    def picture(self, name: str, path: Path) -> None:
        """Keep where a picture is, of several with one name the newest, for the end."""
        self._pictures[name] = path

    def finish(self, summary: dict[str, Any]) -> None:
        """Print the table of final metrics, then where the pictures are and what draws more."""
        self.close()
        if self._console is None:
            return
        self._print(summary_table(summary))
        for name, path in self._pictures.items():
            self._print(f"{name}: {_from_here(path)}")
        # Networks of a pool have no neurons in common.
        if self._run.kind == "run" and not self._run.config.get("pool"):
            self._print("Which class each neuron works for, of each client:")
            uv = "uv run " if "UV_RUN_RECURSION_DEPTH" in os.environ else ""
            self._print(f"  {uv}fedfeat-features {shlex.quote(_from_here(self._run.run_dir))} --refit")

    def close(self, failed: bool = False) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            with suppress(OSError):
                self._bar.stop()

    def _describe(self) -> tuple[str, ...]:
        parts = [
            form.format(format_bytes(self._latest[name]) if name.startswith("comm/") else self._latest[name])
            for name, form in SHOWN.items()
            if name in self._latest
        ]
        if self._num_logged:
            parts.append(f"{(time.perf_counter() - self._started) / self._num_logged:.3g} s/round")
        return tuple(parts)

    def _print(self, what: str | Table) -> None:
        if self._console is not None:
            with suppress(OSError):
                is_text = isinstance(what, str)
                self._console.print(what, soft_wrap=is_text, highlight=False, markup=False)


def summary_table(summary: dict[str, Any]) -> Table:
    """Lay out the final metrics beside those of the best round on validation data, if there is one."""
    from rich.table import Column, Table

    best = summary.get("best_val") or {}
    rounds = summary.get("num_rounds")
    title = f"{summary.get('algorithm', '')}, {rounds} round{'s' * (rounds != 1)}, seed {summary.get('seed')}"
    table = Table(Column("metric", overflow="fold"), title=title, title_justify="left")
    shown = {"last": summary.get("final", {})} | ({"best on validation": best} if best else {})
    for heading in shown:
        table.add_column(heading, justify="right")
    for name in sorted(shown["last"], key=_place):
        table.add_row(name, *(_cell(name, values.get(name)) for values in shown.values()))
    targets = summary.get("to_target") or {}
    reached = [target for target, cost in targets.items() if cost]
    for words, together in groupby(reached, key=lambda target: _cost(targets[target])):
        table.add_row(f"to {', '.join(together)}", words)
    if missed := [target for target, cost in targets.items() if not cost]:
        table.add_row("not reached", ", ".join(missed))
    return table


def _cost(cost: dict[str, Any]) -> str:
    return f"round {cost['rounds']}, {format_bytes(cost['bytes'])}"


def _from_here(path: Path) -> str:
    """Write a path as short as one can give it to the next command: from the current folder, if it lies below."""
    whole = os.path.abspath(path)
    short = os.path.relpath(whole)
    return whole if short.startswith(os.pardir) else short


def _place(name: str) -> int:
    """Give the place of a metric's kind among all kinds; what is of no known kind stands in the middle."""
    for number, start in enumerate(_FIRST):
        if name.startswith(start):
            return number - len(_FIRST)
    return next((number for number, start in enumerate(_LAST, start=1) if name.startswith(start)), 0)


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, int | float):
        return str(value or "")
    return format_bytes(value) if name.endswith("_bytes") else f"{value:.6g}"
