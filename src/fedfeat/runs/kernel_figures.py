"""Pictures of kernels: CKA between networks as maps, and representations in the plane of two components."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedfeat.runs.class_colors import ClassColors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NUMBERS = 10
"""Networks up to which a map has its numbers in it."""


def cka_maps(maps: Mapping[str, Tensor], names: Sequence[str], kind: str = "client") -> Figure:
    """Draw CKA of all pairs of networks, a map beside the other, on one scale from 0 to 1.

    Args:
        maps: Title to `features.cka.cka_matrix`, (n, n).
        names: Names of the n networks.
        kind: What they are, on the axes.
    """
    from matplotlib.figure import Figure

    count = len(names)
    side = min(4.0, max(2.2, 0.42 * count))
    figure = Figure(figsize=(len(maps) * (side + 0.35) + 0.7, side + 0.6), layout="constrained")
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    for axes, (title, matrix) in zip(panels, maps.items(), strict=True):
        shown = axes.imshow(np.asarray(matrix), cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title, loc="left", fontsize="medium")
        axes.set(xlabel=kind, ylabel=kind if axes is panels[0] else "")
        step = math.ceil(count / 20)
        # Upright names of more than a number would touch each other.
        turned = (
            {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if max(map(len, names)) > 3 else {}
        )
        axes.set_xticks(range(0, count, step), names[::step], fontsize="x-small", **turned)
        axes.set_yticks(range(0, count, step), names[::step], fontsize="x-small")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if count <= MOST_NUMBERS:
            for (row, column), value in np.ndenumerate(np.asarray(matrix)):
                color = "black" if value > 0.6 else "white"
                axes.text(
                    column, row, f"{value:.2f}", ha="center", va="center", color=color, fontsize="x-small"
                )
    figure.colorbar(shown, ax=list(panels), label="CKA", fraction=0.05, pad=0.02)
    return figure


def component_maps(
    rows: Mapping[str, Mapping[str, Tensor]], labels: Tensor, class_names: Sequence[str]
) -> Figure:
    """Draw instances in the plane of their first two components, coloured by class; a panel per representation.

    Args:
        rows: Name of a row to title of a panel to components (m, 2), see `features.components`. Every panel has a scale
            of its own, for scale means nothing to CKA.
        labels: Classes of the instances, int64 (m,).
        class_names: Names of all classes.
    """
    from matplotlib.figure import Figure

    colors = ClassColors(class_names, "tab10")
    width = max(map(len, rows.values()))
    figure = Figure(figsize=(2.1 * width + 0.4, 2.25 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), width, squeeze=False)
    shades = {"c": np.asarray(labels), "cmap": colors.map, **colors.range}
    for line, (name, parts) in zip(panels, rows.items(), strict=True):
        for axes, (title, components) in zip(line, parts.items(), strict=False):
            axes.scatter(*np.asarray(components[:, :2]).T, s=7, linewidths=0, **shades)
            axes.set_title(title, loc="left", fontsize="small")
            axes.set_aspect("equal", adjustable="datalim")
            axes.spines[["top", "right"]].set_visible(False)
        for axes in line:
            axes.set(xticks=[], yticks=[])
        for axes in line[len(parts) :]:
            axes.axis("off")
        line[0].set_ylabel(name)
    colors.explain(figure, list(panels.flat), has_none=False)
    return figure
