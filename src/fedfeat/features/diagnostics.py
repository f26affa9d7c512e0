"""Feature alignment of a cohort: do the same neurons of different clients work for the same classes?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedfeat.config.conditions import Count
from fedfeat.features.capture import layer_points
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
from fedfeat.models.grouped import GroupedNetwork
from fedfeat.models.grouped_layers import ClassLinear
from fedfeat.models.network import Network

_NAN = float("nan")


@dataclass(frozen=True)
class AlignmentProbe:
    """When and how the class preferences of the cohort's models are taken, after their local fits.

    Attributes:
        every: Rounds between two measurements; the last round is always measured.
        images_per_class: Training images B of each class, the same for all clients
            (methods/fed2.md#preference-vectors).
        pref_at: See `features.preference.class_preferences`.
        pref_reduce: Likewise.
        pref_score: Likewise.
        pref_neg: What negative preferences become, see `features.preference.normalise`.
    """

    every: Count = 5
    images_per_class: Count = 100
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
        client_ids: The clients, in that order; none where the only row is the server's, see `server_alone`.
        metrics: ``align/*``.
    """

    layers: tuple[str, ...]
    primaries: tuple[tuple[Tensor, ...], ...]
    client_ids: tuple[int, ...]
    metrics: dict[str, float]


def align(preferences: dict[int, Preferences], pref_neg: PrefNeg = "clamp") -> Alignment | None:
    """Compare the clients' hidden layers neuron by neuron; None with fewer than two clients or without such layers.

    ``align/agreement`` is the share of client pairs with the same primary class, the mean over all hidden neurons;
    ``align/distance`` Fed2's Eq. 10 summed over layers; both also per layer, as is total variance
    (``align/tv_<layer>``, mean over the clients). A client counts for the neurons that its network has; what no two
    clients can be compared by, as small cohorts of trimmed networks leave it, is absent.

    Args:
        preferences: Client id to class preferences on the server's neurons, see `on_server_neurons`.
        pref_neg: See `features.preference.normalise`.
    """
    if len(preferences) < 2:
        return None
    found = list(preferences.values())
    layers = short_names(found[0].layers)[:-1]
    if not layers:
        return None
    metrics: dict[str, float] = {}
    primaries, shares, finite = [], [], []
    for i, layer in enumerate(layers):
        vectors = [client.vectors[i] for client in found]
        present = [client.present[i] for client in found]
        primaries.append(tuple(map(primary_classes, vectors)))
        shares.append(alignment(primaries[-1]))
        distance = alignment_distance((normalise(v, pref_neg) for v in vectors), present)
        own = [v[here] for v, here in zip(vectors, present, strict=True) if here.any()]
        tv = [total_variance(v, pref_neg) for v in own]
        values = {
            "agreement": _mean(shares[-1]),
            "distance": distance,
            "tv": sum(tv) / len(tv) if tv else _NAN,
        }
        finite.append(all(v.isfinite().all() for v in own))
        metrics |= {f"align/{name}_{layer}": value for name, value in _existing(values, finite[-1]).items()}
    distances = [metrics[key] for layer in layers if (key := f"align/distance_{layer}") in metrics]
    values = {"agreement": _mean(torch.cat(shares)), "distance": sum(distances) if distances else _NAN}
    metrics |= {f"align/{name}": value for name, value in _existing(values, all(finite)).items()}
    return Alignment(tuple(layers), tuple(primaries), tuple(preferences), metrics)


def _existing(values: dict[str, float], finite: bool) -> dict[str, float]:
    """Leave out what no two clients give a value; NaN is what comes of preferences that are not finite."""
    return {name: value if finite else _NAN for name, value in values.items() if value == value or not finite}


def on_server_neurons(preferences: Preferences, own: Network, whole: Network) -> Preferences:
    """Put a trimmed network's vectors at the places of the server's neurons.

    Neurons that it lacks have zeros there and are not ``present``.

    Args:
        preferences: Those of the client's network.
        own: The client's network.
        whole: The server's.
    """
    if not isinstance(own, GroupedNetwork) or not isinstance(whole, GroupedNetwork):
        return preferences
    if own.class_sets == whole.class_sets:
        return preferences
    places = torch.tensor([whole.class_sets.index(classes) for classes in own.class_sets])
    grouped = {key.rpartition(".")[0] for key in own.group_rows()}
    vectors, present = [], []
    for layer, vector, here in zip(*preferences, strict=True):
        if isinstance(own.get_submodule(layer), ClassLinear):  # its outputs are all classes already
            here = torch.zeros_like(here)
            here[[c for classes in own.class_sets for c in classes]] = True
        elif layer in grouped:
            vector, here = (_at(places, len(whole.class_sets), rows) for rows in (vector, here))
        vectors.append(vector)
        present.append(here)
    return preferences._replace(vectors=tuple(vectors), present=tuple(present))


def own_neurons(own: Network, whole: Network, layer: str) -> Tensor:
    """Give the place in a client's network of each of a layer's neurons in the server's, int64 (neurons,).

    Args:
        own: The client's network.
        whole: The server's.
        layer: Path of the layer.

    Returns:
        -1 for neurons that the client's network lacks.
    """
    width = layer_points(own)[layer].pre_act.neurons
    # Numbers take the way that vectors take.
    numbers = Preferences((layer,), (torch.arange(width)[:, None],), (torch.ones(width, dtype=torch.bool),))
    found = on_server_neurons(numbers, own, whole)
    return found.vectors[0].flatten().masked_fill(~found.present[0], -1)


def server_alone(preferences: Preferences) -> Alignment:
    """Give the encodings of the server's model where no clients are known; it has no ids and no metrics."""
    hidden = preferences.vectors[:-1]
    layers = tuple(short_names(preferences.layers)[:-1])
    return Alignment(layers, tuple((primary_classes(vectors),) for vectors in hidden), (), {})


def _at(places: Tensor, groups: int, rows: Tensor) -> Tensor:
    """Put the rows of some groups, (kept * n, ...), at their places among those of all, (groups * n, ...)."""
    by_group = rows.unflatten(0, (len(places), -1))
    return by_group.new_zeros(groups, *by_group.shape[1:]).index_copy(0, places, by_group).flatten(0, 1)


def _mean(shares: Tensor) -> float:
    """Mean over the neurons that at least two clients have."""
    return float(shares[~shares.isnan()].mean()) if not shares.isnan().all() else _NAN


def short_names(layers: Sequence[str]) -> list[str]:
    """Shorten paths to names of blocks where these are enough: ``encoder.conv4_2.conv`` to ``conv4_2``."""
    inner = [layer.removeprefix("encoder.").removeprefix("head.") for layer in layers]
    blocks = [name.rpartition(".")[0] or name for name in inner]
    return blocks if len(set(blocks)) == len(blocks) else inner
