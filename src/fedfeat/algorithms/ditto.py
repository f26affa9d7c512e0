"""Ditto: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, Algorithm 1.

    server: as FedAvg, on w
    client: w_k <- w^t;  v_k is its own, w^0 before its first turn
            for E epochs over batches b:
                v_k <- v_k - lr * (grad F_k(v_k; b) + lam * (v_k - w^t))
                w_k <- w_k - lr * grad F_k(w_k; b)
            keep v_k;  return w_k

v_k is the client's model. w never depends on any v_k, so its track is FedAvg's, bit for bit and for every lam.
"""

from typing import Any

import torch
from torch import Tensor

from fedfeat.algorithms.own_models import OwnModel, TwinClient
from fedfeat.client import Batch
from fedfeat.config.conditions import NotNegative
from fedfeat.models.frozen import FrozenCopy
from fedfeat.models.twin import own_tensors
from fedfeat.params import copy_into, snapshot, trained_names
from fedfeat.types import Tensors, Turn, Weights


class DittoClient(TwinClient):
    """FedAvg's client that trains a second model, held near the received one.

    Args:
        lam: Weight of the term. The public code tries .1, 1 and 2.
        arguments: As in `TwinClient`.
    """

    method = "Ditto"
    apart = None  # v_k and w^t are in the state dict, so turns can be stacked

    def __init__(self, *, lam: NotNegative = 1.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.lam = lam
        self.received = FrozenCopy(self.model)
        self._initial = snapshot(self.model)
        self._trained = trained_names(self.model)

    def receive(self, payload: Weights, memory: OwnModel | None) -> None:
        """Take w^t, and v_k beside it."""
        super().receive(payload, memory)
        self.received.fill(payload.params)
        self.own.fill(memory.params if memory else self._initial)

    def recall(self, payload: Weights | None, memory: OwnModel | None) -> None:
        """Take v_k."""
        found = memory.params if memory else self._initial
        copy_into(self.model, found)
        self.own.fill(found)

    def loss(self, batch: Batch) -> Tensor:
        """``F_k(v) + lam / 2 * ||v - w^t||^2 + F_k(w)``, in which no gradient passes from v to w."""
        inputs, labels = batch
        own, received = self.own.named_tensors(), self.received.named_tensors()
        loss = self.cross_entropy(self.own(self.laid_out(inputs)), labels)
        if self.lam:
            squares = [(own[name] - received[name]).square().sum() for name in self._trained]
            loss = loss + 0.5 * self.lam * torch.stack(squares).sum()
        return loss + super().loss(batch)

    def predict(self, inputs: Tensor) -> Tensor:
        """Logits (B, num_classes) of inputs (B, ...) by v_k."""
        return self.own(self.laid_out(inputs))

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[Weights, OwnModel]:
        """Give w_k, keep v_k."""
        payload, _ = super().upload(turn, tensors)
        return payload, OwnModel(own_tensors(tensors["own"]))
