"""Class means of representations: what clients exchange of them, and moments that pool exactly.

With n, m and S of the examples of a class, their number, their mean and the sum of (z - m)(z - m)^T, those of two sets
together are

    n = n_1 + n_2,   m = (n_1 m_1 + n_2 m_2) / n,   S = S_1 + S_2 + n_1 n_2 / n (m_1 - m_2)(m_1 - m_2)^T

so the moments of all clients' features follow from each client's own. All sums are in float64.
"""

from collections.abc import Iterable
from functools import reduce
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedfeat.params import full

Scatter = Literal["none", "diagonal", "full"]
"""What is summed up beside the means: nothing, squares, or all products of deviations."""


class Moments(NamedTuple):
    """Moments of features by class, of which some may have no example.

    Attributes:
        counts: Examples, int64 (C,).
        means: Class means, float64 (C, d); 0 where there is no example.
        scatters: Sums over examples of squared deviations from the mean, float64 (C, d), or of all products of two,
            (C, d, d); None where they were not asked for.
    """

    counts: Tensor
    means: Tensor
    scatters: Tensor | None = None


class Prototypes(NamedTuple):
    """Payload: class means of the classes that there are.

    Attributes:
        classes: The classes, int64 (m,).
        means: What stands for each, (m, d).
    """

    classes: Tensor
    means: Tensor


def class_moments(features: Tensor, labels: Tensor, num_classes: int, scatter: Scatter = "none") -> Moments:
    """Give the moments of features (N, d) with labels (N,)."""
    z = features.double()
    members = functional.one_hot(labels, num_classes).to(z)
    counts = members.sum(0)
    means = members.T @ z / counts.clamp(min=1).unsqueeze(1)
    return Moments(counts.long(), means, _scatters(z - means[labels], members, scatter))


def _scatters(deviations: Tensor, members: Tensor, scatter: Scatter) -> Tensor | None:
    if scatter == "none":
        return None
    if scatter == "diagonal":
        return members.T @ deviations.square()
    own = (deviations[column > 0] for column in members.T)
    return torch.stack([part.T @ part for part in own])


def pooled(parts: Iterable[Moments]) -> Moments:
    """Give the moments of the features of all parts together, from theirs alone; there must be one part or more."""
    return reduce(_joined, parts)


def _joined(one: Moments, other: Moments) -> Moments:
    counts = one.counts + other.counts
    total = counts.clamp(min=1).double()
    shares = (part.counts / total for part in (one, other))
    means = sum(share.unsqueeze(1) * part.means for share, part in zip(shares, (one, other), strict=True))
    assert isinstance(means, Tensor)
    if one.scatters is None or other.scatters is None:
        return Moments(counts, means)
    gaps = one.means - other.means
    factors = one.counts * other.counts / total
    squares = gaps.square() if one.scatters.dim() == 2 else gaps.unsqueeze(2) * gaps.unsqueeze(1)
    between = factors.view(-1, *[1] * (squares.dim() - 1)) * squares
    return Moments(counts, means, one.scatters + other.scatters + between)


def covariances(moments: Moments) -> Tensor:
    """Give the unbiased covariance of each class, (C, d, d), or its diagonal (C, d); 0 below two examples."""
    assert moments.scatters is not None
    freedom = (moments.counts - 1).clamp(min=1)
    return moments.scatters / freedom.view(-1, *[1] * (moments.scatters.dim() - 1))


def shared_covariance(moments: Moments) -> Tensor:
    """Give the one covariance (d, d), or diagonal (d,), that the classes have around their own means."""
    assert moments.scatters is not None
    freedom = (moments.counts - 1).clamp(min=0).sum().clamp(min=1)
    return moments.scatters.sum(0) / freedom


def prototypes_of(moments: Moments, dtype: torch.dtype) -> Prototypes:
    """Give the means of the classes that have examples, on the CPU."""
    classes = moments.counts.nonzero().flatten()
    return Prototypes(classes.cpu(), moments.means[classes].to("cpu", dtype))


def pull(features: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Give the mean over a batch of ``1/d ||z - P[y]||^2``, a scalar; examples of classes without a prototype add 0.

    Args:
        features: z, (B, d).
        labels: y, (B,); a negative one is of no example.
        prototypes: P, (C, d).
        known: Which of them there are, bool (C,).
    """
    squares = (features - prototypes[labels.clamp(min=0)]).square().mean(1)
    return mean_over_known(squares, labels, known)


def mean_over_known(values: Tensor, labels: Tensor, known: Tensor) -> Tensor:
    """Give the mean of values (B,) over the examples of a batch, where those of classes that are not known add 0.

    Args:
        values: (B,).
        labels: y, (B,); a negative one is of no example.
        known: bool (C,).
    """
    there = labels >= 0
    counted = (known[labels.clamp(min=0)] & there).to(values.dtype)
    return (values * counted).sum() / there.sum().clamp(min=1)


def nearness(features: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Give minus the distance of features (B, d) to each prototype, (B, C); -inf where there is none.

    Args:
        features: (B, d).
        prototypes: (C, d).
        known: Which of them there are, bool (C,).
    """
    z = full(features)
    return (-distances_between(z, prototypes.to(z))).masked_fill(~known, -torch.inf)


def distances_between(one: Tensor, other: Tensor) -> Tensor:
    """Give the Euclidean distances (N, M) of rows (N, d) and (M, d), exact and with gradient 0 where rows are equal."""
    # An expanded square may be below zero by rounding.
    return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
