"""A picture of intervals: one line per claim and setting, against the bound that decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedfeat.evidence.claims import MIN_SEEDS, Claim, Judgement
from fedfeat.runs.figures import PALETTE, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"holds": PALETTE[2], "does not hold": PALETTE[1], "undecided": PALETTE[0]}
_HEIGHT = 0.32  # inches of a line


def forest(judged: Sequence[tuple[Claim, Judgement]]) -> Figure | None:
    """Draw the intervals of claims about differences of accuracies, and their bounds as ticks.

    Args:
        judged: Claims with what was decided.

    Returns:
        None where no such claim has an interval yet.
    """
    lines = [
        (f"{claim.id} {setting}".strip(), claim.rule.bound, interval, found.verdicts[setting])
        for claim, found in judged
        for setting, interval in found.found.items()
        if claim.rule.against is not None and interval is not None and math.isfinite(interval.high)
        and "acc" in claim.quantity
    ]  # fmt: skip
    if not lines:
        return None
    figure, (axes,) = panels()
    figure.set_size_inches(figure.get_figwidth(), 1.2 + _HEIGHT * len(lines))
    for at, (_, bound, interval, verdict) in enumerate(lines):
        colour = _COLOURS[verdict]
        style, fill = ("-", colour) if interval.num_seeds >= MIN_SEEDS else (":", "white")
        axes.plot([interval.low, interval.high], [at, at], color=colour, linewidth=2, linestyle=style)
        axes.plot([interval.mean], [at], "o", color=colour, markersize=5, markerfacecolor=fill)
        axes.plot([bound], [at], "|", color="black", markersize=14)
    axes.set_yticks(range(len(lines)), [name for name, *_ in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlabel("difference of accuracies\n95 % interval; bar: the claim's bound")
    for name, colour in _COLOURS.items():
        axes.plot([], [], color=colour, linewidth=2, linestyle="-", label=name)
    if any(interval.num_seeds < MIN_SEEDS for _, _, interval, _ in lines):
        axes.plot([], [], color="grey", linewidth=2, linestyle=":", label=f"fewer than {MIN_SEEDS} seeds")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize="small")
    return figure
