"""Figures: curves over rounds or costs, drawn from metrics.csv alone, and what all figures share."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from fedfeat.errors import ConfigError
from fedfeat.files import atomic_write_bytes
from fedfeat.runs.legend import GREY, UNNAMED, legend_below
from fedfeat.runs.metrics_table import mean_and_std, not_finite_since
from fedfeat.runs.quantities import Metric

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe & Ito (2008), "Color Universal Design": told apart by every kind of colour vision. Its yellow is left
# out, too pale for a line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINE_STYLES = ("-", "--", ":", "-.")
LOOKS = len(PALETTE) * len(LINE_STYLES)
"""Curves that are told apart by their look, and named."""
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
_COUNTS = ("bytes", "examples", "flops")
_HIGH = 44
"""Signs of a line along a vertical axis, of which a longer one would be cut."""
MAIN_METRIC = "global/acc,personal/acc_mean"
"""What a method is judged by: its server's model, or without one (clients alone) the clients' own."""


def convergence(
    curves: Mapping[str, Sequence[pd.DataFrame]],
    x: str = "round",
    y: str | Metric = MAIN_METRIC,
    title: str = "",
    beside: str | Metric | None = None,
) -> Figure:
    """Draw one curve per label, with a band of one standard deviation where a label has several runs.

    Args:
        curves: Label to the metrics of its runs.
        x: ``round``, ``comm/total_bytes``, ``compute/examples`` or ``time/total_s``.
        y: Column of metrics.csv; of several with commas between them each label is drawn by the first that it has.
        title: Title of the figure.
        beside: A second quantity like y, on an axis of its own.

    Raises:
        ConfigError: No run has such columns.
    """
    metrics = [Metric.parse(one) if isinstance(one, str) else one for one in (y, beside) if one is not None]
    known = {
        label: {name for run in runs for name in run if _has(run, name)} for label, runs in curves.items()
    }
    columns = [{label: metric.chosen(known[label]) for label in curves} for metric in metrics]
    drawn = [
        {label: mean_and_std(runs, x, chosen[label] or "") for label, runs in curves.items() if chosen[label]}
        for chosen in columns
    ]
    for metric, averaged in zip(metrics, drawn, strict=True):
        if not averaged or not any(x in run for runs in curves.values() for run in runs):
            names = ", ".join(sorted(set[str]().union(*known.values())))
            raise ConfigError(
                f"{metric.name} over {x} must be columns that the runs have; they have {names}."
            )
    scale, label_x = _axis(x, max((p.x.max() for one in drawn for p in one.values() if len(p)), default=0.0))
    figure, (left,) = panels(title=title)
    sides = [left, *(left.twinx() for _ in metrics[1:])]
    for side, (axes, metric, averaged) in enumerate(zip(sides, metrics, drawn, strict=True)):
        behind = suffixes(columns[side], len(metrics) > 1)
        for number, (label, runs) in enumerate(curves.items()):
            if label in averaged:
                text = label + behind[label] + _divergence(runs, str(columns[side][label]))
                _plot_mean(axes, averaged[label], scale, curve_style(text, number, len(curves), side))
        bands = any(points["std"].any() for points in averaged.values())
        name_values(axes, metric, columns[side].values(), bands)
    left.set(xlabel=label_x)
    _integer_rounds(left, x)
    same_scale(sides, metrics)
    handles = [handle for axes in sides for handle in axes.get_legend_handles_labels()[0]]
    legend_below(figure, handles, more=len(curves) - LOOKS)
    return figure


def _has(run: pd.DataFrame, column: str) -> bool:
    return bool(run[column].notna().any()) or not_finite_since(run, column) is not None


def curve_style(label: str, number: int, total: int, side: int = 0) -> dict[str, Any]:
    """Give colour, dashes, width and label of a curve; later curves are thinner, so that equal ones are both seen.

    What is drawn on a second axis (side 1) is dotted. A curve for which no look is left is thin, grey, behind
    and without a name.
    """
    if number >= LOOKS:
        return {"color": GREY, "linestyle": "-", "linewidth": 0.6, "zorder": 1, "label": UNNAMED}
    dashes = LINE_STYLES[number // len(PALETTE)] if side == 0 else (0, (1, 1.2))
    width = 2.6 - 1.4 * number / max(1, total - 1)
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": dashes, "linewidth": width, "label": label}


def suffixes(chosen: Mapping[str, str | None], always: bool = False) -> dict[str, str]:
    """Give what stands behind each label: the quantity that it is drawn by, where not all are drawn by one."""
    differ = len({name for name in chosen.values() if name}) > 1
    return {label: f": {name}" if differ or always else "" for label, name in chosen.items()}


def name_values(axes: Axes, metric: Metric, drawn: Iterable[str | None], has_spread: bool) -> None:
    """Name the vertical axis: by the metric's own name, or by the quantities that were drawn; counts have prefixes."""
    from matplotlib.ticker import EngFormatter

    names = [name for name in metric.quantities if name in set(drawn)]
    labels = [AXIS_LABELS.get(name, name).replace("({}B)", "(B)").replace(" ({})", "") for name in names]
    name = metric.name if metric.has_own_name else "\nor ".join(labels)
    text = name + (" (mean ± std)" if has_spread else "")
    axes.set(ylabel="\n".join(line for part in text.splitlines() for line in wrap(part, _HIGH)))
    if any(name.endswith(_COUNTS) for name in names):
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def same_scale(sides: Sequence[Axes], metrics: Sequence[Metric]) -> None:
    """Give two axes that both show accuracies one scale, for two scales would show a difference that is none."""
    if len(sides) == 2 and all("acc" in name for metric in metrics for name in metric.quantities):
        limits = [axes.get_ylim() for axes in sides]
        for axes in sides:
            axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _plot_mean(axes: Axes, points: pd.DataFrame, scale: float, style: dict[str, Any]) -> None:
    at, low, high = points.x / scale, points["mean"] - points["std"], points["mean"] + points["std"]
    (line,) = axes.plot(at, points["mean"], marker="o" if len(at) == 1 else None, **style)
    if points["std"].any() and style["label"] != UNNAMED:
        axes.fill_between(at, low, high, color=line.get_color(), alpha=0.2, linewidth=0)


def _divergence(runs: Sequence[pd.DataFrame], column: str) -> str:
    """Say from when on runs have no finite number, for there their curve ends."""
    since = [first for run in runs if (first := not_finite_since(run, column)) is not None]
    if not since:
        return ""
    share = "" if len(runs) == 1 else f" in {len(since)} of {len(runs)} runs"
    return f" (nan from round {min(since):g}{share})"


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure, completely or not at all: as PNG of 150 dots per inch, as PDF or SVG, by the path's ending.

    Equal figures give equal files. A dollar in a name is a dollar.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    kind, buffer = Path(path).suffix.removeprefix("."), io.BytesIO()
    # Of both forms, the date of writing would be part.
    dateless = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    _take_dollars_as_they_are(figure)
    with matplotlib.rc_context({"svg.hashsalt": "fedfeat", "pdf.fonttype": 42}):
        FigureCanvasAgg(figure).print_figure(buffer, format=kind, dpi=150, metadata=dateless)
    atomic_write_bytes(path, buffer.getvalue())


def _take_dollars_as_they_are(figure: Figure) -> None:
    """Read formulas in the numbers of a logarithmic axis alone: two dollars in a class's or a run's name are none."""
    from matplotlib.text import Text

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_ticklabels()  # matplotlib makes these when it draws
    for text in figure.findobj(Text):
        text.set_parse_math(text.get_text().startswith("$\\mathdefault{"))


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
    set_title(axes[0], title, size[0])
    return figure, tuple(axes)


def set_title(axes: Axes, title: str, inches: float) -> None:
    """Put a title over the left end of axes, in lines that do not reach beyond their width."""
    axes.set_title("\n".join(wrap(title, round(11 * inches))), loc="left", fontsize="medium")


def whole_numbers(axis: Axis) -> None:
    """Have whole numbers alone at an axis, of a single one too."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _axis(x: str, largest: float) -> tuple[float, str]:
    """Choose the unit of an axis: the divisor and the label."""
    label = AXIS_LABELS.get(x, x)
    if "{}" not in label:
        return 1.0, label
    scale, prefix, words = next((unit for unit in PREFIXES if largest >= unit[0]), (1.0, "", ""))
    return scale, label.format(prefix if "B)" in label else words).removesuffix(" ()")


def _integer_rounds(axes: Axes, x: str) -> None:
    if x == "round":
        whole_numbers(axes.xaxis)
