"""FedMA: Wang et al., "Federated Learning with Matched Averaging", ICLR 2020, Algorithm 1, and with communication.

    for each layer n = 1 .. N - 1, one round each:
        client: n = 1: train all layers
                else: replace layer n - 1 by the global one, permute the inputs of layer n by pi_k, freeze layers < n,
                train the others
                return layer n
        server: {pi_k}, global layer n <- match the neurons of all clients (`features.matching`);  send both
    round N:  client: train the last layer;  server: average it, class by class, weighted by the clients' class counts
    with communication: each client gets the global model back in its own widths and order, and it all begins again

A pass over the model takes N rounds; until it is complete the server's model is that of the pass before. All clients
take part in every round. A global layer may be wider than any client's. The authors' clients slice the global model by
assignments that they have kept; here the server slices it, which gives the same weights in a smaller message.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedfeat.algorithms.fedma_client import LayerExchange
from fedfeat.errors import UserError
from fedfeat.features.chain import as_params, chain_layers, layer_of, sliced
from fedfeat.features.matching import BBPMap, match_layer
from fedfeat.features.neurons import Layer, layer_rows, rows_layer
from fedfeat.params import snapshot
from fedfeat.seeding import derive_seed, numpy_generator
from fedfeat.server import Server
from fedfeat.types import Federation, Update

Assignments = tuple[Tensor, ...]
"""For each client, which global neuron each of its neurons became."""


class FedMAState(NamedTuple):
    """State of the server.

    Attributes:
        layers: Names of the weighted layers.
        class_counts: Training examples per client and class, int64 (K, C).
        seed: The experiment's seed.
        round_idx: Rounds so far.
        model: The last complete model.
        assignments: Of its layers but the last; empty before the first pass is complete.
        matched: Global layers of this pass so far.
        pending: Their assignments.
    """

    layers: tuple[str, ...]
    class_counts: Tensor
    seed: int
    round_idx: int
    model: dict[str, Tensor]
    assignments: tuple[Assignments, ...] = ()
    matched: dict[str, Tensor] = {}  # noqa: RUF012 - never changed in place
    pending: tuple[Assignments, ...] = ()

    @property
    def stage(self) -> int:
        """Layers that are matched in this pass."""
        return len(self.pending)


class FedMAServer(Server):
    """Match the clients' neurons layer by layer.

    Args:
        init: ``shared`` initial weights, as every other method has them, or ``independent`` ones of each client, as in
            the authors' code (METHODS 3.5).
        matching: Hyperparameters of the matching, see `features.matching.BBPMap`.
    """

    payload_type: ClassVar[type] = LayerExchange
    needs_everyone = True
    needs_whole_model = True

    def __init__(self, matching: BBPMap, init: Literal["shared", "independent"] = "shared") -> None:
        self.matching, self.start = matching, init

    def check(self, model: nn.Module) -> None:
        """Take plain chains of at least two layers."""
        hidden_layers(model)

    def init(self, model: nn.Module, federation: Federation) -> FedMAState:
        """Start from the common initial model."""
        counts = torch.from_numpy(federation.class_counts.copy())
        return FedMAState(hidden_layers(model), counts, federation.seed, 0, snapshot(model))

    def broadcast(self, state: FedMAState, client_id: int) -> LayerExchange:
        """Send the layer that was matched last, or at the start of a pass the model in the client's form."""
        if state.stage:
            name = state.layers[state.stage - 1]
            layer = as_params(name, layer_of(state.matched, name))
            return LayerExchange(layer, state.stage, state.pending[-1][client_id])
        if not state.assignments and self.start == "independent":
            return LayerExchange({}, init_seed=derive_seed(state.seed, "client init", client_id))
        own = [assignments[client_id] for assignments in state.assignments]
        return LayerExchange(sliced(state.model, state.layers, own))

    def aggregate(self, state: FedMAState, updates: Iterable[Update]) -> FedMAState:
        """Match the layer that the clients trained, or average the last one and so complete the model.

        Raises:
            UserError: A client is missing.
        """
        name = state.layers[state.stage]
        layers = [layer_of(params, name) for params in params_of_all(updates, len(state.class_counts))]
        following = state._replace(round_idx=state.round_idx + 1)
        if state.stage < len(state.layers) - 1:
            draw = numpy_generator(state.seed, "matching", state.round_idx)
            layer, assignments = match_neurons(layers, draw, self.matching)
            return following._replace(
                matched=state.matched | as_params(name, layer), pending=(*state.pending, assignments)
            )
        last = mean_by_class(layers, state.class_counts)
        model = state.matched | as_params(name, last)
        return following._replace(model=model, assignments=state.pending, matched={}, pending=())

    def global_payload(self, state: FedMAState) -> LayerExchange:
        """Give the last complete model."""
        return LayerExchange(state.model)


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
