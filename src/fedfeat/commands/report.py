"""Aggregate runs over seeds, draw their curves, set measured beside published numbers.

    uv run fedfeat-report logs/multiruns/2026-01-01 --metric personal/acc_mean --out report

Runs whose configurations differ in nothing but the seed are one setting. Spread is the sample standard
deviation.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedfeat.errors import UserError
from fedfeat.files import atomic_write_bytes, atomic_write_text
from fedfeat.runs.figures import convergence, save_figure
from fedfeat.runs.finished import Run, find_runs, group_runs, measured_numbers
from fedfeat.runs.text import format_bytes

AXES = {
    "round": "round",
    "bytes": "comm/total_bytes",
    "examples": "compute/examples",
    "seconds": "time/total_s",
}
# Columns of the printed and the Markdown table, beside --metric and the targets; report.csv has everything.
MAIN_METRICS = (
    *("global/acc", "global/client_acc_mean", "global/client_acc_worst"),
    *("personal/acc_mean", "local_pre_agg/acc_mean"),
)


@dataclass(frozen=True)
class Row:
    """One line of report.csv: a quantity of a group of runs; `num_runs` counts those that have it.

    Without any of them there is no mean: that is a target which a paper reached and no run.
    """

    group: str
    quantity: str
    mean: float | None
    std: float | None
    num_runs: int
    published: float | None = None

    def text(self) -> str:
        """Write ``mean ± std``, and the published number where there is one."""
        write = format_bytes if self.quantity.endswith("bytes") else "{:.4g}".format
        parts = [write(value) for value in (self.mean, self.std) if value is not None]
        measured = " ± ".join(parts) or "-"
        return measured if self.published is None else f"{measured} (published {write(self.published)})"

    def difference(self) -> float | None:
        """Give measured less published, where there are both."""
        return None if self.mean is None or self.published is None else self.mean - self.published


def aggregate(groups: dict[str, list[Run]]) -> list[Row]:
    """Average every final metric and the cost of reaching every target over the runs of each group."""
    rows = []
    for label, runs in groups.items():
        flat = [measured_numbers(run) for run in runs]
        published = {
            name: value for run in runs for name, value in run.published.items() if _is_number(value)
        }
        costs = [name for name in published if name.startswith("to_target/")]
        for name in dict.fromkeys([*(name for one in flat for name in one), *costs]):
            values = [float(one[name]) for one in flat if _is_number(one.get(name))]
            if values or name in costs:
                mean = fmean(values) if values else None
                std = stdev(values) if len(values) > 1 else None
                rows.append(Row(label, name, mean, std, len(values), published.get(name)))
    return rows


def table(
    groups: dict[str, list[Run]], rows: Sequence[Row], metric: str
) -> tuple[list[str], list[list[str]]]:
    """Lay out the main metrics: header and one line per group."""
    found = {(row.group, row.quantity): row for row in rows}
    names = [row.quantity for row in rows]
    published = [row.quantity for row in rows if row.published is not None]
    costs = _costs_to_target(rows)
    columns = [name for name in dict.fromkeys([metric, *published, *MAIN_METRICS, *costs]) if name in names]
    lines = []
    for label, runs in groups.items():
        cells = [found.get((label, name)) for name in columns]
        lines.append([label, str(len(runs)), *(_cell(row, len(runs)) for row in cells)])
    return ["setting", "runs", *columns], lines


def write_report(groups: dict[str, list[Run]], rows: Sequence[Row], args: argparse.Namespace) -> list[Path]:
    """Write report.csv, the curves and report.md into ``args.out`` and give the paths."""
    curves = {label: [run.metrics for run in runs] for label, runs in groups.items()}
    names = []
    for axis in args.x or ("round", "bytes", "examples"):
        names.append(f"curves_{axis}.png")
        save_figure(convergence(curves, AXES[axis], args.metric), args.out / names[-1])
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["setting", "quantity", "mean", "std", "num_runs", "published", "difference"])
    for row in rows:
        numbers = [row.mean, row.std, row.num_runs, row.published, row.difference()]
        writer.writerow([row.group, row.quantity, *numbers])
    atomic_write_bytes(args.out / "report.csv", buffer.getvalue().encode())
    header, lines = table(groups, rows, args.metric)
    text = [
        _markdown([header, ["---"] * len(header), *lines]),
        "Mean ± sample standard deviation over runs.",
        "",
    ]
    text += [f"![{args.metric} over {name[7:-4]}]({name})" for name in names]
    text += ["", "Runs:", "", *(f"- {label}: {_origins(runs)}" for label, runs in groups.items()), ""]
    atomic_write_text(args.out / "report.md", "\n".join(text))
    return [args.out / name for name in ("report.csv", "report.md", *names)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script ``fedfeat-report``."""
    parser = argparse.ArgumentParser("fedfeat-report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="run directories, or folders of them"
    )
    parser.add_argument("--metric", default="global/acc", help="what the curves show (%(default)s)")
    parser.add_argument(
        "--x", action="append", choices=AXES, help="axis of a curve; may be repeated (first three)"
    )
    parser.add_argument("--out", type=Path, default=Path("logs/report"), help="where to write (%(default)s)")
    args = parser.parse_args(arguments)
    runs, skipped = find_runs(args.folders)
    for line in skipped:
        print(line, file=sys.stderr)
    if not runs:
        where = ", ".join(map(str, args.folders))
        _exit(f"DIR must hold at least one finished run, but there is none in {where}.")
    groups = group_runs(runs)
    rows = aggregate(groups)
    try:
        paths = write_report(groups, rows, args)
    except (UserError, OSError) as error:
        _exit(str(error))
    _show(*table(groups, rows, args.metric), paths)


def _exit(sentence: str) -> None:
    print(sentence, file=sys.stderr)
    raise SystemExit(2)


def _show(header: list[str], lines: list[list[str]], paths: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    # Labels and names of metrics are longer than a terminal has room for: broken, not cut.
    shown = Table(*(Column(name, overflow="fold") for name in header))
    shown.columns[0].min_width = min(max((len(line[0]) for line in lines), default=0), 36)
    for line in lines:
        shown.add_row(*line)
    console = Console()
    console.print(shown, markup=False)
    for path in paths:
        console.print(str(path), soft_wrap=True, highlight=False, markup=False)


def _cell(row: Row | None, num_runs: int) -> str:
    if row is None:
        return "-"
    return row.text() if row.num_runs == num_runs else f"{row.text()} ({row.num_runs}/{num_runs} runs)"


def _costs_to_target(rows: Sequence[Row]) -> list[str]:
    """Choose the one target to show: of those that most settings reach, the highest."""
    reached = [row.quantity for row in rows if row.num_runs and row.quantity.startswith("to_target/")]
    targets = [quantity.split("/")[1] for quantity in reached]
    if not targets:
        return []
    best = max(set(targets), key=lambda target: (targets.count(target), float(target)))
    return [f"to_target/{best}/rounds", f"to_target/{best}/bytes"]


def _markdown(lines: list[list[str]]) -> str:
    return (
        "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        + "\n"
    )


def _origins(runs: Sequence[Run]) -> str:
    return ", ".join(f"seed {run.summary['seed']} (`{run.path}`)" for run in runs)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


if __name__ == "__main__":
    main()
