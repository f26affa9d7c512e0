"""Aggregate runs over seeds, draw their curves, set measured beside published numbers.

    uv run fedfeat-report logs/multiruns/2026-01-01 --metric personal/acc_mean --out report
    uv run fedfeat-report logs/sweeps/depth --x structure.depth --metric global/acc --metric align/agreement

Runs whose configurations differ in nothing but the seed are one setting. Spread is the sample standard
deviation.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedfeat.commands.report_figures import AXES, FORMATS, draw
from fedfeat.commands.report_gathered import Gathered, default_axes, gather
from fedfeat.commands.report_rows import csv_text
from fedfeat.commands.report_text import latex, one_head, page, show
from fedfeat.config.command_line import Parser, one_sentence
from fedfeat.errors import ConfigError
from fedfeat.files import atomic_write_text
from fedfeat.runs.figures import MAIN_METRIC
from fedfeat.runs.finished import Run, finished_runs


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script ``fedfeat-report``."""
    args = _parser().read(arguments)
    with one_sentence("fedfeat-report"):
        report(finished_runs(args.folders), args)


def report(runs: Sequence[Run], args: argparse.Namespace) -> None:
    """Write report.csv, .md, .tex and the figures into ``args.out``, and print the table.

    Raises:
        ConfigError: A metric, key or share is refused.
    """
    found = gather(runs, args.metric, args.x or (), args.share_of_best, args.against)
    figures, page_path = dict[str, str](), _page_path(args)
    for axis in args.x or default_axes(found):
        figures |= draw(axis, found.settings, found.naming, found.metrics, found.numbers, args.bars, args.out)
    texts = {
        "report.csv": csv_text(found.rows, found.naming, found.settings),
        "report.md": page(found, figures),
        "report.tex": latex(found.lines, found.notes),
    }
    paths = [args.out / name for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        atomic_write_text(path, text)
    if page_path is not None:
        from fedfeat.commands.report_html import html

        # Curves over rounds and costs are drawn by the page itself.
        over = {stem: shown for stem, shown in figures.items() if stem.startswith("over_")}
        atomic_write_text(
            page_path, html(found, {args.out / f"{stem}.svg": shown for stem, shown in over.items()})
        )
        paths.append(page_path)
    _print(found, [*paths, *(args.out / f"{stem}.png" for stem in figures)])


def _page_path(args: argparse.Namespace) -> Path | None:
    """Give where the page goes; None where none is asked for.

    Raises:
        ConfigError: Something else is there, such as a folder or a device.
    """
    if args.html is None:
        return None
    path = args.out / "report.html" if args.html == "" else Path(args.html)
    if path.exists() and not path.is_file():
        raise ConfigError.rule("--html", "be a file, behind the folders of the runs", args.html)
    # The new file takes the place of the old one, which must not be the link.
    return path.resolve() if path.is_symlink() else path


def _parser() -> Parser:
    parser = Parser("fedfeat-report", __doc__)
    parser.add_folders()
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
    against = (
        "the method that others are compared with, by its name there (fedavg, else that of most settings)"
    )
    parser.add_argument("--against", metavar="METHOD", help=against)
    page = "also write one HTML page that needs no other file (report.html beside the others)"
    parser.add_argument("--html", nargs="?", const="", metavar="FILE", help=page)
    parser.add_out(Path("logs/report"), "%(default)s")
    return parser


def _print(found: Gathered, paths: Sequence[Path]) -> None:
    from rich.console import Console

    console = Console()
    for note in found.warnings:
        console.print(note, style="bold red", highlight=False, markup=False)
    show(found.lines, console)
    for note in found.explanations:
        console.print(note, highlight=False, markup=False)
    if found.compared is not None:
        console.print(f"\n{found.compared.heading}", style="bold", highlight=False, markup=False)
        for lines in (one_head(found.compared.pair_lines()), found.compared.rank_lines()):
            if len(lines):
                show(lines, console)
        for note in found.compared.notes:
            console.print(note, highlight=False, markup=False)
    for path in paths:
        more = f" ({', '.join(form for form in FORMATS if form != 'png')})" if path.suffix == ".png" else ""
        console.print(f"{path}{more}", soft_wrap=True, highlight=False, markup=False)


if __name__ == "__main__":
    main()
