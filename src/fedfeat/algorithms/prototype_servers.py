"""What server halves have in common that receive prototypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from fedfeat.features.prototypes import Moments, Prototypes, pooled
from fedfeat.models.network import Network
from fedfeat.seeding import derive_seed
from fedfeat.server import alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from fedfeat.types import Federation


def width_of(model: nn.Module, federation: Federation) -> int:
    """Give what all clients' last layers read (`Server.needs_common_width`); ``model`` is the server's network."""
    return network_of_client(model, federation).last_layer.in_features


def network_of_client(model: nn.Module, federation: Federation) -> Network:
    """Give the first client's network, with the common initial weights."""
    key = federation.networks.key(0)
    return cast(Network, model if key is None else federation.networks.build(key))


def stacked(prototypes: Iterable[Prototypes]) -> Prototypes | None:
    """Put the prototypes of a round's clients one under the other, (n,) and (n, d); None without any."""
    parts = [alone(part) for part in prototypes if len(part.classes)]
    if not parts:
        return None
    return Prototypes(torch.cat([part.classes for part in parts]), torch.cat([part.means for part in parts]))


def over_all_classes(classes: Tensor, means: Tensor, weights: Tensor, num_classes: int) -> Moments:
    """Lay a client's class means out over all classes, with what each weighs.

    Args:
        classes: Those that the client has, int64 (m,).
        means: Theirs, (m, d).
        weights: Of each, int64 (m,).
        num_classes: C.
    """
    counts = torch.zeros(num_classes, dtype=torch.int64)
    counts[classes] = weights
    every = torch.zeros(num_classes, means.shape[1], dtype=torch.float64)
    every[classes] = means.double()
    return Moments(counts, every)


def renewed(
    prototypes: Tensor, known: Tensor, parts: Iterable[Moments], keep_absent: bool
) -> tuple[Tensor, Tensor]:
    """Give the weighted means of clients' class means, (C, d), and which there are, bool (C,).

    Args:
        prototypes: The last ones, (C, d).
        known: Which of them there were, bool (C,).
        parts: Of the round's clients, one or more.
        keep_absent: Whether a class that none of them has keeps its last one.
    """
    counts, means, _ = pooled(parts)
    found, new = counts > 0, means.to(prototypes)
    if not keep_absent:
        return new, found
    return torch.where(found.unsqueeze(1), new, prototypes), found | known


def descend(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    pairs: Prototypes,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    address: tuple[int, int],
) -> None:
    """Train a module on prototypes in place, by a fresh SGD.

    Args:
        module: What is trained.
        loss: Of prototypes (B, d) and their classes (B,).
        pairs: All of them.
        epochs: Passes over them, each in an order of its own.
        batch_size: B.
        lr: Learning rate.
        address: Seed and round, of the orders.
    """
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(derive_seed(address[0], "prototypes", address[1]))
    for _ in range(epochs):
        for batch in torch.randperm(len(pairs.classes), generator=generator).split(batch_size):
            chosen = batch.to(pairs.classes.device)
            optimizer.zero_grad()
            loss(pairs.means[chosen], pairs.classes[chosen]).backward()
            optimizer.step()
