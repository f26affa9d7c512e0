"""The first picture of a run: its accuracies over the rounds, how each client fares, and who holds which classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedfeat.data.partition.picture import MOST_CLASS_NAMES
from fedfeat.runs.class_colors import ClassColors
from fedfeat.runs.figures import AXIS_LABELS, PALETTE, save_figure, set_title, whole_numbers
from fedfeat.runs.metrics_table import read_metrics
from fedfeat.runs.run_figure import draw_accuracies

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What a client is judged by: the server's model where there is one, else its own.
_COLUMNS = ("global_acc", "personal_acc", "local_acc")


def overview_figure(
    run: pd.DataFrame, accuracies: np.ndarray, counts: np.ndarray, classes: Sequence[str], title: str
) -> Figure:
    """Draw a run on one sheet.

    Args:
        run: Its metrics.
        accuracies: Of each client in the last evaluated round, (K,); NaN is unknown.
        counts: Training examples per client and class, (K, C).
        classes: Names of the classes, C of them.
        title: Name of the run.
    """
    from matplotlib.figure import Figure

    is_split = len(accuracies) > 1  # who has everything is no client beside others
    figure = Figure(figsize=(10.4 if is_split else 6.4, 4.6), layout="constrained")
    grid = figure.add_gridspec(
        2, 2 if is_split else 1, width_ratios=(6, 5)[: 1 + is_split], height_ratios=(2, 3)
    )
    curve = figure.add_subplot(grid[:, 0])
    _tidy(curve)
    draw_accuracies(curve, run)
    curve.set(xlabel=AXIS_LABELS["round"])
    set_title(curve, title, 5.6)
    whole_numbers(curve.xaxis)
    if not is_split:
        return figure
    below = figure.add_subplot(grid[1, 1])
    above = figure.add_subplot(grid[0, 1], sharex=below)
    _tidy(above)
    # One shape for all: a bar for each of 100,000 clients would take minutes.
    edges = np.arange(len(accuracies) + 1) - 0.5
    above.stairs(accuracies, edges, fill=True, color=PALETTE[1], alpha=0.7)
    above.set(ylabel="accuracy", ylim=(0, 1))
    above.tick_params(labelbottom=False)
    set_title(above, "each client at the end, and what it holds", 4.6)
    _draw_split(below, counts, classes)
    return figure


def _tidy(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_split(axes: Axes, counts: np.ndarray, classes: Sequence[str]) -> None:
    """Draw a row per class in its colour of the alignment maps, the paler the fewer examples a client has."""
    colors = ClassColors(classes, "tab10")
    solid = np.array([colors.of(label)[:3] for label in range(counts.shape[1])])
    share = counts.T / max(1, counts.max())
    # The fewest that are not none are to differ from white.
    strength = np.where(counts.T > 0, 0.15 + 0.85 * share, 0.0)[..., None]
    axes.imshow(1 - strength * (1 - solid[:, None]), aspect="auto", interpolation="nearest")
    axes.set(xlabel="client", ylabel="class")
    whole_numbers(axes.xaxis)
    if len(classes) <= MOST_CLASS_NAMES:
        axes.set_yticks(range(len(classes)), [name[:16] for name in classes])


def draw_overview(run_dir: Path, title: str, counts: np.ndarray, classes: Sequence[str]) -> dict[str, Path]:
    """Draw the first picture of a run into its directory; give its name and path. See `overview_figure`."""
    path = run_dir / "figures" / "overview.png"
    run = read_metrics(run_dir / "metrics.csv")
    accuracies = last_accuracies(read_metrics(run_dir / "clients.csv"), len(counts))
    save_figure(overview_figure(run, accuracies, counts, classes, title), path)
    return {"overview": path}


def last_accuracies(clients: pd.DataFrame, number: int) -> np.ndarray:
    """Give the accuracy of each client in the last round that has any, (number,); NaN is unknown."""
    found = np.full(number, np.nan)
    for name in _COLUMNS:
        known = clients[clients[name].notna()] if name in clients else clients[:0]
        if len(known):
            last = known[(known["round"] == known["round"].max()) & (known["client_id"] < number)]
            found[last["client_id"].to_numpy(int)] = last[name]
            break
    return found
