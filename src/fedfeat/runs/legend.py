"""The legend of a figure: under its axes, as high and wide as its words need, and no more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

GREY = "#b8b8b8"
"""Of curves that no legend names."""
UNNAMED = "_"
"""Their label: matplotlib leaves out of a legend what begins so."""
_LONGEST = 150
"""Signs of a line."""


def legend_below(
    figure: Figure, handles: Sequence[Artist], columns: int | None = None, more: int = 0
) -> None:
    """Put the legend under the axes, where it hides no curve, and make the figure higher by its rows.

    Args:
        figure: The figure.
        handles: What it names, by their labels; one of many words goes over several lines.
        columns: How many stand beside each other; None are as many as fit.
        more: How many grey curves are counted behind the named ones; none if it is not positive.
    """
    from matplotlib.lines import Line2D

    if more > 0:
        handles = [*handles, Line2D([], [], color=GREY, label=f"{more} more, in the table")]
    texts = ["\n".join(wrap(str(handle.get_label()), _LONGEST)) for handle in handles]
    longest = max((len(line) for text in texts for line in text.splitlines()), default=0)
    if columns is None:
        columns = max(1, min(len(handles), 90 // (longest + 8)))
    look = {"ncols": columns, "fontsize": "small", "frameon": False}
    figure.legend(handles=handles, labels=texts, loc="outside lower center", **look)
    width, height = figure.get_size_inches()
    # A line that is longer than the figure is wide would be cut.
    width = max(width, 0.072 * longest + 0.6)
    lines = sum(text.count("\n") + 1 for text in texts)
    figure.set_size_inches(width, height + 0.2 * math.ceil(lines / columns))
