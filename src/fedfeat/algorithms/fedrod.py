"""FedRoD: Chen and Chao, "On Bridging Generic and Personalized Federated Learning", ICLR 2022, Algorithm 1.

    server: as FedAvg, on the body theta and the generic head psi
    client: theta_k, psi_k <- theta, psi;  its head h_k comes from its memory, at first 0
            z the features of x,  g = psi_k z the generic logits
            step on theta_k, psi_k by the gradient of the balanced softmax  -log( n_y^gamma e^{g_y} / sum_c n_c^gamma e^{g_c} )
            step on h_k by the gradient of the cross-entropy of  g + h_k z,  g and z fixed
            keep h_k;  return theta_k, psi_k

The generic model is g; the client's own is g + h_k z. Nothing of h_k reaches theta_k or psi_k, so what is averaged is
FedAvg under ``softmax_scope=balanced``, but where gradients are clipped, by one norm with h_k's.
"""  # noqa: E501

from copy import deepcopy
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfeat.client import Batch, ClientModule
from fedfeat.config.conditions import NotNegative
from fedfeat.models.network import Network
from fedfeat.params import copy_into, select, snapshot
from fedfeat.types import Tensors, Turn, Weights


class PersonalHead(NamedTuple):
    """A client's memory: its h_k."""

    params: dict[str, Tensor]


class FedRoDClient(ClientModule):
    """FedAvg's client with a head of its own beside the one that is averaged.

    Args:
        gamma: Power of the client's class counts in the balanced softmax.
        arguments: As in `ClientModule`; the balanced softmax is its ``softmax_scope``.
    """

    keeps_model = True
    apart = None  # the personal head is in the state dict, so turns can be stacked

    def __init__(self, *, gamma: NotNegative = 1.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.gamma = gamma
        self.personal_head: nn.Module = deepcopy(cast(Network, self.model).last_layer)
        for parameter in self.personal_head.parameters():
            nn.init.zeros_(parameter)
            parameter.requires_grad_()  # also where the layer that it is a copy of is frozen
        self._initial_head = snapshot(self.personal_head)
        self._seen: tuple[Tensor, Tensor] | None = None

    def receive(self, payload: Any, memory: PersonalHead | None) -> None:
        """Become one client, with its head."""
        super().receive(payload, memory)
        copy_into(self.personal_head, memory.params if memory else self._initial_head)

    def scope_to(self, turn: Turn) -> None:
        """Weigh the client's class counts."""
        super().scope_to(turn)
        if self._prior is not None:
            self._prior = self.gamma * self._prior

    def forward(self, inputs: Tensor) -> Tensor:
        """Generic logits (B, num_classes) of inputs (B, ...); notes them and what they are made of."""
        network = cast(Network, self.model)
        seen = network.last_input(self.laid_out(inputs))
        logits = network.last_layer(seen)
        self._seen = seen, logits
        return logits

    def predict(self, inputs: Tensor) -> Tensor:
        """Logits (B, num_classes) of inputs (B, ...) by both heads together."""
        network = cast(Network, self.model)
        seen = network.last_input(self.laid_out(inputs))
        return network.last_layer(seen) + self.personal_head(seen)

    def own_tensors(self) -> dict[str, Tensor]:
        """Give the sum of both heads, whose logits are the sums of theirs."""
        network = cast(Network, self.model)
        generic, personal = network.last_layer.state_dict(), self.personal_head.state_dict()
        return {f"{network.last_layer_name}.{name}": generic[name] + personal[name] for name in generic}

    def loss(self, batch: Batch) -> Tensor:
        """Balanced softmax of the generic logits and cross-entropy of both, each for its own parameters."""
        generic = super().loss(batch)
        assert self._seen is not None
        (seen, logits), self._seen = self._seen, None
        own = logits.detach() + self.personal_head(seen.detach())
        return generic + functional.cross_entropy(own, batch[1])

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[Weights, PersonalHead]:
        """Give body and generic head to the server, and keep the personal one."""
        return Weights(select(tensors["model"], self.shared_keys)), PersonalHead(tensors["personal_head"])

    def turn_metrics(self) -> dict[str, float]:
        """As `ClientModule`, with the personal head's passes, of which none goes back to the features."""
        metrics = super().turn_metrics()
        weight = self.personal_head.weight
        assert isinstance(weight, torch.Tensor)
        metrics["flops"] += metrics["examples"] * 4 * weight.numel()
        return metrics
