"""Aggregate runs over seeds, draw their curves, set measured beside published numbers.

    uv run fedfeat-report logs/multiruns/2026-01-01 --metric personal/acc_mean --out report
    uv run fedfeat-report logs/sweeps/depth --x structure.depth --metric global/acc --metric align/agreement

Runs whose configurations differ in nothing but the seed are one setting. Spread is the sample standard
deviation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedfeat.commands.report_figures import AXES, FORMATS, draw
from fedfeat.commands.report_rows import Numbers, aggregate, chosen, csv_text, measure, of_own_best, table
from fedfeat.commands.report_text import latex, markdown, show
from fedfeat.errors import ConfigError, UserError
from fedfeat.files import atomic_write_text
from fedfeat.runs.figures import MAIN_METRIC
from fedfeat.runs.finished import Run, find_runs
from fedfeat.runs.labels import Setting, data_sets, group_runs, label_settings, name_settings
from fedfeat.runs.quantities import Metric, meant

if TYPE_CHECKING:
    import pandas as pd

SPREAD = "Mean ± sample standard deviation over runs; nan: a run has diverged."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script ``fedfeat-report``."""
    args = _parser().parse_args(arguments)
    runs, skipped = find_runs(args.folders)
    for line in skipped:
        print(line, file=sys.stderr)
    if not runs:
        where = ", ".join(map(str, args.folders))
        _exit(f"DIR must hold at least one finished run, but there is none in {where}.")
    try:
        report(runs, args)
    except (UserError, OSError) as error:
        _exit(str(error))


def report(runs: Sequence[Run], args: argparse.Namespace) -> None:
    """Write report.csv, .md, .tex and the figures into ``args.out``, and print the table.

    Raises:
        ConfigError: A metric, key or share is refused.
    """
    found = group_runs(runs)
    naming = name_settings(found)
    ordered = sorted(found, key=naming.order)
    settings = dict(zip(label_settings(ordered, naming), ordered, strict=True))
    groups = {label: setting.runs for label, setting in settings.items()}
    metrics = [Metric.parse(text) for text in args.metric or [MAIN_METRIC]]
    if args.share_of_best is not None and not 0 < args.share_of_best <= 1:
        raise ConfigError.rule("--share-of-best", "lie in (0, 1]", args.share_of_best)
    more = of_own_best(args.share_of_best)
    numbers = measure(groups, metrics, more)
    _check_names(args, settings, metrics, numbers)
    rows = aggregate(groups, numbers)
    lines, notes = table(groups, rows, metrics, more), _notes(settings, metrics, numbers, args.share_of_best)
    figures = dict[str, str]()
    for axis in args.x or _default_axes(groups, metrics):
        figures |= draw(axis, settings, naming, metrics, numbers, args.bars, args.out)
    texts = {
        "report.csv": csv_text(rows, naming, settings),
        "report.md": _page(lines, notes, figures, groups),
        "report.tex": latex(lines, notes),
    }
    for name, text in texts.items():
        atomic_write_text(args.out / name, text)
    _print(lines, notes, [args.out / name for name in (*texts, *(f"{stem}.png" for stem in figures))])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("fedfeat-report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="run directories, or folders of them"
    )
    metric = (
        "what the figures show: a metric, or another quantity (docs/report.md); of several with commas between them, "
        "each setting's first; NAME=... names it; given twice, the second has an axis of its own "
        f"({MAIN_METRIC})"
    )
    parser.add_argument("--metric", action="append", metavar="[NAME=]QUANTITY[,...]", help=metric)
    axis = f"axis of a figure: {', '.join(AXES)}, a key (structure.depth) or a group (model); may be repeated"
    parser.add_argument("--x", action="append", metavar="AXIS", help=f"{axis} (first three)")
    parser.add_argument("--bars", action="store_true", help="bars for numbers too, over a key")
    share = "also what it took to come to this share of a run's own best, e.g. 0.95"
    parser.add_argument("--share-of-best", type=float, metavar="SHARE", help=share)
    parser.add_argument("--out", type=Path, default=Path("logs/report"), help="where to write (%(default)s)")
    return parser


def _check_names(
    args: argparse.Namespace, settings: Mapping[str, Setting], metrics: Sequence[Metric], numbers: Numbers
) -> None:
    """Refuse what names nothing; say of an alternative that no run has it."""
    known = {name for runs in numbers.values() for found in runs for name in found}
    for metric in metrics:
        missing = [name for name in metric.quantities if name not in known]
        if len(missing) == len(metric.quantities):
            text = f"--metric must name something that the runs have, but it is {missing[0]!r}"
            raise ConfigError(f"{text} ({meant(missing[0], known)}).")
        for name in missing if args.metric else ():
            print(f"--metric: no run has {name} ({meant(name, known)}).", file=sys.stderr)
    keys = {name for setting in settings.values() for name in (*setting.words, *setting.values)}
    for axis in args.x or ():
        if axis not in AXES and axis not in keys:
            rule = f"be {', '.join(AXES)}, a key or a group of the runs' configurations"
            raise ConfigError(f"--x must {rule}, but it is {axis!r} ({meant(axis, keys | {*AXES})}).")
        columns = {name for setting in settings.values() for run in setting.runs for name in run.metrics}
        for metric in metrics if axis in AXES else ():
            if metric.chosen(columns) is None:
                rule = f"be a column of metrics.csv over {axis}"
                raise ConfigError.rule("--metric", rule, metric.name)


def _default_axes(groups: Mapping[str, Sequence[Run]], metrics: Sequence[Metric]) -> list[str]:
    """Choose rounds and costs, for what is there in every round."""
    columns = {name for runs in groups.values() for run in runs for name in run.metrics}
    drawable = all(metric.chosen(columns) for metric in metrics)
    return ["round", "bytes", "examples"] if drawable else []


def _notes(
    settings: Mapping[str, Setting], metrics: Sequence[Metric], numbers: Numbers, share: float | None
) -> list[str]:
    """Say what a reader of the table has to know: a warning above all others."""
    notes = []
    if len(data := data_sets(list(settings.values()))) > 1:
        notes.append(f"Warning: these runs are on different data sets: {', '.join(data)}.")
    for metric in metrics:
        if metric.has_own_name:
            by = chosen(metric, numbers)
            arms = {
                name: dict.fromkeys(settings[label].words["algorithm"] for label in by if by[label] == name)
                for name in metric.quantities
            }
            parts = [f"{name} of {', '.join(words)}" for name, words in arms.items() if words]
            notes.append(f"{metric.name}: {'; '.join(parts)}.")
    if share is not None:
        notes.append(
            f"to_own_best/{share:g}: the first evaluated round with {share:g} of the maximum over a run's evaluated "
            "rounds, of its federation.target_metric (without one: global/acc, else personal/acc_weighted)."
        )
    return [*notes, SPREAD]


def _page(
    lines: pd.DataFrame, notes: Sequence[str], figures: Mapping[str, str], groups: Mapping[str, Sequence[Run]]
) -> str:
    """Write report.md."""
    warnings = [f"**{note}**\n" for note in notes if note.startswith("Warning")]
    text = [*warnings, markdown(lines), *(f"{note}\n" for note in notes if f"**{note}**\n" not in warnings)]
    text += [f"![{shown}]({stem}.png)" for stem, shown in figures.items()]
    text += ["", "Runs:", "", *(f"- {label}: {_origins(runs)}" for label, runs in groups.items()), ""]
    return "\n".join(text)


def _print(lines: pd.DataFrame, notes: Sequence[str], paths: Sequence[Path]) -> None:
    from rich.console import Console

    console = Console()
    for note in notes:
        if note.startswith("Warning"):
            console.print(note, style="bold red", highlight=False, markup=False)
    show(lines, console)
    for note in notes:
        if not note.startswith("Warning"):
            console.print(note, highlight=False, markup=False)
    for path in paths:
        more = f" ({', '.join(form for form in FORMATS if form != 'png')})" if path.suffix == ".png" else ""
        console.print(f"{path}{more}", soft_wrap=True, highlight=False, markup=False)


def _origins(runs: Sequence[Run]) -> str:
    return ", ".join(f"seed {run.summary['seed']} (`{run.path}`)" for run in runs)


def _exit(sentence: str) -> None:
    print(f"fedfeat-report: {sentence}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
