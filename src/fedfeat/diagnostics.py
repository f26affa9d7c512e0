"""Feature alignment of a cohort: do the same neurons of different clients work for the same classes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedfeat.features.figures import encoding_map, short_names
from fedfeat.features.preference import (
    PrefAt,
    Preferences,
    PrefNeg,
    PrefReduce,
    PrefScore,
    alignment,
    alignment_distance,
    class_preferences,
    normalise,
    primary_classes,
    total_variance,
)
from fedfeat.figures import save_figure
from fedfeat.models.grouped import GroupedNetwork
from fedfeat.models.grouped_layers import ClassLinear
from fedfeat.models.network import Network


@dataclass(frozen=True)
class AlignmentProbe:
    """When and how the class preferences of the cohort's models are taken, after their local fits.

    Attributes:
        every: Rounds between two measurements; the last round is always measured.
        images_per_class: Training images B of each class, the same for all clients (METHODS 4.3h).
        pref_at: See `features.preference.class_preferences`.
        pref_reduce: Likewise.
        pref_score: Likewise.
        pref_neg: What negative preferences become, see `features.preference.normalise`.
    """

    every: int = 5
    images_per_class: int = 100
    pref_at: PrefAt = "post_act"
    pref_reduce: PrefReduce = "product_then_mean"
    pref_score: PrefScore = "logit"
    pref_neg: PrefNeg = "clamp"

    def measures(self, round_idx: int, num_rounds: int) -> bool:
        """Whether the clients of round ``round_idx`` (from 1) are measured."""
        return round_idx % self.every == 0 or round_idx == num_rounds

    def preferences(self, network: Network, images: Sequence[Tensor]) -> Preferences:
        """Take the class preferences of a network."""
        return class_preferences(network, images, self.pref_at, self.pref_reduce, self.pref_score)


class Alignment(NamedTuple):
    """What was found in one round.

    Attributes:
        layers: Short names of the hidden layers.
        primaries: For each of them the primary class of every neuron, one (neurons,) per client.
        client_ids: The clients, in that order.
        metrics: ``align/*``.
    """

    layers: tuple[str, ...]
    primaries: tuple[tuple[Tensor, ...], ...]
    client_ids: tuple[int, ...]
    metrics: dict[str, float]


def align(preferences: dict[int, Preferences], pref_neg: PrefNeg = "clamp") -> Alignment | None:
    """Compare the clients' hidden layers neuron by neuron; None with fewer than two clients.

    ``align/agreement`` is the share of client pairs with the same primary class, the mean over all hidden neurons;
    ``align/distance`` Fed2's Eq. 10 summed over layers; both also per layer, as is total variance
    (``align/tv_<layer>``, mean over the clients).

    Args:
        preferences: Client id to class preferences on the server's neurons, see `on_server_neurons`.
        pref_neg: See `features.preference.normalise`.
    """
    if len(preferences) < 2:
        return None
    found = list(preferences.values())
    layers = short_names(found[0].layers)[:-1]
    metrics: dict[str, float] = {}
    primaries, shares = [], []
    for i, layer in enumerate(layers):
        vectors = [client.vectors[i] for client in found]
        primaries.append(tuple(primary_classes(v) for v in vectors))
        shares.append(alignment(primaries[-1]))
        metrics[f"align/agreement_{layer}"] = _mean(shares[-1])
        metrics[f"align/distance_{layer}"] = alignment_distance(
            normalise(v, pref_neg).vectors for v in vectors
        )
        metrics[f"align/tv_{layer}"] = sum(total_variance(v, pref_neg) for v in vectors) / len(vectors)
    metrics["align/agreement"] = _mean(torch.cat(shares))
    metrics["align/distance"] = sum(metrics[f"align/distance_{layer}"] for layer in layers)
    return Alignment(tuple(layers), tuple(primaries), tuple(preferences), metrics)


def on_server_neurons(preferences: Preferences, own: Network, whole: Network) -> Preferences:
    """Put a trimmed network's vectors at the places of the server's neurons; neurons that it lacks have zeros."""
    if not isinstance(own, GroupedNetwork) or not isinstance(whole, GroupedNetwork):
        return preferences
    if own.class_sets == whole.class_sets:
        return preferences
    places = torch.tensor([whole.class_sets.index(classes) for classes in own.class_sets])
    grouped = {key.rpartition(".")[0] for key in own.group_rows()}
    vectors = []
    for layer, vector in zip(preferences.layers, preferences.vectors, strict=True):
        if layer in grouped and not isinstance(own.get_submodule(layer), ClassLinear):
            by_group = vector.view(len(places), -1, vector.shape[1])
            full = torch.zeros(len(whole.class_sets), *by_group.shape[1:])
            vector = full.index_copy(0, places, by_group).flatten(0, 1)
        vectors.append(vector)
    return preferences._replace(vectors=tuple(vectors))


def _mean(shares: Tensor) -> float:
    """Mean over the neurons that at least two clients have."""
    return float(shares[~shares.isnan()].mean()) if not shares.isnan().all() else float("nan")


def draw_encodings(path: Path, found: Mapping[str, Alignment], class_names: Sequence[str]) -> None:
    """Draw the feature-encoding map of one round, runs side by side, to a PNG file.

    Args:
        path: The file.
        found: Name of each run to what was found in it.
        class_names: Names of the classes.
    """
    encodings = {
        name: dict(zip(alignment.layers, map(list, alignment.primaries), strict=True))
        for name, alignment in found.items()
    }
    clients = next(iter(found.values())).client_ids
    figure = encoding_map(encodings, class_names, client_names=[str(k) for k in clients])
    save_figure(figure, path)
