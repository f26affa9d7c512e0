"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", 2020, Algorithm 2.

    client: minimise  F_k(w) + mu / 2 * ||w - w^t||^2  from the received w^t;  stragglers return partial work
    server: as FedAvg

Partial work is a matter of the federation (``federation.straggler_fraction``, ``straggler_policy=partial``), so that
every method can be compared under it; FedAvg in the paper drops stragglers (``straggler_policy=drop``).
"""

from typing import Any

import torch
from torch import Tensor

from fedfeat.client import Batch, ClientModule


class FedProxClient(ClientModule):
    """FedAvg's client with the proximal term.

    Args:
        mu: Weight of the term. Default .001, which FedMA's public code hard-codes and Psi-Net and Fed2 compare with;
            FedRep's code base uses .1.
        arguments: As in `ClientModule`.
    """

    apart = None

    def __init__(self, *, mu: float = 0.001, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.mu = mu
        # By name: in a stacked fit tensors stand where the parameters were.
        self._names = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        for index, parameter in enumerate(self._trained()):
            self.register_buffer(f"received_{index}", parameter.detach().clone())

    def receive(self, payload: Any, memory: dict[str, Tensor] | None) -> None:
        """Become one client and keep w^t (trainable parameters only, not BN statistics)."""
        super().receive(payload, memory)
        if self.mu != 0.0:
            with torch.no_grad():
                torch._foreach_copy_(self._received(), self._trained())

    def loss(self, batch: Batch) -> Tensor:
        """``F_k(w) + mu / 2 * ||w - w^t||^2``."""
        if self.mu == 0.0:
            return super().loss(batch)
        pairs = zip(self._trained(), self._received(), strict=True)
        squares = [(own - received).square().sum() for own, received in pairs]
        return super().loss(batch) + 0.5 * self.mu * torch.stack(squares).sum()

    def _trained(self) -> list[Tensor]:
        parameters = dict(self.model.named_parameters())
        return [parameters[name] for name in self._names]

    def _received(self) -> list[Tensor]:
        return [self.get_buffer(f"received_{index}") for index in range(len(self._names))]
