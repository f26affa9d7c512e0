"""A last layer trained again on features drawn from one Gaussian per class (CCVR, Algorithm 1)."""

from copy import deepcopy
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfeat.features.prototypes import Moments, covariances, shared_covariance
from fedfeat.seeding import derive_seed

Covariance = Literal["full", "diagonal", "shared"]
"""A matrix of each class, its diagonal alone, or the one matrix that the classes have around their own means."""
Share = Literal["examples", "uniform"]
"""Virtual features of a class: in proportion to its examples, or as many of each."""


class Retraining(NamedTuple):
    """How a last layer is trained: SGD with momentum .9 on the cross-entropy.

    Attributes:
        epochs: Passes over the virtual features; 0 leaves the layer as it is.
        lr: Learning rate.
        batch_size: Of its batches.
    """

    epochs: int = 10
    lr: float = 0.01
    batch_size: int = 64


def numbers_sent(num_classes: int, width: int, covariance: Covariance) -> int:
    """Count the numbers that a client sends: its counts, means and covariances, of one matrix where it is shared."""
    matrices = {"full": num_classes * width**2, "diagonal": num_classes * width, "shared": width**2}
    return num_classes * (width + 1) + matrices[covariance]


def virtual_counts(counts: Tensor, per_class: int, share: Share) -> list[int]:
    """Give how many features are drawn of each class (C,): ``per_class`` on average, none of a class without examples.

    Args:
        counts: Examples (C,).
        per_class: Mean number.
        share: See `Share`; a class that there is has at least one.
    """
    there = counts > 0
    if share == "uniform":
        return (there * per_class).tolist()
    wanted = per_class * int(there.sum()) * counts / counts.sum().clamp(min=1)
    return torch.where(there, wanted.round().clamp(min=1), 0).long().tolist()


def virtual_features(
    moments: Moments, numbers: list[int], covariance: Covariance, seed: int, clamp: bool = False
) -> tuple[Tensor, Tensor]:
    """Draw features (M, d), float64, and their labels (M,), class by class, each class at an address of its own.

    Args:
        moments: Of all clients' features, with all products of deviations.
        numbers: How many of each class.
        covariance: See `Covariance`. A class with one example has none, so its features are its mean.
        seed: The experiment's seed.
        clamp: Whether negative numbers become 0, as features behind a ReLU have none.
    """
    own = shared_covariance(moments) if covariance == "shared" else covariances(moments)
    parts = []
    for label, number in enumerate(numbers):
        matrix = own if covariance == "shared" else own[label]
        generator = torch.Generator().manual_seed(derive_seed(seed, "virtual features", label))
        noise = torch.randn(number, moments.means.shape[1], generator=generator, dtype=torch.float64)
        parts.append(moments.means[label] + noise @ _root(matrix, covariance == "diagonal"))
    features = torch.cat(parts)
    labels = torch.repeat_interleave(torch.arange(len(numbers)), torch.tensor(numbers))
    return features.clamp(min=0) if clamp else features, labels


def _root(matrix: Tensor, diagonal: bool) -> Tensor:
    """Give R with R^T R the covariance, or its diagonal; what rounding has put below 0 is 0."""
    if diagonal:
        return matrix.diagonal().clamp(min=0).sqrt().diag()
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()).T


def retrained(layer: nn.Module, features: Tensor, labels: Tensor, how: Retraining, seed: int) -> nn.Module:
    """Give a last layer trained on features (M, d) with labels (M,); rows of classes without any stay as they are.

    Args:
        layer: The layer; it stays as it is.
        features: What it reads.
        labels: Classes.
        how: See `Retraining`.
        seed: The experiment's seed, for the order of the features.
    """
    trained = deepcopy(layer)
    parameters = list(trained.parameters())
    x, y = features.to(parameters[0]), labels.to(parameters[0].device)
    generator = torch.Generator().manual_seed(derive_seed(seed, "calibration"))
    optimizer = torch.optim.SGD(parameters, lr=how.lr, momentum=0.9)
    with torch.no_grad():
        num_classes = trained(x[:1]).shape[1]
    absent = torch.bincount(y, minlength=num_classes) == 0
    with torch.enable_grad():
        for _ in range(how.epochs):
            for chosen in torch.randperm(len(y), generator=generator).split(how.batch_size):
                optimizer.zero_grad()
                logits = trained(x[chosen]).masked_fill(absent, -torch.inf)
                functional.cross_entropy(logits, y[chosen]).backward()
                optimizer.step()
    return trained
