"""Class preference vectors: which class each neuron works for, and how far layers and clients differ in that.

Equations are those of Psi-Net ("Heterogeneous Federated Learning") and Fed2 (KDD 2021), whose text leaves open
where and how the averages are taken; every such choice is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedfeat.features.capture import Point, captured, eval_mode, layer_points
from fedfeat.models.network import Network
from fedfeat.params import full

PrefAt = Literal["post_act", "pre_act"]
PrefReduce = Literal["product_then_mean", "mean_then_product"]
PrefScore = Literal["logit", "prob"]
PrefNeg = Literal["clamp", "abs", "keep"]

NO_CLASS = -1
"""Primary class of a neuron without any positive preference, see `primary_classes`."""
EPSILON = 1e-12
"""Added to every preference before division, so that a neuron without any gets the uniform vector."""


class Preferences(NamedTuple):
    """Raw class preference vectors of all weighted layers of one network.

    Attributes:
        layers: Paths of the layers in the order in which they run, the last layer included.
        vectors: P_l of each layer (neurons, classes), on the CPU; float32, or float64 of a network in it.
        present: Which of the layer's neurons the network has, bool (neurons,): all, unless the vectors have been put
            at the places of a larger network's neurons.
    """

    layers: tuple[str, ...]
    vectors: tuple[Tensor, ...]
    present: tuple[Tensor, ...]


def class_preferences(
    network: Network,
    images_by_class: Tensor | Sequence[Tensor],
    pref_at: PrefAt = "post_act",
    pref_reduce: PrefReduce = "product_then_mean",
    pref_score: PrefScore = "logit",
) -> Preferences:
    """Compute p_{l,i,c} = mean_b A_{l,i}(x_{c,b}) dZ_c / dA_{l,i}(x_{c,b}) (Psi-Net Eq. 2, Fed2 Eq. 9).

    Each class costs one forward and one backward pass over its images, for all layers together. The network runs
    in eval mode and is left as it was; parameters get no gradients.

    Args:
        network: The network.
        images_by_class: Inputs of the network, (C, B, *input_shape) or C tensors (B_c, *input_shape). A class
            without images gets preferences of 0.
        pref_at: ``post_act``: A is the output of the activation behind the layer (and its norm), or where none
            follows that of the norm or the layer; ``pre_act``: what that activation reads.
        pref_reduce: ``product_then_mean``: A and gradient are multiplied element by element, then averaged over
            images and positions; ``mean_then_product``: averaged first.
        pref_score: Z_c is the ``logit`` or the ``prob`` (softmax) of the class. Where the network does not have
            the class, its logit -inf, preferences are 0.
    """
    if len(images_by_class) != network.num_classes:
        raise ValueError(
            f"images_by_class must have one entry for each of the {network.num_classes} classes, "
            f"but it has {len(images_by_class)}."
        )
    points = {layer: getattr(found, pref_at) for layer, found in layer_points(network).items()}
    # A caller may be in inference mode, as Lightning is in validation.
    with eval_mode(network), torch.inference_mode(False), torch.enable_grad():
        by_class = [
            _one_class(network, points, images, label, pref_reduce, pref_score)
            for label, images in enumerate(images_by_class)
        ]
    vectors = tuple(torch.stack(columns, dim=1) for columns in zip(*by_class, strict=True))
    return Preferences(tuple(points), vectors, tuple(torch.ones(len(p), dtype=torch.bool) for p in vectors))


def _one_class(
    network: Network, points: dict[str, Point], images: Tensor, label: int, pref_reduce: str, pref_score: str
) -> list[Tensor]:
    """Give the preferences of all layers for one class, each (neurons,)."""
    weight = next(network.parameters())
    dtype = torch.promote_types(weight.dtype, torch.float32)
    nothing = [torch.zeros(point.neurons, dtype=dtype) for point in points.values()]
    if len(images) == 0:
        return nothing
    with captured(network, points) as taken:
        # Numbers of words keep their type. A copy, because autograd cannot keep tensors of inference mode.
        inputs = images.to(weight) if images.is_floating_point() else images.to(weight.device)
        logits = network(inputs.clone())
    if torch.isneginf(logits[:, label]).all():
        return nothing
    scores = logits if pref_score == "logit" else logits.softmax(dim=1)
    activations = [taken[layer] for layer in points]
    # Examples do not touch each other in eval mode, so the gradient of the sum holds that of each of them.
    gradients = torch.autograd.grad(scores[:, label].sum(), activations, allow_unused=True)
    return [
        none if gradient is None else _reduce(activation.detach(), gradient, pref_reduce)
        for none, activation, gradient in zip(nothing, activations, gradients, strict=True)
    ]


def _reduce(activation: Tensor, gradient: Tensor, pref_reduce: str) -> Tensor:
    """Average over images and positions: (B, neurons, ...) to (neurons,)."""
    # The logit -inf of a class that the network lacks has gradient 0, but their product would be NaN.
    activation, gradient = full(activation).masked_fill(activation.isneginf(), 0.0), full(gradient)
    dims = (0, *range(2, activation.ndim))
    if pref_reduce == "product_then_mean":
        return (activation * gradient).mean(dims).cpu()
    return (activation.mean(dims) * gradient.mean(dims)).cpu()


def normalise(p: Tensor, pref_neg: PrefNeg = "clamp") -> Tensor:
    """Divide each neuron's vector by its sum: the P-hat of Psi-Net Eq. 5 (Fed2 Eq. 17), (neurons, classes).

    Args:
        p: Raw vectors (neurons, classes).
        pref_neg: Negative preferences become 0 (``clamp``), positive (``abs``), or stay (``keep``, Eq. 5 to the
            letter: a sum near 0 gives large values, a negative one turns all signs).
    """
    dtype, p = p.dtype, p.double()
    if pref_neg != "keep":
        p = p.clamp(min=0) if pref_neg == "clamp" else p.abs()
    p = p + EPSILON
    return (p / p.sum(dim=1, keepdim=True)).to(dtype)


def primary_classes(p: Tensor) -> Tensor:
    """Give each neuron's class of largest preference (Psi-Net section 3.1), int64 (neurons,).

    Where the largest is exactly 0 there is none: such a neuron is dead, or works against the classes of its group
    and cannot reach the others. It gets ``NO_CLASS``, not the first of the zeros; so does one with a NaN.

    Args:
        p: Raw vectors (neurons, classes).
    """
    largest, classes = p.max(dim=1)
    return classes.masked_fill((largest == 0) | largest.isnan(), NO_CLASS)


def total_variance(p: Tensor, pref_neg: PrefNeg = "clamp") -> float:
    """Compute TV_l, the mean distance of a layer's normalised vectors from their mean (Psi-Net Eq. 5, Fed2 Eq. 17).

    Args:
        p: Raw vectors (neurons, classes).
        pref_neg: See `normalise`.
    """
    vectors = normalise(p, pref_neg).double()
    return float((vectors - vectors.mean(dim=0)).norm(dim=1).mean())


def alignment(primaries: Iterable[Tensor]) -> Tensor:
    """Give for each neuron of a layer the share of client pairs with the same primary class, float64 (neurons,).

    Of n clients, n_c with primary class c, it is sum_c n_c (n_c - 1) / (n (n - 1)). Clients in which a neuron has
    no class do not count for it; NaN where fewer than two are left.

    Args:
        primaries: Each client's `primary_classes` of the layer, (neurons,).
    """
    labels = torch.stack(list(primaries), dim=1) - NO_CLASS  # (neurons, clients)
    # Column 0 is for no class.
    counts = torch.zeros(len(labels), int(labels.max()) + 1, dtype=torch.float64)
    counts.scatter_add_(1, labels, torch.ones_like(labels, dtype=torch.float64))
    counts = counts[:, 1:]
    total = counts.sum(dim=1)
    return (counts * (counts - 1)).sum(dim=1) / (total * (total - 1))


def alignment_distance(vectors: Iterable[Tensor], present: Iterable[Tensor] | None = None) -> float:
    """Compute Fed2's alignment objective (Eq. 10) for one layer, averaged over client pairs, then over neurons.

    D is the squared Euclidean distance, for which the sum over all pairs of a neuron's M clients is
    M sum_m |P_m|^2 - |sum_m P_m|^2: one client is needed at a time.

    Args:
        vectors: Each client's normalised vectors of the layer, (neurons, classes).
        present: Which of these neurons each client has, bool (neurons,); all of them where None. Neurons that
            fewer than two clients have do not count; NaN where there is no other.
    """
    clients = 0
    counts = squares = total = torch.zeros((), dtype=torch.float64)
    masks = repeat(None) if present is None else present
    for client, mask in zip(vectors, masks, strict=present is not None):
        here = torch.ones(len(client), dtype=torch.bool) if mask is None else mask
        client = client.double().masked_fill(~here[:, None], 0.0)
        clients, counts = clients + 1, counts + here
        squares = squares + client.square().sum(dim=1)
        total = total + client
    if clients < 2:
        raise ValueError(f"alignment_distance needs at least two clients, but it got {clients}.")
    pairs = counts * (counts - 1) / 2
    sums = (counts * squares - total.square().sum(dim=1)).clamp(min=0)
    known = pairs > 0
    return float((sums[known] / pairs[known]).mean())


def choose_depth(tv: Sequence[float], tau: float = 0.5) -> int:
    """Give the number of shared layers: those before TV first exceeds min + tau (max - min).

    The papers threshold TV without naming the threshold; tau = 0.5 is this project's choice.

    Args:
        tv: TV of each layer, first to last.
        tau: Height of the threshold between the smallest and the largest TV, from 0 to 1.

    Returns:
        From 0 (the first layer exceeds) to ``len(tv)`` (none does, as where all are equal).
    """
    if not tv or not all(math.isfinite(value) for value in tv):
        raise ValueError(f"tv must be finite values, at least one, but it is {list(tv)}.")
    threshold = tv_threshold(tv, tau)
    return next((i for i, value in enumerate(tv) if value > threshold), len(tv))


def tv_threshold(tv: Sequence[float], tau: float = 0.5) -> float:
    """Give the threshold of `choose_depth`, min + tau (max - min)."""
    return min(tv) + tau * (max(tv) - min(tv))
