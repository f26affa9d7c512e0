"""The client half of FedMA; its box is in `algorithms.fedma`."""

from copy import deepcopy
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedfeat.client import ClientModule
from fedfeat.features.chain import chain_layers, fit_shapes
from fedfeat.features.neurons import spread_inputs
from fedfeat.models.blocks import xavier_
from fedfeat.models.network import Network
from fedfeat.models.policy import MATCHED
from fedfeat.params import copy_into, select, snapshot

LAST_LR = 0.1
LAST_WEIGHT_DECAY = 0.0001
LAST_EPOCHS = 3
"""When only the last layer is left: a tenth of the learning rate, weight decay, three times the epochs (IBM/FedMA)."""


def take_widths(module: ClientModule, params: dict[str, Tensor]) -> None:
    """Give a client half's network the widths of what it receives."""
    if fit_shapes(module.model, params):
        forget_flops(module)


def forget_flops(module: ClientModule) -> None:
    """Have the FLOPs of an example counted again."""
    for cached in ("flops_per_example", "forward_flops_per_example"):
        module.__dict__.pop(cached, None)


def drawn_again(network: nn.Module, seed: int) -> dict[str, Tensor]:
    """Draw weights of a chain of layers anew, as its builder does.

    Args:
        network: The chain; stays as it is.
        seed: Of the draws.
    """
    # On the CPU, for another device's generator draws other numbers.
    model = deepcopy(network).cpu()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for name in chain_layers(model):
            cast(nn.Linear, model.get_submodule(name)).reset_parameters()
        if isinstance(model, Network) and model.is_xavier:
            xavier_(model)
    return snapshot(model)


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
    """A client whose layers are matched one after the other, and which trains those that are not yet.

    Args:
        weight_decay: Until only the last layer trains, in place of the optimizer's, which in comparisons is FedAvg's.
        arguments: Those of `ClientModule`.
    """

    payload_type: ClassVar[type] = LayerExchange
    resets_optimizer = True
    apart = "its clients have networks of unequal widths"

    def __init__(self, weight_decay: float = 0.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.weight_decay = weight_decay
        self.layers = chain_layers(self.model)
        self.policies = dict.fromkeys(self.policies, MATCHED)
        self._stage = 0

    def receive(self, payload: LayerExchange, memory: dict[str, Tensor] | None) -> None:
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
            params = {**memory, **params, key: spread_inputs(memory[key], payload.assignment, num_global)}
        if payload.init_seed is not None:
            params = drawn_again(self.model, payload.init_seed)
        take_widths(self, params)
        copy_into(self.model, params)
        for index, name in enumerate(self.layers):
            self.model.get_submodule(name).requires_grad_(index >= self._stage)

    @property
    def rounds_per_pass(self) -> int:
        """Rounds until every layer is matched or averaged."""
        return len(self.layers)

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

    def upload(self) -> tuple[LayerExchange, dict[str, Tensor]]:
        """Give the first layer that is not matched; the whole model stays in the client's memory."""
        own = snapshot(self.model)
        name = self.layers[self._stage]
        keys = [key for key in own if key.rpartition(".")[0] == name]
        return LayerExchange(select(own, keys), self._stage), own
