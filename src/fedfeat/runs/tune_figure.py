"""The picture of a search: which keys matter, and how accuracy follows each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fedfeat.runs.figures import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDE = 20  # letters of a choice that still stand beside each other


class Tried(NamedTuple):
    """What was tried of one key.

    Attributes:
        values: By trial: numbers, or texts of choices.
        choices: The texts in their order; nothing where they are numbers.
        log: Whether ratios of numbers count.
    """

    values: Sequence[float | str]
    choices: Sequence[str] = ()
    log: bool = False


def tune_figure(
    importance: Mapping[str, float],
    tried: Mapping[str, Tried],
    scores: Sequence[float],
    cut: Sequence[bool],
    title: str = "",
) -> Figure:
    """Draw bars of importance and, of each key, the accuracy of all trials over its values.

    Args:
        importance: Share of each key in how accuracy varies; it may be empty.
        tried: Values by key, most important first.
        scores: Accuracy on validation data by trial; of one that was cut short, of its last round.
        cut: Whether a trial was cut short.
        title: Title of the figure.
    """
    from matplotlib.figure import Figure

    columns = 2 if len(tried) in (2, 4) else min(len(tried), 3)
    rows = math.ceil(len(tried) / columns)
    bars = 0.5 + 0.28 * len(importance) if importance else 0.0
    figure = Figure(figsize=(7.6, bars + 2.4 * rows + 0.7), layout="constrained")
    figure.suptitle(title, fontsize="medium", x=0.01, ha="left")
    parts = (
        figure.subfigures(2, 1, height_ratios=[bars, 2.4 * rows + 0.4], squeeze=False)[:, 0]
        if bars
        else [figure]
    )
    if importance:
        _bars(parts[0].subplots(), importance)
    grid = parts[-1].add_gridspec(rows, columns)
    best = max(range(len(scores)), key=lambda number: (not cut[number], scores[number]))
    first: Axes | None = None
    for number, (key, values) in enumerate(tried.items()):
        panel = parts[-1].add_subplot(grid[number // columns, number % columns], sharey=first)
        first = first or panel
        _slice(panel, key, values, scores, cut, best)
        panel.set(ylabel="accuracy (validation)" if number % columns == 0 else "")
    if first:
        handles, labels = first.get_legend_handles_labels()
        parts[-1].legend(
            handles, labels, loc="outside lower center", ncols=3, fontsize="small", frameon=False
        )
    return figure


def _bars(axes: Axes, importance: Mapping[str, float]) -> None:
    keys = list(importance)[::-1]
    drawn = axes.barh(keys, [importance[key] for key in keys], color=PALETTE[0], height=0.6)
    axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize="small")
    axes.set(xlim=(0, 1.1 * max(importance.values())), xlabel="importance")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _slice(
    axes: Axes, key: str, tried: Tried, scores: Sequence[float], cut: Sequence[bool], best: int
) -> None:
    numbers = [tried.choices.index(str(value)) for value in tried.values] if tried.choices else tried.values
    for was_cut, fill in ((False, PALETTE[0]), (True, "none")):
        at = [number for number in range(len(scores)) if cut[number] is was_cut]
        label = "cut short, at its last round" if was_cut else "finished"
        chosen = [numbers[i] for i in at], [scores[i] for i in at]
        axes.scatter(*chosen, s=22, label=label, facecolor=fill, edgecolor=PALETTE[0])
    axes.scatter([numbers[best]], [scores[best]], s=90, marker="*", color=PALETTE[1], label="best", zorder=3)
    if tried.choices:
        turned = sum(map(len, tried.choices)) > _WIDE
        axes.set_xticks(range(len(tried.choices)), tried.choices, rotation=25 if turned else 0)
        axes.margins(x=0.2)
    elif tried.log:
        axes.set_xscale("log")
    axes.set_title(key, fontsize="small", loc="left")
    axes.tick_params(labelsize="small")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
