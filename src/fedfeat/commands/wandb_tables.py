"""Published and measured numbers of finished runs as a table of Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from fedfeat.runs.finished import Run
from fedfeat.runs.labels import Setting, group_runs, label_settings, name_settings
from fedfeat.runs.quantities import measured_numbers
from fedfeat.runs.text import is_number, markdown_table


def published_table(runs: Sequence[Run], metrics: Sequence[str]) -> str:
    """Write a line per setting: mean over its runs ± sample standard deviation, and a paper's number.

    Args:
        runs: Finished runs.
        metrics: What to show beside whatever was published for any of the runs.
    """
    settings = group_runs(runs)
    naming = name_settings(settings)
    ordered = sorted(settings, key=naming.order)
    found = {name for run in runs for name, value in run.published.items() if is_number(value)}
    measured = [[measured_numbers(run, found) for run in setting.runs] for setting in ordered]
    there = {name for numbers in measured for run in numbers for name in run}
    shown = [name for name in dict.fromkeys((*metrics, *sorted(found))) if name in there]
    header = ["setting", "runs", *(cell for name in shown for cell in _header(name, found))]
    rows = [
        [label, str(len(numbers)), *(c for name in shown for c in _cells(name, found, setting, numbers))]
        for label, setting, numbers in zip(label_settings(ordered, naming), ordered, measured, strict=True)
    ]
    return markdown_table(header, rows)


def _header(name: str, published: set[str]) -> list[str]:
    return [name, *(["published", "difference"] if name in published else [])]


def _cells(
    name: str, published: set[str], setting: Setting, numbers: Sequence[dict[str, float]]
) -> list[str]:
    values = [run[name] for run in numbers if name in run]
    mean = statistics.fmean(values) if values else None
    # Of a run that has diverged the mean is NaN, and there is no spread.
    spread = (
        f" ± {statistics.stdev(values):.4g}" if len(values) > 1 and all(map(math.isfinite, values)) else ""
    )
    cells = ["" if mean is None else f"{mean:.4g}{spread}"]
    if name in published:
        paper = setting.runs[0].published.get(name, float("nan"))
        known = is_number(paper) and paper == paper
        cells.append(f"{paper:g}" if known else "")
        cells.append(f"{mean - paper:+.4g}" if known and mean is not None else "")
    return cells
