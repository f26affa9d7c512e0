"""metrics.csv and its kin, read back: numbers by round, and where they stopped being numbers."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedfeat.errors import CheckpointError

if TYPE_CHECKING:
    import pandas as pd

_NOT_FINITE = ("nan", "inf", "-inf")
_MARKED = re.compile(b"nan|inf", re.IGNORECASE)  # what has none of it is not looked through cell by cell
_ATTRIBUTE = "not_finite"  # rounds by column, the first one first
_COSTS = ("comm/", "compute/", "time/", "cohort_size")


def read_metrics(path: str | Path) -> pd.DataFrame:
    """Read a metrics.csv, one row per evaluated round; what is empty or no number is NaN.

    A cell in which ``nan`` stands, of a run that has diverged, is NaN too: `not_finite_since` tells.

    Raises:
        CheckpointError: It is no table.
    """
    import pandas as pd

    try:
        content = Path(path).read_bytes()
        text = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
    except ValueError as error:  # pandas' own errors among them, and what is no UTF-8
        raise CheckpointError(f"{path} must be a table of a run, but it cannot be read: {error}.") from error
    table = text.apply(pd.to_numeric, errors="coerce")
    if "round" in table and _MARKED.search(content):
        written = text.apply(lambda column: column.str.strip().str.lower().isin(_NOT_FINITE))
        table.attrs[_ATTRIBUTE] = {
            name: table["round"][written[name]].tolist() for name in table if written[name].any()
        }
    return table


def with_divergence(table: pd.DataFrame) -> pd.DataFrame:
    """Give the rows of a run that a client's divergence has ended, and the round after them, with nothing finite in it.

    What the run has cost by then stays as it is.
    """
    import pandas as pd

    last = table.iloc[-1]
    lost = [name for name in table if name != "round" and not name.startswith(_COSTS)]
    end = {**last, **dict.fromkeys(lost, float("nan")), "round": last["round"] + 1}
    extended = pd.concat([table, pd.DataFrame([end])], ignore_index=True)
    rounds = {name: [*_not_finite(table, name), end["round"]] for name in lost}
    extended.attrs[_ATTRIBUTE] = table.attrs.get(_ATTRIBUTE, {}) | rounds
    return extended


def not_finite_since(table: pd.DataFrame, column: str) -> float | None:
    """Give the first round in which ``nan`` or ``inf`` stands in a column, or None."""
    return next(iter(_not_finite(table, column)), None)


def last_value(table: pd.DataFrame, column: str) -> float | None:
    """Give a column's last number; NaN or infinity where that stands behind it, None where all of it is empty.

    Args:
        table: All rows of `read_metrics`, or the first of them.
        column: The column.
    """
    written = table[column].notna()
    if rounds := _not_finite(table, column):
        written |= table["round"].isin(rounds)
    values = table[column][written]
    return float(values.iloc[-1]) if len(values) else None


def mean_and_std(runs: Sequence[pd.DataFrame], x: str, y: str) -> pd.DataFrame:
    """Average runs round by round, over the rounds that all of them have.

    Args:
        runs: Metrics of runs of one setting, e.g. over seeds.
        x: Column of the x-axis.
        y: Column of the y-axis.

    Returns:
        Columns ``x`` and ``mean`` of y, and its sample standard deviation ``std``, 0 for a single run.
    """
    import pandas as pd

    points = [
        pd.DataFrame({"x": run.get(x, np.nan), "y": run.get(y, np.nan)}).set_index(run["round"])
        for run in runs
    ]
    by_round = pd.concat(points).replace([np.inf, -np.inf], np.nan).dropna().groupby(level=0)
    found = pd.DataFrame({"x": by_round.x.mean(), "mean": by_round.y.mean(), "std": by_round.y.std()})
    return found[by_round.size() == len(runs)].fillna({"std": 0.0})


def _not_finite(table: pd.DataFrame, column: str) -> Sequence[float]:
    rounds: Sequence[float] = table.attrs.get(_ATTRIBUTE, {}).get(column, ())
    return rounds
