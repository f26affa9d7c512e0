"""The numbers of a report: mean and spread of every quantity of every setting, and the lines of its table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fedfeat.errors import ConfigError
from fedfeat.runs.finished import Run
from fedfeat.runs.labels import Naming, Setting
from fedfeat.runs.quantities import Metric, is_computed, measured_numbers
from fedfeat.runs.text import format_bytes, is_number, written

if TYPE_CHECKING:
    import pandas as pd

# Columns of the table, beside those of --metric and of targets; report.csv has everything.
MAIN_METRICS = (
    *("global/acc", "global/client_acc_mean", "global/client_acc_worst"),
    *("personal/acc_mean", "local_pre_agg/acc_mean"),
)
Numbers = Mapping[str, Sequence[Mapping[str, float]]]
"""By label of a setting, of each of its runs: quantity to number."""


def measure(
    groups: Mapping[str, Sequence[Run]], metrics: Sequence[Metric], more: Sequence[str] = ()
) -> Numbers:
    """Give what every run measured, also what is asked for by a name of its own; ``more`` are further quantities."""
    wanted = [*more, *(name for metric in metrics for name in metric.quantities if is_computed(name))]
    numbers = {label: [measured_numbers(run, wanted) for run in runs] for label, runs in groups.items()}
    known, named = known_names(numbers), [metric.name for metric in metrics]
    for metric in metrics:
        if metric.has_own_name and (metric.name in known or named.count(metric.name) > 1):
            raise ConfigError.rule(
                "--metric", "give a name that no quantity and no other metric has", metric.name
            )
        for label, name in chosen(metric, numbers).items():
            for found in numbers[label]:
                if metric.has_own_name and name in found:
                    found[metric.name] = found[name]
    everything = known_names(numbers)
    return {label: _with_diverged(groups[label], runs, everything) for label, runs in numbers.items()}


def known_names(numbers: Numbers) -> set[str]:
    """Name everything of which any run has a number."""
    return {name for runs in numbers.values() for found in runs for name in found}


def _with_diverged(
    runs: Sequence[Run], numbers: Sequence[Mapping[str, float]], everything: set[str]
) -> list[Mapping[str, float]]:
    """Give a run that has diverged NaN of all that its setting's others measured, or of everything without others."""
    found = [*zip(runs, numbers, strict=True)]
    own = {name for run, numbers_of_run in found if not run.diverged for name in numbers_of_run}
    lost = dict.fromkeys(own or everything, math.nan)
    return [lost if run.diverged else numbers_of_run for run, numbers_of_run in found]


def chosen(metric: Metric, numbers: Numbers) -> dict[str, str]:
    """Give, by setting, the quantity that a metric is there: the first that any of its runs has."""
    found = {label: metric.chosen(set[str]().union(*runs)) for label, runs in numbers.items()}
    return {label: name for label, name in found.items() if name is not None}


def aggregate(groups: Mapping[str, Sequence[Run]], numbers: Numbers) -> pd.DataFrame:
    """Average every quantity over the runs of each setting.

    Returns:
        What report.csv holds, by setting and quantity: ``mean``, ``std``, ``num_runs`` (that have the quantity; none of
        a target which a paper reached and no run), ``published`` and ``difference``. Mean and spread are NaN where a
        run has diverged.
    """
    import pandas as pd

    published = {
        (label, name): value
        for label, runs in groups.items()
        for run in runs
        for name, value in run.published.items()
        if is_number(value)
    }
    measured = [(label, *one) for label, runs in numbers.items() for found in runs for one in found.items()]
    values = pd.DataFrame(measured, columns=["setting", "quantity", "value"]).astype({"value": float})
    by_quantity = values.groupby(["setting", "quantity"], sort=False).value
    mean, std = by_quantity.mean(skipna=False), by_quantity.std(skipna=False)
    rows = pd.DataFrame({"mean": mean, "std": std, "num_runs": by_quantity.size()})
    missed = [key for key in published if key[1].startswith("to_target/") and key not in rows.index]
    rows = (
        rows.reindex(rows.index.append(pd.MultiIndex.from_tuples(missed, names=rows.index.names)))
        if missed
        else rows
    )
    rows["num_runs"] = rows.num_runs.fillna(0).astype(int)
    rows["published"] = [float(published.get(key, "nan")) for key in rows.index]
    return rows.assign(difference=rows["mean"] - rows["published"])


def table(
    groups: Mapping[str, Sequence[Run]],
    rows: pd.DataFrame,
    metrics: Sequence[Metric],
    more: Sequence[str] = (),
) -> pd.DataFrame:
    """Lay out the main metrics as text, one line per setting."""
    import pandas as pd

    names = rows.index.get_level_values("quantity")
    asked = [name for one in metrics for name in ((one.name,) if one.has_own_name else one.quantities)]
    shown = [*asked, *names[rows.published.notna()], *MAIN_METRICS, *_costs_to_target(rows), *more]
    columns: dict[str, list[str]] = {
        "setting": list(groups),
        "runs": [str(len(runs)) for runs in groups.values()],
    }
    for name in (name for name in dict.fromkeys(shown) if name in names):
        cells = {label: rows.loc[(label, name)] for label in groups if (label, name) in rows.index}
        columns[name] = [_cell(cells.get(label), len(runs)) for label, runs in groups.items()]
    return pd.DataFrame(columns)


def csv_text(rows: pd.DataFrame, naming: Naming, settings: Mapping[str, Setting]) -> str:
    """Write report.csv: a line per setting and quantity, with a column for each group and key that names settings."""
    lines = rows.reset_index().astype({"mean": object, "std": object, "difference": object})
    for column in ("mean", "std", "difference"):
        # Empty is what does not exist: a spread of one run, a difference to no published number.
        exists = lines.num_runs > {"mean": 0, "std": 1, "difference": 0}[column]
        exists &= lines.published.notna() if column == "difference" else True
        lines[column] = [
            f"{value:.12g}" if there else "" for value, there in zip(lines[column], exists, strict=True)
        ]
    for at, name in enumerate((*naming.words, *naming.keys), start=1):
        values = {label: setting.get(name) for label, setting in settings.items()}
        held = {label: written(value) if name in settings[label] else "" for label, value in values.items()}
        lines.insert(at, name, lines.setting.map(held))
    return lines.to_csv(index=False, float_format="{:.12g}".format, lineterminator="\n")


def _cell(row: pd.Series | None, num_runs: int) -> str:
    """Write ``mean ± std``, and the published number and the number of runs where they say something."""
    if row is None:
        return "-"
    write = partial(write_number, row.name[1])
    if row.num_runs == 0:
        text = "-"
    elif row["mean"] != row["mean"]:
        text = "nan"
    else:
        text = " ± ".join(map(write, row[["mean", "std"]].dropna()))
    text += f" (published {write(row.published)})" if row.published == row.published else ""
    return text if row.num_runs == num_runs else f"{text} ({row.num_runs:.0f}/{num_runs} runs)"


def write_number(name: str, value: float, sign: bool = False) -> str:
    """Write a quantity: bytes with their unit, others with four digits, or those before the point from 10,000 on."""
    text = format_bytes(value) if name.endswith("bytes") else _short(value)
    return f"+{text}" if sign and value > 0 else text


def _short(value: float) -> str:
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e8 else f"{value:.4g}"


def _costs_to_target(rows: pd.DataFrame) -> list[str]:
    """Choose the one target to show: of those that most settings reach, the highest."""
    reached = rows[rows.num_runs > 0].index.get_level_values("quantity")
    counts = reached.str.extract(r"^to_target/([^/]+)/", expand=False).value_counts()
    best = max(counts.index, key=lambda target: (counts[target], float(target)), default=None)
    return [] if best is None else [f"to_target/{best}/rounds", f"to_target/{best}/bytes"]


def of_own_best(share: float | None) -> list[str]:
    """Name the quantities of a share of a run's own best: rounds, bytes and examples."""
    return (
        [] if share is None else [f"to_own_best/{share:g}/{cost}" for cost in ("rounds", "bytes", "examples")]
    )
