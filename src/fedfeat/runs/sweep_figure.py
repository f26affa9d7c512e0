"""Quantities over a swept key: lines where it is a number, bars where it is a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfeat.runs.figures import (
    LOOKS,
    PALETTE,
    curve_style,
    name_values,
    panels,
    same_scale,
    suffixes,
)
from fedfeat.runs.labels import sort_key
from fedfeat.runs.legend import UNNAMED, legend_below
from fedfeat.runs.quantities import Metric
from fedfeat.runs.text import is_number, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WHITE = {"facecolor": "white", "linewidth": 0, "pad": 1.5}
LOG_FROM = 50.0
"""Ratio of the largest to the smallest value of a key from which on its axis is logarithmic."""


@dataclass(frozen=True)
class Point:
    """A quantity of one setting over its runs.

    Attributes:
        values: One number per run that has it; NaN of a run that has diverged.
        num_runs: How many runs there are.
    """

    values: tuple[float, ...]
    num_runs: int

    @property
    def mean(self) -> float:
        """Mean over the runs; NaN if one has diverged."""
        return float(np.mean(self.values)) if self.values else float("nan")

    @property
    def std(self) -> float:
        """Sample standard deviation; 0 for a single run."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0

    @property
    def is_nan(self) -> bool:
        """Whether there are numbers but no finite mean."""
        return bool(self.values) and not np.isfinite(self.mean)

    @property
    def is_partial(self) -> bool:
        """Whether some runs lack it, as one that never came to a target."""
        return len(self.values) < self.num_runs


@dataclass(frozen=True)
class Quantity:
    """What stands on one axis.

    Attributes:
        metric: Its name.
        curves: Label to value of the key to point.
        levels: Label to the point of a setting that lacks the key.
        chosen: Label to the quantity it is drawn by, in words where these are several.
        drawn: All quantities that are drawn.
    """

    metric: Metric
    curves: Mapping[str, Mapping[Any, Point]]
    levels: Mapping[str, Point]
    chosen: Mapping[str, str]
    drawn: frozenset[str]

    @property
    def has_spread(self) -> bool:
        """Whether any of its settings has runs that differ."""
        points = [point for curve in self.curves.values() for point in curve.values()]
        return any(point.std > 0 for point in (*points, *self.levels.values()))


def sweep_figure(key: str, quantities: Sequence[Quantity], bars: bool = False) -> Figure:
    """Draw one or two quantities over the values of a key.

    A setting that lacks the key is a horizontal line across. Spread is one sample standard deviation; a hollow mark is
    a mean over some of a setting's runs only, ``nan`` stands at the foot where one has diverged.

    Args:
        key: Name of the key.
        quantities: What to draw; the second on an axis of its own, always as marks.
        bars: Bars for numbers too.
    """
    found = {value for one in quantities for curve in one.curves.values() for value in curve}
    values = sorted(found, key=sort_key)
    as_bars = bars or not all(map(is_number, values))
    places = {value: float(number) if as_bars else float(value) for number, value in enumerate(values)}
    labels = list(dict.fromkeys(label for one in quantities for label in (*one.curves, *one.levels)))
    bar_labels = [label for label in labels if any(label in one.curves for one in quantities)]
    width = 0.8 / len(bar_labels)
    figure, (left,) = panels()
    sides, texts = [left, *(left.twinx() for _ in quantities[1:])], list[str]()
    for side, (axes, one) in enumerate(zip(sides, quantities, strict=True)):
        names = suffixes(one.chosen, len(quantities) > 1 or not one.drawn.issuperset(one.chosen.values()))
        for number, label in enumerate(labels):
            texts.append(label + names.get(label, ""))
            style = curve_style(texts[-1], number, len(labels), side)
            if label in one.levels:
                _level(axes, one.levels[label], style | {"linestyle": ("--", "-.")[side]})
            elif label in one.curves:
                curve = one.curves[label]
                moved = (bar_labels.index(label) - (len(bar_labels) - 1) / 2) * width if as_bars else 0.0
                points = [(places[value] + moved, curve[value]) for value in values if value in curve]
                if as_bars and side == 0:
                    _bars(axes, points, number, width, style)
                else:
                    # Between words there is nothing that a line could go through.
                    _line(axes, points, style | ({"linestyle": "none"} if as_bars else {}), side)
        name_values(axes, one.metric, one.drawn, one.has_spread)
    _ticks(left, key, places, as_bars)
    same_scale(sides, [one.metric for one in quantities])
    handles = [handle for axes in sides for handle in axes.get_legend_handles_labels()[0]]
    # Matplotlib puts what has error bars last.
    ordered = sorted(handles, key=lambda handle: texts.index(str(handle.get_label())))
    legend_below(figure, ordered, more=len(labels) - LOOKS)
    return figure


def _line(axes: Axes, points: Sequence[tuple[float, Point]], style: dict[str, Any], side: int) -> None:
    at, means, spread = _finite(axes, points, style["color"], side)
    look: dict[str, Any] = {"marker": "os"[side], "markersize": 5}
    if style["linestyle"] == "none":
        # It may stand on a bar of its colour.
        look |= {"markersize": 8, "markeredgecolor": "white"}
    if any(spread):
        axes.errorbar(at, means, spread, capsize=3, elinewidth=1, **look, **style)
    else:
        axes.plot(at, means, **look, **style)
    hollow = [(place, point.mean) for place, point in points if point.is_partial]
    if hollow:
        look |= {"color": style["color"], "markerfacecolor": "white", "linestyle": "none", "zorder": 4}
        axes.plot(*zip(*hollow, strict=True), **look)


def _bars(
    axes: Axes, points: Sequence[tuple[float, Point]], number: int, width: float, style: dict[str, Any]
) -> None:
    """Draw the bars of one curve, each beside those of the others."""
    at, means, spread = _finite(axes, points, style["color"])
    hatch = ("", "//", "..", "xx")[number // len(PALETTE) % 4]
    look: dict[str, Any] = {"color": style["color"], "edgecolor": "white", "linewidth": 0.5, "hatch": hatch}
    bars = axes.bar(at, means, width * 0.92, label=style["label"], **look)
    if any(spread):
        axes.errorbar(at, means, spread, fmt="none", ecolor="#333333", capsize=3)
    partial = {place for place, point in points if point.is_partial}
    for place, bar in zip(at, bars, strict=True):
        if place in partial:
            bar.set(facecolor="white", edgecolor=style["color"], linewidth=1.5)


def _level(axes: Axes, point: Point, style: dict[str, Any]) -> None:
    """Draw a setting without the key across all values, with a band of its spread."""
    axes.axhline(point.mean, **style)
    if point.is_nan and style["label"] != UNNAMED:
        axes.text(0.01, 0.02, f"{style['label']}: nan", color=style["color"], transform=axes.transAxes)
    elif point.std > 0:
        low, high = point.mean - point.std, point.mean + point.std
        axes.axhspan(low, high, color=style["color"], alpha=0.15, linewidth=0)


def _finite(
    axes: Axes, points: Sequence[tuple[float, Point]], color: str, side: int = 0
) -> tuple[list[float], list[float], list[float]]:
    """Give places, means and spreads of what can be drawn, and write ``nan`` at the foot of what has diverged."""
    foot = axes.get_xaxis_transform()
    for place, point in points:
        if point.is_nan:
            word = "nan" if side == 0 else "nan →"
            axes.text(
                place, 0.02, word, color=color, transform=foot, ha="center", fontsize="small", bbox=_WHITE
            )
    drawn = [(place, point) for place, point in points if np.isfinite(point.mean)]
    return [at for at, _ in drawn], [point.mean for _, point in drawn], [point.std for _, point in drawn]


def _ticks(axes: Axes, key: str, places: Mapping[Any, float], as_bars: bool) -> None:
    """Put a tick at every value, as long as their labels do not run into each other."""
    axes.set(xlabel=key)
    at = list(places.values())
    if not as_bars and min(at) > 0 and max(at) / min(at) >= LOG_FROM:
        axes.set_xscale("log")
    if as_bars or len(at) <= 12:
        texts = [written(value) for value in places]
        axes.set_xticks(at, texts)
        if sum(map(len, texts)) > 60:
            axes.tick_params(axis="x", rotation=30)
        axes.set_xticks([], minor=True)
    if as_bars:
        axes.grid(visible=False, axis="x")
