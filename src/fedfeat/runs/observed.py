"""What a method watches in the server's model over the rounds, value by value: a table and a picture of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedfeat.runs.figures import panels, save_figure
from fedfeat.runs.metrics_table import read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "observed"
"""Folder of the tables in a run directory, one file per quantity."""


def table_path(run_dir: Path, name: str) -> Path:
    """Give the table of a quantity such as ``fusion/lambda``: one row per evaluated round, one column per channel."""
    return run_dir / FOLDER / f"{name.replace('/', '_')}.csv"


def read_table(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read a table: rounds (R,) and values (R, n)."""
    table = read_metrics(path)
    return table["round"].to_numpy(float), table.drop(columns="round").to_numpy(float)


def channels_figure(rounds: np.ndarray, values: np.ndarray, label: str) -> Figure:
    """Draw every channel as a line of colours over the rounds, sorted by its last value, above their mean.

    Rounds are (R,) and values (R, n); the label says what these are.
    """
    several = values.shape[1] > 1
    figure, (*above, below) = panels(2 if several else 1, size=(6.4, 5.2 if several else 3.0))
    for panel in above:
        ordered = values[:, np.argsort(values[-1], kind="stable")]
        edges = np.append(rounds, 2 * rounds[-1] - rounds[-2] if len(rounds) > 1 else rounds[-1] + 1) - 0.5
        panel.grid(visible=False)
        mesh = panel.pcolormesh(edges, np.arange(values.shape[1] + 1), ordered.T, cmap="viridis")
        panel.set(ylabel="channels (sorted)")
        figure.colorbar(mesh, ax=panel, label=label)
        low, high = np.percentile(values, [10, 90], axis=1)
        below.fill_between(rounds, low, high, alpha=0.2, linewidth=0, label="10 to 90 % of the channels")
    below.plot(rounds, values.mean(axis=1), label="mean", marker="." if len(rounds) == 1 else None)
    below.set(xlabel="round", ylabel=label)
    if several:
        below.legend(fontsize="small", frameon=False)
    return figure


def draw_observed(run_dir: Path) -> dict[str, Path]:
    """Draw every table of a run directory into its ``figures``; give names and paths."""
    paths = {}
    for table in sorted((run_dir / FOLDER).glob("*.csv")):
        rounds, values = read_table(table)
        if len(rounds):
            paths[table.stem] = run_dir / "figures" / f"{table.stem}.png"
            save_figure(channels_figure(rounds, values, table.stem.replace("_", " ")), paths[table.stem])
    return paths
