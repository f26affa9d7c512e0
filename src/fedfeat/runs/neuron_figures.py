"""Pictures of single neurons, model beside model: their class preferences as bars, and what they answer to most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedfeat.features.preference import NO_CLASS
from fedfeat.runs.class_colors import ClassColors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LABELS = 20
"""Classes that get a label each beside their bars."""


def preference_bars(
    title: str,
    neurons: Sequence[int],
    shares: Mapping[str, Tensor],
    present: Mapping[str, Tensor],
    class_names: Sequence[str],
) -> Figure:
    """Draw preference vectors of chosen neurons (Fed2 Fig. 2): a row per neuron, a column per model, a bar per class.

    Bars have the colours of the encoding map.

    Args:
        title: Title of the figure.
        neurons: Numbers of the neurons.
        shares: Model to its normalised vectors (neurons, classes), see `features.preference.normalise`; NaN for a
            neuron without any preference.
        present: Model to which of the neurons it has, bool (neurons,).
        class_names: Names of all classes.
    """
    colors = ClassColors(class_names, "tab10")
    at = range(len(class_names))
    height = 0.5 + min(0.16 * len(class_names), 3.2)
    figure, panels = _grid(title, neurons, list(shares), 0.95, height, shared=True)
    for column, (model, vectors) in enumerate(shares.items()):
        for row, vector in enumerate(vectors):
            axes = panels[row][column]
            if not present[model][row] or vector.isnan().any():
                _say(axes, "no class" if present[model][row] else "lacks it")
                continue
            axes.barh(at, vector.numpy(), color=[colors.of(label) for label in at], height=0.8)
            axes.grid(axis="x", alpha=0.3)
            axes.set_axisbelow(True)
    first = panels[0][0]
    step = -(-len(class_names) // MOST_LABELS)
    first.set_yticks(list(at)[::step], list(class_names)[::step])
    first.invert_yaxis()
    first.set_xlim(left=min(0.0, *(float(vectors.nan_to_num().min()) for vectors in shares.values())))
    for axes in (axes for row in panels for axes in row):
        axes.tick_params(labelsize="x-small", length=2)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("share of the neuron's class preference", fontsize="small")
    return figure


def maximised_grid(
    title: str,
    neurons: Sequence[int],
    pixels: Mapping[str, np.ndarray],
    classes: Mapping[str, Sequence[int]],
    class_names: Sequence[str],
    below: str,
) -> Figure:
    """Draw the pictures that maximise chosen neurons: a row per neuron, a column per model.

    Below each stands the neuron's primary class in that model.

    Args:
        title: Title of the figure.
        neurons: Numbers of the neurons.
        pixels: Model to its pictures (neurons, C, H, W), from 0 to 1; NaN for a neuron that it lacks. Other than one
            or three channels are shown by their mean.
        classes: Model to the primary class of each neuron, see `features.preference.primary_classes`.
        class_names: Names of all classes.
        below: What stands under the pictures: how they were made.
    """
    figure, panels = _grid(title, neurons, list(pixels), 0.95, 1.15)
    for column, (model, pictures) in enumerate(pixels.items()):
        for row, picture in enumerate(pictures):
            axes = panels[row][column]
            axes.set(xticks=[], yticks=[])
            if np.isnan(picture).any():
                _say(axes, "lacks it")
                continue
            image = picture.transpose(1, 2, 0) if len(picture) == 3 else picture.mean(0)
            axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            label = classes[model][row]
            name = "no class" if label == NO_CLASS else class_names[label]
            axes.set_xlabel(_short(name), fontsize="x-small", labelpad=2)
    figure.supxlabel(
        f"below each picture: the neuron's primary class. {below}", fontsize="x-small", wrap=True
    )
    return figure


def _grid(
    title: str,
    neurons: Sequence[int],
    models: Sequence[str],
    width: float,
    height: float,
    shared: bool = False,
) -> tuple[Figure, list[list[Axes]]]:
    """Build a panel per neuron and model, models beside each other; a single model's neurons take their place.

    Returns:
        The panels of each neuron, by model.
    """
    from matplotlib.figure import Figure

    down, across = [f"neuron {neuron}" for neuron in neurons], list(models)
    if len(models) == 1:
        down, across = across, down
    size = max(6.4, 0.9 + width * len(across)), 0.8 + height * len(down)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontsize="medium", x=0.01, ha="left")
    panels = figure.subplots(len(down), len(across), sharex=shared, sharey=shared, squeeze=False)
    for axes, name in zip(panels[0], across, strict=True):
        axes.set_title(name, fontsize="small")
    for row, name in zip(panels, down, strict=True):
        row[0].set_ylabel(name, fontsize="small")
    return figure, (panels.T if len(models) == 1 else panels).tolist()


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize="x-small")


def _short(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"
