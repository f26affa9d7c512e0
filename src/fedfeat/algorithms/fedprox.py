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

    def __init__(self, *, mu: float = 0.001, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.mu = mu
        self._received: list[Tensor] = []

    def on_train_start(self) -> None:
        """Lightning hook: keep w^t on the model's device (trainable parameters only, not BN statistics)."""
        self._received = [parameter.detach().clone() for parameter in self._trained()]

    def loss(self, batch: Batch) -> Tensor:
        """``F_k(w) + mu / 2 * ||w - w^t||^2``."""
        if self.mu == 0.0:
            return super().loss(batch)
        gaps = torch._foreach_sub(self._trained(), self._received)
        squares = [gap.square().sum() for gap in gaps]
        return super().loss(batch) + 0.5 * self.mu * torch.stack(squares).sum()

    def _trained(self) -> list[Tensor]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]
