"""Colours of classes, the same in all pictures of one data set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfeat.errors import ConfigError
from fedfeat.features.preference import NO_CLASS
from fedfeat.runs.legend import legend_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

NO_BAR = "#FFFFFF"
"""Of neurons without a class: the palettes have greys, but no white."""


class ClassColors:
    """Colours of the classes: a legend entry each, or a scale where there are too many for that.

    Args:
        class_names: Names of all classes.
        palette: One of ``matplotlib.color_sequences``.
    """

    def __init__(self, class_names: Sequence[str], palette: str) -> None:
        import matplotlib
        from matplotlib.colors import ListedColormap

        if palette not in matplotlib.color_sequences:
            raise ConfigError.rule("palette", f"be one of {', '.join(matplotlib.color_sequences)}", palette)
        sequence = matplotlib.color_sequences[palette]
        self.names = list(class_names)
        self.listed = len(self.names) <= len(sequence)
        chosen: Colormap = (
            ListedColormap(sequence[: len(self.names)]) if self.listed else matplotlib.colormaps["viridis"]
        )
        self.map = chosen.with_extremes(bad=NO_BAR)
        self.range: dict[str, Any] = {"vmin": -0.5, "vmax": len(self.names) - 0.5}

    def of(self, label: int) -> tuple[float, ...]:
        """Give the colour of a class, red, green, blue and opacity."""
        return self.map(int(label) if self.listed else label / (len(self.names) - 1))

    def number(self, table: np.ndarray) -> np.ma.MaskedArray:
        """Mask what has no class."""
        if table.max() >= len(self.names):
            raise ValueError(
                f"There are {len(self.names)} class names, but a neuron has class {table.max()}."
            )
        return np.ma.masked_equal(table, NO_CLASS)

    def explain(self, figure: Figure, panels: Sequence[Axes], has_none: bool) -> None:
        """Add a legend below the panels, or a scale beside them."""
        from matplotlib.patches import Patch

        handles = []
        if self.listed:
            handles = [Patch(color=self.map(number), label=name) for number, name in enumerate(self.names)]
        else:
            drawn = [*panels[0].images, *panels[0].collections][0]
            bar = figure.colorbar(drawn, ax=list(panels), label="primary class", pad=0.02)
            ticks = np.linspace(0, len(self.names) - 1, 6).round().astype(int)
            bar.set_ticks(ticks.tolist(), labels=[self.names[tick] for tick in ticks])
        if has_none:
            handles.append(Patch(facecolor=NO_BAR, edgecolor="grey", label="no class"))
        if handles:
            longest = max(len(str(handle.get_label())) for handle in handles)
            rows = math.ceil(len(handles) * (0.08 * longest + 0.55) / figure.get_size_inches()[0])
            # Rows of about equal length.
            legend_below(figure, handles, columns=math.ceil(len(handles) / rows))
