"""A picture of intervals: one line per claim and setting, against the bound that decides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fedfeat.evidence.claims import Claim, Judgement
from fedfeat.evidence.intervals import Interval
from fedfeat.evidence.rules import MIN_SEEDS, Rule
from fedfeat.runs.figures import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_COLOURS = {"holds": PALETTE[2], "does not hold": PALETTE[1], "undecided": PALETTE[0]}
_HEIGHT = 0.2  # inches of a line
_NEAR = 0.1
"""Differences are drawn on a scale of their own where their whole interval is at most so far from 0."""


class _Line(NamedTuple):
    name: str
    bound: float
    interval: Interval
    verdict: str
    has_caveat: bool

    @property
    def is_near(self) -> bool:
        return max(abs(self.interval.low), abs(self.interval.high)) <= _NEAR

    @property
    def is_decisive(self) -> bool:
        return self.interval.num_seeds >= MIN_SEEDS


def forest(judged: Sequence[tuple[Claim, Judgement]]) -> Figure | None:
    """Draw the intervals of claims about differences of accuracies, and their bounds as ticks.

    Small differences stand on the left, large ones on the right, on a scale of their own.

    Args:
        judged: Claims with what was decided.

    Returns:
        None where no such claim has an interval yet.
    """
    from matplotlib.figure import Figure

    lines = [*_lines(judged)]
    sides = [side for near in (True, False) if (side := [one for one in lines if one.is_near is near])]
    if not sides:
        return None
    height = 1.2 + _HEIGHT * max(map(len, sides))
    figure = Figure(figsize=(5.2 * len(sides), height), layout="constrained")
    for axes, side in zip(figure.subplots(1, len(sides), squeeze=False)[0], sides, strict=True):
        _draw(axes, side)
    handles = _legend(lines)
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize="small")
    return figure


def _lines(all_judged: Sequence[tuple[Claim, Judgement]]) -> Iterator[_Line]:
    for claim, judged in all_judged:
        rule = claim.rule
        if not isinstance(rule, Rule) or rule.against is None or "acc" not in claim.quantity:
            continue
        for setting, one in judged.decided.items():
            if isinstance(one.found, Interval) and math.isfinite(one.found.high):
                name = f"{claim.id} {setting}".strip()
                yield _Line(name, rule.bound, one.found, one.verdict, bool(claim.caveat))


def _draw(axes: Axes, lines: Sequence[_Line]) -> None:
    for at, one in enumerate(lines):
        colour, interval = _COLOURS[one.verdict], one.interval
        axes.plot(
            [interval.low, interval.high],
            [at, at],
            color=colour,
            linewidth=1.6,
            linestyle="-" if one.is_decisive else ":",
            alpha=0.4 if one.has_caveat else 1,
        )
        fill = "white" if one.has_caveat or not one.is_decisive else colour
        axes.plot([interval.mean], [at], "o", color=colour, markersize=3.5, markerfacecolor=fill)
        axes.plot([one.bound], [at], "|", color="black", markersize=9)
    axes.set_yticks(range(len(lines)), [one.name for one in lines], fontsize="x-small")
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize="small")
    axes.set_xlabel("difference of accuracies, 95 % interval\nbar: the claim's bound", fontsize="small")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(lines: Sequence[_Line]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linewidth=2, label=name) for name, colour in _COLOURS.items()]
    if any(one.has_caveat for one in lines):
        label = "with a caveat"
        handles.append(
            Line2D([], [], color="grey", alpha=0.4, marker="o", markerfacecolor="white", label=label)
        )
    if not all(one.is_decisive for one in lines):
        label = f"fewer than {MIN_SEEDS} seeds"
        handles.append(Line2D([], [], color="grey", linewidth=2, linestyle=":", label=label))
    return handles
