"""Networks matched in one round: PFNM (Yurochkin et al., ICML 2019), and FedMA's matching without retraining.

    server: send the model, in the client's own widths and order
    client: train;  return the whole network
    server: match the neurons of all clients, no training in between (`features.one_shot`)

    PFNM:   from the top hidden layer down, a neuron being its bias and outgoing weights
    FedMA:  from the first layer up, a neuron being its incoming weights and bias, the next layer's inputs following

With one round this is one-shot learning. With more, clients go on from their slices of the global model. PFNM's next
matching starts from the last assignments, as in the authors' code; FedMA's is made anew, as that of its passes.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedfeat.algorithms.matched import (
    Assignments,
    hidden_layers,
    match_neurons,
    mean_by_class,
    params_of_all,
    take_widths,
)
from fedfeat.client import ClientModule
from fedfeat.errors import UserError
from fedfeat.features.chain import as_model, layer_of, sliced
from fedfeat.features.matching import BBPMap
from fedfeat.features.neurons import Layer, spread_inputs
from fedfeat.features.one_shot import Fused, pfnm
from fedfeat.models.redraw import drawn_again
from fedfeat.params import snapshot
from fedfeat.seeding import derive_seed, numpy_generator
from fedfeat.server import Server
from fedfeat.types import Federation, Setting, Tensors, Turn, Update

_log = logging.getLogger("fedfeat")

# Share of the weights below which shrinking has cost accuracy, see methods/fedma.md#matching.
_LITTLE = 0.6


class WholeNetwork(NamedTuple):
    """Payload in both directions; its layers are as wide as they are.

    Attributes:
        params: All weights and biases.
        init_seed: Where clients start from weights of their own: the seed that draws them.
    """

    params: dict[str, Tensor]
    init_seed: int | None = None


class PFNMClient(ClientModule):
    """FedAvg's client, with a network that takes the widths of what it receives."""

    payload_type: ClassVar[type] = WholeNetwork
    apart = "its clients have networks of unequal widths"

    def receive(self, payload: WholeNetwork, memory: Any) -> None:
        """Take a whole model: a client's own slice, or the wider global one."""
        if payload.init_seed is not None:
            payload = WholeNetwork(drawn_again(self.model, payload.init_seed))
        take_widths(self, payload.params)
        super().receive(payload, memory)

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[WholeNetwork, None]:
        """Give the whole model."""
        return WholeNetwork(tensors["model"]), None


class OneShotState(NamedTuple):
    """State of the server.

    Attributes:
        layers: Names of the weighted layers.
        class_counts: Training examples per client and class, int64 (K, C).
        seed: The experiment's seed.
        round_idx: Rounds so far.
        model: The global model.
        assignments: Of its hidden layers, for each client; empty before the first round.
    """

    layers: tuple[str, ...]
    class_counts: Tensor
    seed: int
    round_idx: int
    model: dict[str, Tensor]
    assignments: tuple[Assignments, ...] = ()


class OneShotServer(Server):
    """Match whole networks.

    Args:
        matching: Hyperparameters of the matching, see `features.matching.BBPMap`.
        init: ``shared`` initial weights, as every other method has them, or ``independent`` ones of each client.
    """

    payload_type: ClassVar[type] = WholeNetwork
    needs_everyone = True
    needs_whole_model = matches_neurons = True

    def __init__(self, matching: BBPMap, init: Literal["shared", "independent"] = "shared") -> None:
        self.matching, self.start = matching, init

    @abstractmethod
    def fuse(
        self,
        clients: Sequence[Sequence[Layer]],
        class_counts: Tensor,
        draw: np.random.Generator,
        former: Sequence[Assignments],
    ) -> Fused:
        """Match the layers of every client.

        Args:
            clients: Each client's layers, first to last.
            class_counts: (K, C).
            draw: Draws the order of clients in each sweep.
            former: Assignments of the round before, for each hidden layer; empty in the first round.
        """

    def check(self, model: nn.Module, setting: Setting) -> None:
        """Take plain chains of at least two layers; warn where nothing would be left of the clients' weights."""
        num_matched = len(hidden_layers(model)) - 1
        left = self.matching.kept_share(setting.num_clients) ** num_matched
        if left < _LITTLE:
            _log.warning(
                "algorithm.server.matching.shrink=true leaves at most %.0f %% of the outputs of %d clients after %d "
                "matched layers, and nobody trains in between: compare algorithm.server.matching.shrink=false.",
                100 * left, setting.num_clients, num_matched,
            )  # fmt: skip

    def init(self, model: nn.Module, federation: Federation) -> OneShotState:
        """Start from the common initial model."""
        counts = torch.from_numpy(federation.class_counts.copy())
        return OneShotState(hidden_layers(model), counts, federation.seed, 0, snapshot(model))

    def broadcast(self, state: OneShotState, client_id: int) -> WholeNetwork:
        """Send the client its slice of the global model, or at first what it starts from."""
        if not state.assignments and self.start == "independent":
            return WholeNetwork({}, derive_seed(state.seed, "client init", client_id))
        own = [assignments[client_id] for assignments in state.assignments]
        return WholeNetwork(sliced(state.model, state.layers, own))

    def aggregate(self, state: OneShotState, updates: Iterable[Update]) -> OneShotState:
        """Match the clients' networks.

        Raises:
            UserError: A client is missing.
        """
        everyone = params_of_all(updates, len(state.class_counts))
        clients = [[layer_of(params, name) for name in state.layers] for params in everyone]
        draw = numpy_generator(state.seed, "matching", state.round_idx)
        found = self.fuse(clients, state.class_counts, draw, state.assignments)
        model = as_model(state.layers, found.layers)
        return state._replace(
            round_idx=state.round_idx + 1, model=model, assignments=tuple(found.assignments)
        )

    def global_payload(self, state: OneShotState) -> WholeNetwork:
        """Give the matched model."""
        return WholeNetwork(state.model)


class PFNMServer(OneShotServer):
    """Match multilayer perceptrons from the top down."""

    def check(self, model: nn.Module, setting: Setting) -> None:
        """Take multilayer perceptrons."""
        super().check(model, setting)
        for name in hidden_layers(model):
            layer = model.get_submodule(name)
            if not isinstance(layer, nn.Linear) or layer.bias is None:
                raise UserError(
                    "model must have linear layers with bias alone (mlp) for algorithm=pfnm, but "
                    f"{name} is {layer}."
                )

    def fuse(
        self,
        clients: Sequence[Sequence[Layer]],
        class_counts: Tensor,
        draw: np.random.Generator,
        former: Sequence[Assignments],
    ) -> Fused:
        """Match as `features.one_shot.pfnm`, from where the neurons were."""
        return pfnm(clients, class_counts, draw, self.matching, former)


class OneShotFedMAServer(OneShotServer):
    """Match any chains of layers from the first layer up."""

    def fuse(
        self,
        clients: Sequence[Sequence[Layer]],
        class_counts: Tensor,
        draw: np.random.Generator,
        former: Sequence[Assignments],
    ) -> Fused:
        """Match as a pass of FedMA does in which nobody trains between two layers."""
        current = [layers[0] for layers in clients]
        fused = Fused([], [])
        for depth in range(1, len(clients[0])):
            layer, assignments = match_neurons(current, draw, self.matching)
            fused.layers.append(layer)
            fused.assignments.append(assignments)
            current = [
                layers[depth]._replace(
                    weight=spread_inputs(layers[depth].weight, assignment, len(layer.weight))
                )
                for layers, assignment in zip(clients, assignments, strict=True)
            ]
        fused.layers.append(mean_by_class(current, class_counts))
        return fused
