"""Files of chosen neurons, one picture per layer with its numbers beside it."""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fedfeat.commands.inspection import Inspection
from fedfeat.commands.look import MOST_MODELS, Asked, Pictures
from fedfeat.features.diagnostics import short_names
from fedfeat.features.preference import NO_CLASS, normalise
from fedfeat.files import atomic_write_text
from fedfeat.runs.feature_numbers import write_arrays
from fedfeat.runs.figures import save_figure
from fedfeat.runs.neuron_figures import maximised_grid, preference_bars


def write_neurons(one: Inspection, out: Path, run: str = "", asked: Asked | None = None) -> list[Path]:
    """Write what was asked for of single neurons; give the paths.

    Args:
        one: The run.
        out: Where to.
        run: Name of the run in names of files; empty where there is one run.
        asked: What was asked for.
    """
    if not one.models:
        return []
    layers = next(iter(one.models.values())).layers
    names = dict(zip(layers, short_names(layers), strict=True))
    paths = []
    for layer, neurons in one.bars.items():
        paths += _bars(one, layer, names[layer], neurons, out / _file("preferences", run, names[layer]))
    for layer, (neurons, pictures) in one.maximised.items():
        how = str((asked or Asked()).ascent)
        paths += _pictures(
            one, names[layer], neurons, pictures, out / _file("maximised", run, names[layer]), how
        )
    return paths


def _file(what: str, run: str, layer: str) -> str:
    return "_".join(re.sub(r"[^\w.-]+", "-", part) for part in (what, run, layer) if part)


def _bars(one: Inspection, layer: str, name: str, neurons: Sequence[int], stem: Path) -> list[Path]:
    """Draw preference vectors of the first models; the CSV has all of them."""
    shares, present, lines = {}, {}, []
    for model, found in one.models.items():
        at = found.layers.index(layer)
        vectors, present[model] = found.vectors[at][neurons], found.present[at][neurons]
        kept = vectors.clamp(min=0) if one.probe.pref_neg == "clamp" else vectors
        nothing = (kept == 0).all(1, keepdim=True)
        shares[model] = normalise(vectors, one.probe.pref_neg).masked_fill(nothing, torch.nan)
        lines += [
            (model, neuron, label, raw, share)
            for neuron, here, raws, parts in zip(neurons, present[model], vectors, shares[model], strict=True)
            for label, raw, share in zip(one.class_names, raws.tolist(), parts.tolist(), strict=True)
            if here
        ]
    shown = dict(islice(shares.items(), MOST_MODELS))
    title = f"{one.name}, round {one.round_idx}: class preferences in {name}"
    png, csv = Path(f"{stem}.png"), Path(f"{stem}.csv")
    save_figure(preference_bars(title, neurons, shown, present, one.class_names), png)
    table = pd.DataFrame(lines, columns=["model", "neuron", "class", "preference", "share"])
    atomic_write_text(csv, table.to_csv(index=False))
    return [png, csv]


def _pictures(
    one: Inspection, name: str, neurons: Sequence[int], found: dict[str, Pictures], stem: Path, how: str
) -> list[Path]:
    """Draw the pictures of a layer's neurons; the CSV has their activations, the npz their pixels."""
    pixels = {model: pictures.pixels.numpy() for model, pictures in found.items()}
    classes = {model: pictures.classes.tolist() for model, pictures in found.items()}
    title = f"{one.name}, round {one.round_idx}: activation maximisation in {name}"
    png, csv, npz = (Path(f"{stem}.{kind}") for kind in ("png", "csv", "npz"))
    save_figure(maximised_grid(title, neurons, pixels, classes, one.class_names, how), png)
    lines = [
        (model, *line, "" if label == NO_CLASS else one.class_names[label])
        for model, pictures in found.items()
        for *line, label in zip(
            neurons, *(part.tolist() for part in pictures[1:4]), classes[model], strict=True
        )
    ]
    columns = ["model", "neuron", "activation_at_start", "activation", "largest_of_images", "primary_class"]
    atomic_write_text(csv, pd.DataFrame(lines, columns=columns).to_csv(index=False))
    write_arrays(npz, {"neurons": np.array(neurons), **pixels})
    return [png, csv, npz]
