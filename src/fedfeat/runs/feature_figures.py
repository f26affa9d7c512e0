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
from fedfeat.runs.figures import legend_below, panels, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

MARKERS = "os^Dv<>"
NO_BAR = "#FFFFFF"
"""Of neurons without a class: the palettes have greys, but no white."""
ROW = 0.17
"""Height of a client's row in inches: a small label fits; at most 2.6 inches for all of them."""


def encoding_map(
    encodings: Mapping[str, Mapping[str, Sequence[Tensor]]],
    class_names: Sequence[str],
    layers: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
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
        client_names: Labels of the rows; numbers from 0 where None.
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
    colors = _Colors(class_names, palette)
    figure, panels = _grid(tables, len(methods), stacked)
    for axes, ((layer, method), table) in zip(panels, tables.items(), strict=True):
        axes.imshow(
            colors.number(table), aspect="auto", interpolation="nearest", cmap=colors.map, **colors.range
        )
        share = alignment(encodings[method][layer]).numpy()
        mean = f"alignment {np.nanmean(share):.2f}" if np.isfinite(share).any() else ""
        axes.set_title(f"{method}, {short[layer]}" if method else short[layer], loc="left", fontsize="medium")
        axes.set_title(mean, loc="right", fontsize="small")
        _client_rows(axes, len(table), client_names)
    colors.explain(figure, panels, any((table == NO_CLASS).any() for table in tables.values()))
    return figure


def tv_curve(
    layers: Sequence[str],
    curves: Mapping[str, Sequence[float]],
    depths: Mapping[str, int] | None = None,
    tau: float = 0.5,
    title: str = "",
) -> Figure:
    """Draw TV over the layers (Psi-Net Fig. 7, Fed2 Fig. 10), with the depth up to which layers are shared.

    Args:
        layers: Names of the layers, first to last.
        curves: Label (of a data set) to the TV of each layer.
        depths: Label to number of shared layers; `choose_depth` with its threshold where None.
        tau: Passed on to `choose_depth`.
        title: Title of the figure.
    """
    from matplotlib.lines import Line2D

    figure, (axes,) = panels(title=title, size=(max(6.4, 0.32 * len(layers)), 3.8))
    at = np.arange(1, len(layers) + 1)
    for number, (label, tv) in enumerate(curves.items()):
        depth = choose_depth(tv, tau) if depths is None else depths[label]
        name = f"{label}: {depth} of {len(layers)} layers shared"
        (line,) = axes.plot(at, tv, marker=MARKERS[number % len(MARKERS)], markersize=5, label=name)
        color = line.get_color()
        # Moved a little, so that equal depths stay two lines.
        axes.axvline(depth + 0.5 + 0.06 * number, color=color, linestyle="--", linewidth=1.2)
        if depths is None:
            axes.axhline(tv_threshold(tv, tau), color=color, linestyle=":", linewidth=1)
    axes.set(ylabel="total variance (TV)", xlim=(0.4, len(layers) + 0.6), ylim=(0, None))
    axes.set_xticks(
        at, short_names(layers), rotation=45, ha="right", rotation_mode="anchor", fontsize="small"
    )
    lines = axes.get_legend_handles_labels()[0]
    lines.append(
        Line2D([], [], color="grey", linestyle="--", linewidth=1.2, label="end of the shared layers")
    )
    if depths is None:
        name = f"threshold, tau = {tau:g}"
        lines.append(Line2D([], [], color="grey", linestyle=":", linewidth=1, label=name))
    legend_below(figure, lines, columns=2)
    return figure


class _Colors:
    """Colours of the classes: a legend entry each, or a scale where there are too many for that."""

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
            bar = figure.colorbar(panels[0].images[0], ax=list(panels), label="primary class", pad=0.02)
            ticks = np.linspace(0, len(self.names) - 1, 6).round().astype(int)
            bar.set_ticks(ticks.tolist(), labels=[self.names[tick] for tick in ticks])
        if has_none:
            handles.append(Patch(facecolor=NO_BAR, edgecolor="grey", label="no class"))
        if handles:
            longest = max(len(str(handle.get_label())) for handle in handles)
            rows = math.ceil(len(handles) * (0.08 * longest + 0.55) / figure.get_size_inches()[0])
            # Rows of about equal length.
            legend_below(figure, handles, columns=math.ceil(len(handles) / rows))


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
    from matplotlib.ticker import MaxNLocator

    labels = [str(client) for client in range(clients)] if names is None else list(names)
    step = math.ceil(clients * 0.13 / 2.6)
    axes.set_yticks(range(0, clients, step), labels[::step], fontsize="x-small")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
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
    clients = {one.client_ids for one in found.values()}
    names = [str(k) for k in clients.pop()] if len(clients) == 1 else None
    return encoding_map(primaries, class_names, client_names=names)


def draw_encodings(path: Path, found: Mapping[str, Alignment], class_names: Sequence[str]) -> None:
    """Write `encodings` to a PNG file."""
    save_figure(encodings(found, class_names), path)
