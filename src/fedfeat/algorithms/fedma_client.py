"""The client half of FedMA; its box is in `algorithms.fedma`."""

from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedfeat.chain import chain_layers, fit_shapes
from fedfeat.client import ClientModule
from fedfeat.features.neurons import spread_inputs
from fedfeat.models.blocks import xavier_
from fedfeat.models.network import Network
from fedfeat.params import copy_into, select, snapshot
from fedfeat.policy import MATCHED

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


class FedMAClient(ClientModule):
    """A client whose layers are matched one after the other, and which trains those that are not yet."""

    payload_type: ClassVar[type] = LayerExchange

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.layers = chain_layers(self.model)
        self.policies = dict.fromkeys(self.policies, MATCHED)
        self._stage = 0

    def receive(self, payload: LayerExchange, memory: dict[str, Tensor] | None) -> None:
        """Take a whole model, or put the matched layer into the client's own and let the next one read it."""
        self._stage = payload.stage
        params = dict(payload.params)
        if payload.assignment is not None:
            assert memory is not None
            done, following = self.layers[self._stage - 1 : self._stage + 1]
            num_global = len(params[f"{done}.weight"])
            key = f"{following}.weight"
            params = {**memory, **params, key: spread_inputs(memory[key], payload.assignment, num_global)}
        if payload.init_seed is not None:
            self._draw(payload.init_seed)
        if fit_shapes(self.model, params):
            for cached in ("flops_per_example", "forward_flops_per_example"):
                self.__dict__.pop(cached, None)
        copy_into(self.model, params)
        for index, name in enumerate(self.layers):
            self.model.get_submodule(name).requires_grad_(index >= self._stage)

    def _draw(self, seed: int) -> None:
        """Draw weights of the client's own, as the network's builder does."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for name in self.layers:
                cast(nn.Linear, self.model.get_submodule(name)).reset_parameters()
            if isinstance(self.model, Network) and self.model.is_xavier:
                xavier_(self.model)

    @property
    def only_last(self) -> bool:
        """Whether only the last layer still trains."""
        return self._stage == len(self.layers) - 1

    def local_steps(self, num_steps: int) -> int:
        """Steps of a turn."""
        return LAST_EPOCHS * num_steps if self.only_last else num_steps

    def configure_optimizers(self) -> Optimizer:
        """Lightning hook: as `ClientModule`, with other settings for the last layer alone."""
        optimizer = super().configure_optimizers()
        if self.only_last:
            for group in optimizer.param_groups:
                group["lr"] *= LAST_LR
                group["weight_decay"] = LAST_WEIGHT_DECAY
        return optimizer

    def upload(self) -> tuple[LayerExchange, dict[str, Tensor]]:
        """Give the first layer that is not matched; the whole model stays in the client's memory."""
        own = snapshot(self.model)
        name = self.layers[self._stage]
        keys = [key for key in own if key.rpartition(".")[0] == name]
        return LayerExchange(select(own, keys), self._stage), own
