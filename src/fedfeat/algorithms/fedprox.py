"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", 2020, Algorithm 2.

    client: minimise  F_k(w) + mu / 2 * ||w - w^t||^2  from the received w^t;  stragglers return partial work
    server: as FedAvg

Partial work is a scenario (``scenario.straggler_fraction``, ``straggler_policy=partial``), so that
every method can be compared under it; FedAvg in the paper drops stragglers (``straggler_policy=drop``).
"""

from typing import Any

import torch
from torch import Tensor

from fedfeat.client import Batch, ClientModule
from fedfeat.config.conditions import NotNegative
from fedfeat.models.frozen import FrozenCopy
from fedfeat.params import trained_names


class FedProxClient(ClientModule):
    """FedAvg's client with the proximal term.

    Args:
        mu: Weight of the term. Default .001, which FedMA's public code hard-codes and Psi-Net and Fed2 compare with;
            FedRep's code base uses .1.
        arguments: As in `ClientModule`.
    """

    apart = None  # w^t is in the state dict, so turns can be stacked

    def __init__(self, *, mu: NotNegative = 0.001, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.mu = mu
        self.received = FrozenCopy(self.model)
        self._trained = trained_names(self.model, self.shared_keys)

    def receive(self, payload: Any, memory: Any) -> None:
        """Become one client and keep w^t."""
        super().receive(payload, memory)
        self.received.fill(self.model)

    def loss(self, batch: Batch) -> Tensor:
        """``F_k(w) + mu / 2 * ||w - w^t||^2`` over what is trained and sent."""
        if self.mu == 0.0 or not self._trained:
            return super().loss(batch)
        own, received = dict(self.model.named_parameters()), self.received.named_tensors()
        squares = [(own[name] - received[name]).square().sum() for name in self._trained]
        return super().loss(batch) + 0.5 * self.mu * torch.stack(squares).sum()
