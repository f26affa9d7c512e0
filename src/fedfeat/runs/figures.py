"""Convergence figures, drawn from metrics.csv alone."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfeat.errors import ConfigError
from fedfeat.files import atomic_write_bytes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito (2008), "Color Universal Design": told apart by every kind of colour vision. Its yellow is left
# out, too pale for a line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINE_STYLES = ("-", "--", ":", "-.")
AXIS_LABELS = {
    "round": "round",
    "comm/total_bytes": "communication, up and down ({}B)",
    "compute/examples": "training examples processed ({})",
    "time/total_s": "wall time (s)",
    "global/acc": "global model, accuracy",
    "global/loss": "global model, loss",
    "global/client_acc_mean": "global model, client accuracy",
    "personal/acc_mean": "personal models, accuracy",
    "local_pre_agg/acc_mean": "local models after their fits, accuracy",
    "train/loss": "training loss",
}
# Units of axes that count, as prefixes of bytes and as words; rounds and seconds are written out.
PREFIXES = ((1e12, "T", "trillions"), (1e9, "G", "billions"), (1e6, "M", "millions"), (1e3, "k", "thousands"))
OWN = "own models, own test parts"


def read_metrics(path: str | Path) -> pd.DataFrame:
    """Read a metrics.csv, one row per evaluated round; what is empty or no number is NaN."""
    import pandas as pd

    return pd.read_csv(path).apply(pd.to_numeric, errors="coerce")


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


def convergence(
    curves: Mapping[str, Sequence[pd.DataFrame]], x: str = "round", y: str = "global/acc", title: str = ""
) -> Figure:
    """Draw one curve per label, with a band of one standard deviation where a label has several runs.

    Args:
        curves: Label to the metrics of its runs.
        x: ``round``, ``comm/total_bytes``, ``compute/examples`` or ``time/total_s``.
        y: Any column of metrics.csv.
        title: Title of the figure.
    """
    averaged = {label: mean_and_std(runs, x, y) for label, runs in curves.items()}
    if y == "global/acc":
        # A method without a server model (clients alone) is drawn by what it has, and says so.
        alone = {label: runs for label, runs in curves.items() if averaged[label].empty}
        averaged |= {
            f"{label}: {OWN}": mean_and_std(runs, x, "personal/acc_mean") for label, runs in alone.items()
        }
    averaged = {label: points for label, points in averaged.items() if not points.empty}
    if not averaged:
        known = sorted({name for runs in curves.values() for run in runs for name in run})
        raise ConfigError(f"{y} over {x} must be columns that the runs have; they have {', '.join(known)}.")
    scale, label_x = _axis(x, max(points.x.max() for points in averaged.values()))
    figure, (axes,) = panels(title=title)
    for label, points in averaged.items():
        at, low, high = points.x / scale, points["mean"] - points["std"], points["mean"] + points["std"]
        (line,) = axes.plot(at, points["mean"], label=label, marker="o" if len(at) == 1 else None)
        if points["std"].any():
            axes.fill_between(at, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    bands = any(points["std"].any() for points in averaged.values())
    axes.set(xlabel=label_x, ylabel=AXIS_LABELS.get(y, y) + (" (mean ± std)" if bands else ""))
    _integer_rounds(axes, x)
    legend_below(figure, axes.get_legend_handles_labels()[0])
    return figure


def run_figure(run: pd.DataFrame, title: str = "") -> Figure:
    """Draw one run: accuracies in the upper panel, training loss in the lower one, over rounds."""
    figure, (upper, lower) = panels(2, title, (6.4, 6.4))
    rounds = run["round"]
    accuracies = {
        "global/acc": "global model, test set",
        "global/client_acc_mean": "global model, clients: mean ± std",
        "personal/acc_mean": "personal models: mean ± std",
    }
    for color, (name, label) in zip(PALETTE, accuracies.items(), strict=False):
        _curve(upper, rounds, run.get(name), label=label, color=color)
        spread = run.get(name.replace("_mean", "_std"))
        if name.endswith("_mean") and name in run and spread is not None:
            low, high = np.clip(run[name] - spread, 0, 1), np.clip(run[name] + spread, 0, 1)
            upper.fill_between(rounds, low, high, color=color, alpha=0.15, linewidth=0)
        worst = run.get(name.replace("_mean", "_worst")) if name.endswith("_mean") else None
        _curve(upper, rounds, worst, label=label.split(":")[0] + ": worst", color=color, linestyle=":")
    _curve(lower, rounds, run.get("train/loss"), color=PALETTE[0])
    upper.set(ylabel="accuracy")
    lower.set(ylabel=AXIS_LABELS["train/loss"], xlabel=AXIS_LABELS["round"])
    _integer_rounds(lower, "round")
    if upper.get_legend_handles_labels()[0]:
        upper.legend(loc="best", fontsize="small")
    return figure


def run_figures(run_dir: str | Path, title: str = "") -> dict[str, Path]:
    """Draw the figures of a run directory from its metrics.csv; give their names and paths."""
    path = Path(run_dir) / "figures" / "convergence.png"
    save_figure(run_figure(read_metrics(Path(run_dir) / "metrics.csv"), title), path)
    return {"convergence": path}


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, 150 dots per inch, completely or not at all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(buffer, format="png", dpi=150)
    atomic_write_bytes(path, buffer.getvalue())


def panels(
    number: int = 1, title: str = "", size: tuple[float, float] = (6.4, 3.8)
) -> tuple[Figure, tuple[Axes, ...]]:
    """Build a figure of panels below each other, without pyplot, whose registry would keep every figure alive."""
    from cycler import cycler
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(number, 1, sharex=True, squeeze=False)[:, 0]
    for panel in axes:
        panel.set_prop_cycle(cycler(linestyle=LINE_STYLES) * cycler(color=PALETTE))
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_title(title, loc="left", fontsize="medium")
    return figure, tuple(axes)


def legend_below(figure: Figure, handles: Sequence[Artist], columns: int | None = None) -> None:
    """Put the legend under the axes, where it hides no curve, and make the figure higher by its rows."""
    if columns is None:
        longest = max(len(str(handle.get_label())) for handle in handles)
        columns = max(1, min(len(handles), 90 // (longest + 8)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize="small", frameon=False)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.2 * math.ceil(len(handles) / columns))


def _curve(axes: Axes, x: pd.Series, y: pd.Series | None, **style: Any) -> None:
    """Plot the values that exist, so that a round without one does not break the line."""
    if y is not None and np.isfinite(y).any():
        known = np.isfinite(y)
        axes.plot(x[known], y[known], marker="o" if known.sum() == 1 else None, **style)


def _axis(x: str, largest: float) -> tuple[float, str]:
    """Choose the unit of an axis: the divisor and the label."""
    label = AXIS_LABELS.get(x, x)
    if "{}" not in label:
        return 1.0, label
    scale, prefix, words = next((unit for unit in PREFIXES if largest >= unit[0]), (1.0, "", ""))
    return scale, label.format(prefix if "B)" in label else words).removesuffix(" ()")


def _integer_rounds(axes: Axes, x: str) -> None:
    if x == "round":
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
