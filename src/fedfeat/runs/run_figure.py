"""The picture of one run: its accuracies and its training loss over the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfeat.runs.figures import AXIS_LABELS, PALETTE, panels, save_figure, whole_numbers
from fedfeat.runs.metrics_table import read_metrics

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def run_figure(run: pd.DataFrame, title: str = "") -> Figure:
    """Draw one run: accuracies in the upper panel, training loss in the lower one, over rounds."""
    figure, (upper, lower) = panels(2, title, (6.4, 6.4))
    draw_accuracies(upper, run)
    _curve(lower, run["round"], run.get("train/loss"), color=PALETTE[0])
    lower.set(ylabel=AXIS_LABELS["train/loss"], xlabel=AXIS_LABELS["round"])
    whole_numbers(lower.xaxis)
    return figure


def draw_accuracies(axes: Axes, run: pd.DataFrame) -> None:
    """Draw the accuracies that a run has over its rounds, with the spread over its clients."""
    rounds = run["round"]
    accuracies = {
        "global/acc": "global model, test set",
        "global/client_acc_mean": "global model, clients: mean ± std",
        "personal/acc_mean": "personal models: mean ± std",
    }
    # Where clients' test parts are the test set between them these are equal: one is broad and pale, one dashed.
    looks: tuple[dict[str, Any], ...] = ({"linewidth": 5, "alpha": 0.35}, {}, {"linestyle": "--"})
    for color, look, (name, label) in zip(PALETTE, looks, accuracies.items(), strict=False):
        _curve(axes, rounds, run.get(name), label=label, color=color, **look)
        spread = run.get(name.replace("_mean", "_std"))
        if name.endswith("_mean") and name in run and spread is not None:
            low, high = np.clip(run[name] - spread, 0, 1), np.clip(run[name] + spread, 0, 1)
            axes.fill_between(rounds, low, high, color=color, alpha=0.15, linewidth=0)
        worst = run.get(name.replace("_mean", "_worst")) if name.endswith("_mean") else None
        _curve(axes, rounds, worst, label=label.split(":")[0] + ": worst", color=color, linestyle=":")
    axes.set(ylabel="accuracy")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", fontsize="small")


def run_figures(run_dir: str | Path, title: str = "") -> dict[str, Path]:
    """Draw the figures of a run directory from its metrics.csv; give their names and paths."""
    path = Path(run_dir) / "figures" / "convergence.png"
    save_figure(run_figure(read_metrics(Path(run_dir) / "metrics.csv"), title), path)
    return {"convergence": path}


def _curve(axes: Axes, x: pd.Series, y: pd.Series | None, **style: Any) -> None:
    """Plot the values that exist, so that a round without one does not break the line."""
    if y is not None and np.isfinite(y).any():
        known = np.isfinite(y)
        axes.plot(x[known], y[known], marker="o" if known.sum() == 1 else None, **style)
