"""Aggregate runs over seeds, draw their curves, set measured beside published numbers.

    uv run fedfeat-report logs/multiruns/2026-01-01 --metric personal/acc_mean --out report

Runs whose configurations differ in nothing but the seed are one setting. Spread is the sample standard
deviation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfeat.errors import UserError
from fedfeat.files import atomic_write_text
from fedfeat.runs.figures import convergence, save_figure
from fedfeat.runs.finished import Run, find_runs, group_runs, measured_numbers
from fedfeat.runs.text import format_bytes

if TYPE_CHECKING:
    import pandas as pd

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


def aggregate(groups: dict[str, list[Run]]) -> pd.DataFrame:
    """Average every final metric and the cost of reaching every target over the runs of each group.

    Returns:
        What report.csv holds, by setting and quantity: ``mean``, ``std``, ``num_runs`` (that have the quantity; none of
        a target which a paper reached and no run), ``published`` and ``difference``.
    """
    import pandas as pd

    runs = [(label, run) for label, group in groups.items() for run in group]
    published = {(label, name): value for label, run in runs for name, value in _numbers(run.published)}
    measured = [(label, *number) for label, run in runs for number in _numbers(measured_numbers(run))]
    missed = [(*key, float("nan")) for key in published if key[1].startswith("to_target/")]
    values = pd.DataFrame([*measured, *missed], columns=["setting", "quantity", "value"])
    by_quantity = values.astype({"value": float}).groupby(["setting", "quantity"], sort=False).value
    rows = by_quantity.agg(["mean", "std", "count"]).rename(columns={"count": "num_runs"})
    rows["published"] = [float(published.get(key, "nan")) for key in rows.index]
    return rows.assign(difference=rows["mean"] - rows["published"])


def table(groups: dict[str, list[Run]], rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Lay out the main metrics as text, one line per group."""
    import pandas as pd

    names = rows.index.get_level_values("quantity")
    shown = [metric, *names[rows.published.notna()], *MAIN_METRICS, *_costs_to_target(rows)]
    columns: dict[str, list[str]] = {
        "setting": list(groups),
        "runs": [str(len(runs)) for runs in groups.values()],
    }
    for name in (name for name in dict.fromkeys(shown) if name in names):
        cells = {label: rows.loc[(label, name)] for label in groups if (label, name) in rows.index}
        columns[name] = [_cell(cells.get(label), len(runs)) for label, runs in groups.items()]
    return pd.DataFrame(columns)


def write_report(groups: dict[str, list[Run]], rows: pd.DataFrame, args: argparse.Namespace) -> list[Path]:
    """Write report.csv, the curves and report.md into ``args.out`` and give the paths."""
    curves = {label: [run.metrics for run in runs] for label, runs in groups.items()}
    names = []
    for axis in args.x or ("round", "bytes", "examples"):
        names.append(f"curves_{axis}.png")
        save_figure(convergence(curves, AXES[axis], args.metric), args.out / names[-1])
    atomic_write_text(args.out / "report.csv", rows.to_csv(float_format="{:.12g}".format))
    text = [_markdown(table(groups, rows, args.metric)), "Mean ± sample standard deviation over runs.", ""]
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
    _show(table(groups, rows, args.metric), paths)


def _exit(sentence: str) -> None:
    print(sentence, file=sys.stderr)
    raise SystemExit(2)


def _show(lines: pd.DataFrame, paths: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    # Labels and names of metrics are longer than a terminal has room for: broken, not cut.
    shown = Table(*(Column(name, overflow="fold") for name in lines))
    console = Console()
    for line in lines.itertuples(index=False):
        shown.add_row(*line)
    console.print(shown, markup=False)
    for path in paths:
        console.print(str(path), soft_wrap=True, highlight=False, markup=False)


def _cell(row: pd.Series | None, num_runs: int) -> str:
    """Write ``mean ± std``, and the published number and the number of runs where they say something."""
    if row is None:
        return "-"
    write = format_bytes if row.name[1].endswith("bytes") else "{:.4g}".format
    text = " ± ".join(map(write, row[["mean", "std"]].dropna())) or "-"
    text += f" (published {write(row.published)})" if row.published == row.published else ""
    return text if row.num_runs == num_runs else f"{text} ({row.num_runs:.0f}/{num_runs} runs)"


def _costs_to_target(rows: pd.DataFrame) -> list[str]:
    """Choose the one target to show: of those that most settings reach, the highest."""
    reached = rows[rows.num_runs > 0].index.get_level_values("quantity")
    counts = reached.str.extract(r"^to_target/([^/]+)/", expand=False).value_counts()
    best = max(counts.index, key=lambda target: (counts[target], float(target)), default=None)
    return [] if best is None else [f"to_target/{best}/rounds", f"to_target/{best}/bytes"]


def _markdown(lines: pd.DataFrame) -> str:
    rows = [
        list(lines),
        ["---"] * lines.shape[1],
        *lines.replace(r"\|", r"\\|", regex=True).to_numpy().tolist(),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _origins(runs: Sequence[Run]) -> str:
    return ", ".join(f"seed {run.summary['seed']} (`{run.path}`)" for run in runs)


def _numbers(values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)


if __name__ == "__main__":
    main()
