"""Pictures of class preferences: which class each neuron of each client encodes, and TV over the layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from fedfeat.errors import ConfigError
from fedfeat.features.diagnostics import Alignment, short_names
from fedfeat.features.preference import NO_CLASS, alignment, choose_depth, tv_threshold
from fedfeat.runs.class_colors import ClassColors
from fedfeat.runs.feature_numbers import SERVER, rows_of, write_alignments
from fedfeat.runs.figures import panels, save_figure, whole_numbers
from fedfeat.runs.legend import legend_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "os^Dv<>"
ROW = 0.17
"""Height of a client's row in inches: a small label fits; at most 2.6 inches for all of them."""


def encoding_map(
    encodings: Mapping[str, Mapping[str, Sequence[Tensor]]],
    class_names: Sequence[str],
    layers: Sequence[str] | None = None,
    client_names: Mapping[str, Sequence[str]] | None = None,
    stacked: bool = False,
    palette: str = "tab10",
) -> Figure:
    """Draw feature encodings (Psi-Net Fig. 1, Fed2 Figs. 1 and 3): a row per client, a bar per neuron.

    The colour of a bar is the neuron's primary class; where columns have one colour, averaging by coordinates
    averages like with like. Each panel names the alignment: the share of agreeing client pairs, averaged over
    neurons.

    Args:
        encodings: Method to layer to each client's `primary_classes`, (neurons,). Clients and neurons may differ
            in number from method to method.
        class_names: Names of all classes. Up to as many as the palette has colours they get a legend, beyond
            that a continuous scale.
        layers: Layers to draw, from top to bottom; all of the first method where None.
        client_names: Method to the labels of its rows; numbers from 0 where None.
        stacked: Methods below each other instead of side by side.
        palette: One of ``matplotlib.color_sequences``; ``petroff10`` is easier to tell apart than ``tab10``
            under colour-blindness.
    """
    methods = list(encodings)
    layers = list(next(iter(encodings.values()))) if layers is None else list(layers)
    for method, found in encodings.items():
        if missing := [layer for layer in layers if layer not in found]:
            raise ConfigError(
                f"layers must be layers of {method}, but {missing[0]} is not: {', '.join(found)}."
            )
    short = dict(zip(layers, short_names(layers), strict=True))
    tables = {
        (layer, method): np.stack([np.asarray(client) for client in encodings[method][layer]])
        for layer in layers
        for method in methods
    }
    colors = ClassColors(class_names, palette)
    figure, panels = _grid(tables, len(methods), stacked)
    for axes, ((layer, method), table) in zip(panels, tables.items(), strict=True):
        axes.imshow(
            colors.number(table), aspect="auto", interpolation="nearest", cmap=colors.map, **colors.range
        )
        share = alignment(encodings[method][layer]).numpy()
        mean = f"agreement {np.nanmean(share):.2f}" if np.isfinite(share).any() else ""
        axes.set_title(f"{method}, {short[layer]}" if method else short[layer], loc="left", fontsize="medium")
        axes.set_title(mean, loc="right", fontsize="small")
        _client_rows(axes, len(table), None if client_names is None else client_names[method])
    colors.explain(figure, panels, any((table == NO_CLASS).any() for table in tables.values()))
    return figure


def tv_curve(
    layers: Sequence[str],
    curves: Mapping[str, Sequence[float]],
    depths: Mapping[str, int] | None = None,
    tau: float = 0.5,
    title: str = "",
    with_output: bool = False,
) -> Figure:
    """Draw TV over the layers (Psi-Net Fig. 7, Fed2 Fig. 10) with its threshold, and where groups begin.

    Args:
        layers: Names of the layers, first to last.
        curves: Label (of a run or data set) to the TV of each layer.
        depths: Label to the number of shared layers, of the networks that are split into groups.
        tau: Height of the threshold, see `choose_depth`.
        title: Title of the figure.
        with_output: Whether the last layer gives the logits, whose TV counts for no threshold.
    """
    from matplotlib.lines import Line2D

    names, depths = short_names(layers), depths or {}
    figure, (axes,) = panels(title=title, size=(max(7.2, 0.32 * len(layers)), 3.8))
    at = np.arange(1, len(layers) + 1)
    nothing = Line2D([], [], linestyle="none", label="")
    columns: list[list[Line2D]] = [[], [], []]
    for number, (label, tv) in enumerate(curves.items()):
        (line,) = axes.plot(at, tv, marker=MARKERS[number % len(MARKERS)], markersize=5, label=label)
        style: dict[str, Any] = {"color": line.get_color(), "linewidth": 1.2}
        hidden = tv[:-1] if with_output else tv
        dotted = ends = nothing
        if np.isfinite(hidden).all():  # else activations have overflown
            height, first = tv_threshold(hidden, tau), choose_depth(hidden, tau)
            where = f"first exceeded by {names[first]}" if first < len(hidden) else "not exceeded"
            dotted = axes.axhline(height, linestyle=":", label=f"threshold {height:.2f}, {where}", **style)
        if label in depths:
            # Moved a little, so that equal depths stay two lines.
            place, text = depths[label] + 0.5 + 0.06 * number, _groups_from(names, depths[label])
            ends = axes.axvline(place, linestyle="--", label=text, **style)
        for column, handle in zip(columns, (line, dotted, ends), strict=True):
            column.append(handle)
    axes.set(xlabel="layer, first to last", ylabel="total variance (TV)", ylim=(0, None))
    axes.set_xlim(0.4, len(layers) + 0.6)
    axes.set_xticks(at, names, rotation=45, ha="right", rotation_mode="anchor", fontsize="small")
    which = "hidden layers" if with_output else "layers"
    axes.set_title(f"threshold: min + {tau:g} (max - min) of the {which}", loc="right", fontsize="small")
    filled = columns if depths else columns[:2]
    legend_below(figure, [handle for column in filled for handle in column], columns=len(filled))
    return figure


def _groups_from(names: Sequence[str], depth: int) -> str:
    return f"groups from {names[depth]} on" if depth < len(names) else "no groups"


def _grid(
    tables: Mapping[tuple[str, str], np.ndarray], num_methods: int, stacked: bool
) -> tuple[Figure, list[Axes]]:
    """Build one panel per table, layers from top to bottom, high enough for rows and wide enough for bars."""
    from matplotlib.figure import Figure

    columns = 1 if stacked else num_methods
    rows = len(tables) // columns
    clients = max(len(table) for table in tables.values())
    neurons = max(table.shape[1] for table in tables.values())
    # At 150 dots per inch a bar has at least one dot up to 1680 neurons.
    width = min(12.0, max(6.4 if columns == 1 else 4.4, neurons / 140))
    height = rows * (min(2.6, max(0.5, ROW * clients)) + 0.5)
    figure = Figure(figsize=(columns * (width + 0.4), height + 0.2), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for number, axes in enumerate(panels):
        if number % columns == 0:
            axes.set_ylabel("client")
        if number >= len(panels) - columns:
            axes.set_xlabel("neuron")
    return figure, panels


def _client_rows(axes: Axes, clients: int, names: Sequence[str] | None) -> None:
    """Label the rows, as many as have room, and part them by white lines."""
    labels = [str(client) for client in range(clients)] if names is None else list(names)
    if labels == [SERVER]:
        axes.set_ylabel("")
    step = math.ceil(clients * 0.13 / 2.6)
    axes.set_yticks(range(0, clients, step), labels[::step], fontsize="x-small")
    whole_numbers(axes.xaxis)
    axes.tick_params(axis="x", labelsize="x-small")
    axes.tick_params(axis="y", length=0)
    axes.spines[:].set_visible(False)
    if clients <= 30:
        for client in range(1, clients):
            axes.axhline(client - 0.5, color="white", linewidth=1.2)


def encodings(found: Mapping[str, Alignment], class_names: Sequence[str]) -> Figure:
    """Draw the feature-encoding maps of one or several runs side by side, each with its name."""
    primaries = {
        name: dict(zip(one.layers, map(list, one.primaries), strict=True)) for name, one in found.items()
    }
    return encoding_map(
        primaries, class_names, client_names={name: rows_of(one) for name, one in found.items()}
    )


def draw_encodings(path: Path, found: Mapping[str, Alignment], class_names: Sequence[str]) -> None:
    """Write `encodings` to a PNG file, and beside it what it shows, see `runs.feature_numbers`."""
    save_figure(encodings(found, class_names), path)
    write_alignments(path.with_suffix(".npz"), found)
