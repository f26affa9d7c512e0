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

import logging
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedfeat.algorithms.matched import (
    Assignments,
    forget_flops,
    hidden_layers,
    match_neurons,
    mean_by_class,
    params_of_all,
    take_widths,
)
from fedfeat.client import ClientModule
from fedfeat.config.conditions import NotNegative
from fedfeat.errors import ConfigError
from fedfeat.features.chain import as_params, chain_layers, layer_of, sliced
from fedfeat.features.matching import BBPMap
from fedfeat.features.neurons import spread_inputs
from fedfeat.models.policy import MATCHED
from fedfeat.models.redraw import drawn_again
from fedfeat.params import copy_into, select, snapshot
from fedfeat.seeding import derive_seed, numpy_generator
from fedfeat.server import Server
from fedfeat.types import Federation, Setting, Tensors, Turn, Update

_log = logging.getLogger("fedfeat")

LAST_LR = 0.1
LAST_WEIGHT_DECAY = 0.0001
LAST_EPOCHS = 3
"""When only the last layer is left: a tenth of the learning rate, weight decay, three times the epochs (IBM/FedMA)."""


class LayerExchange(NamedTuple):
    """Payload in both directions.

    Attributes:
        params: Down: a whole model in a client's own widths and order, or the global layer that was matched last. Up:
            the client's next layer.
        stage: Matched layers of this pass, 0 for a whole model.
        assignment: Of that layer's global neurons, which each of the client's became, int64 (L_j,).
        init_seed: Where clients start from weights of their own: the seed that draws them.
    """

    params: dict[str, Tensor]
    stage: int = 0
    assignment: Tensor | None = None
    init_seed: int | None = None


class OwnModel(NamedTuple):
    """A client's memory: its whole model, in its own widths and order."""

    params: dict[str, Tensor]


class FedMAClient(ClientModule):
    """A client whose layers are matched one after the other, and which trains those that are not yet.

    Args:
        weight_decay: Until only the last layer trains, in place of the optimizer's, which in comparisons is FedAvg's.
        arguments: Those of `ClientModule`.
    """

    payload_type: ClassVar[type] = LayerExchange
    keeps_tensors = True
    apart = "its clients have networks of unequal widths"

    def __init__(self, *, weight_decay: NotNegative = 0.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.weight_decay = weight_decay
        self.layers = chain_layers(self.model)
        self.policies = dict.fromkeys(self.policies, MATCHED)
        self._stage = 0

    def check(self, setting: Setting) -> None:
        """Refuse momentum between turns, whose parameters differ, and rounds that are not even one pass."""
        if setting.keeps_optimizer:
            rule = f"be reset for algorithm={setting.algorithm}"
            raise ConfigError.rule("federation.opt_state", rule, "keep")
        rounds, left = len(self.layers), setting.num_rounds % len(self.layers)
        if 0 < setting.num_rounds < rounds:
            rule = f"be 0 or at least {rounds} for algorithm={setting.algorithm}, a round for each layer of the model"
            raise ConfigError.rule("federation.num_rounds", rule, setting.num_rounds)
        if left:
            _log.warning(
                "algorithm=%s takes %d rounds for a pass over the model: "
                "the last %d of federation.num_rounds=%d are lost.",
                setting.algorithm, rounds, left, setting.num_rounds,
            )  # fmt: skip

    def receive(self, payload: LayerExchange, memory: OwnModel | None) -> None:
        """Take a whole model, or put the matched layer into the client's own and let the next one read it."""
        if payload.stage != self._stage:
            forget_flops(self)
        self._stage = payload.stage
        params = dict(payload.params)
        if payload.assignment is not None:
            assert memory is not None
            done, following = self.layers[self._stage - 1 : self._stage + 1]
            num_global = len(params[f"{done}.weight"])
            key = f"{following}.weight"
            own = memory.params
            params = {**own, **params, key: spread_inputs(own[key], payload.assignment, num_global)}
        if payload.init_seed is not None:
            params = drawn_again(self.model, payload.init_seed)
        take_widths(self, params)
        copy_into(self.model, params)
        for index, name in enumerate(self.layers):
            self.model.get_submodule(name).requires_grad_(index >= self._stage)

    @property
    def only_last(self) -> bool:
        """Whether only the last layer still trains."""
        return self._stage == len(self.layers) - 1

    def local_steps(self, num_steps: int) -> int:
        """Steps of a turn."""
        return LAST_EPOCHS * num_steps if self.only_last else num_steps

    def configure_optimizers(self) -> Optimizer:
        """Lightning hook: as `ClientModule`, with FedMA's weight decay, and a smaller step for the last layer alone."""
        optimizer = super().configure_optimizers()
        for group in optimizer.param_groups:
            group["lr"] *= LAST_LR if self.only_last else 1
            group["weight_decay"] = LAST_WEIGHT_DECAY if self.only_last else self.weight_decay
        return optimizer

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[LayerExchange, OwnModel]:
        """Give the first layer that is not matched; the whole model stays in the client's memory."""
        own = tensors["model"]
        name = self.layers[turn.payload.stage]
        keys = [key for key in own if key.rpartition(".")[0] == name]
        return LayerExchange(select(own, keys), turn.payload.stage), OwnModel(own)


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
            the authors' code (methods/fedma.md#initial-weights).
        matching: Hyperparameters of the matching, see `features.matching.BBPMap`.
    """

    payload_type: ClassVar[type] = LayerExchange
    needs_everyone = True
    needs_whole_model = matches_neurons = True

    def __init__(self, matching: BBPMap, init: Literal["shared", "independent"] = "shared") -> None:
        self.matching, self.start = matching, init

    def check(self, model: nn.Module, setting: Setting) -> None:
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
