"""What methods that match neurons have in common: their networks, widths that change, layers matched and averaged."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedfeat.client import ClientModule
from fedfeat.errors import UserError
from fedfeat.features.chain import chain_layers, fit_shapes
from fedfeat.features.matching import BBPMap, match_layer
from fedfeat.features.neurons import Layer, layer_rows, rows_layer
from fedfeat.types import Update

Assignments = tuple[Tensor, ...]
"""For each client, which global neuron each of its neurons became."""


def hidden_layers(model: nn.Module) -> tuple[str, ...]:
    """Name the layers of a network that has some to match, or refuse it."""
    names = chain_layers(model)
    if len(names) < 2:
        raise UserError(
            f"model must have at least 2 layers where neurons are matched, but this one has {len(names)}."
        )
    return names


def params_of_all(updates: Iterable[Update], num_clients: int) -> list[dict[str, Tensor]]:
    """Collect what the clients sent, by client: neurons are compared with each other, so all have to be here at once.

    Raises:
        UserError: A client is missing.
    """
    found = {update.client_id: update.payload.params for update in updates}
    if len(found) < num_clients:
        raise UserError(
            f"All {num_clients} clients must send an update in every round where neurons are matched, but "
            f"{len(found)} did."
        )
    return [found[k] for k in sorted(found)]


def match_neurons(
    layers: Sequence[Layer], draw: np.random.Generator, how: BBPMap
) -> tuple[Layer, Assignments]:
    """Match one layer of all clients; give the global layer and, for each client, where its neurons went.

    Args:
        layers: The layer of every client.
        draw: Draws the order of clients in each sweep.
        how: Hyperparameters of the matching.
    """
    has_bias = layers[0].bias is not None
    found = match_layer([layer_rows(layer) for layer in layers], draw, how, has_bias)
    return rows_layer(found.rows, layers[0]), found.assignments


def mean_by_class(layers: list[Layer], class_counts: Tensor) -> Layer:
    """Average last layers row by row, the row of a class weighted by the clients' examples of it.

    A class that nobody has is averaged over all clients alike.

    Args:
        layers: Weights (C, d) and biases (C,) of every client.
        class_counts: (K, C).
    """
    counts = class_counts.double()
    counts = torch.where(counts.sum(0) > 0, counts, torch.ones_like(counts))
    shares = counts / counts.sum(0)
    weight = sum(share[:, None] * layer.weight for share, layer in zip(shares, layers, strict=True))
    dtype = layers[0].weight.dtype
    if layers[0].bias is None:
        return Layer(torch.as_tensor(weight).to(dtype), None)
    bias = sum(share * layer.bias for share, layer in zip(shares, layers, strict=True))
    return Layer(torch.as_tensor(weight).to(dtype), torch.as_tensor(bias).to(dtype))


def take_widths(module: ClientModule, params: dict[str, Tensor]) -> None:
    """Give a client half's network the widths of what it receives."""
    if fit_shapes(module.model, params):
        forget_flops(module)


def forget_flops(module: ClientModule) -> None:
    """Have the FLOPs of an example counted again."""
    for cached in ("flops_per_example", "forward_flops_per_example"):
        module.__dict__.pop(cached, None)
