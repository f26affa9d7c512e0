"""APFL: Deng et al., "Adaptive Personalized Federated Learning", 2020, Algorithm 1.

    server: as FedAvg, on w
    client: w_k <- w^t;  v_k and alpha_k are its own, w^0 and alpha before its first turn
            adaptive:  alpha_k <- alpha_k - lr * <v_k - w_k, grad F_k(vbar_k)>, kept in [0, 1]
            for E epochs over batches b:  vbar_k = alpha_k * v_k + (1 - alpha_k) * w_k
                v_k <- v_k - lr * alpha_k * grad F_k(vbar_k; b)
                w_k <- w_k - lr * grad F_k(w_k; b)
            keep v_k, alpha_k;  return w_k

vbar_k is the client's model, between its turns with the w that it would receive. The gradient by v_k of F_k(vbar_k) has
the factor alpha_k; none passes to w_k.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedfeat.algorithms.own_models import Precise, TwinClient
from fedfeat.client import Batch
from fedfeat.config.conditions import UnitInterval
from fedfeat.models.twin import own_tensors
from fedfeat.params import copy_into, snapshot
from fedfeat.types import Tensors, Turn, Weights

_PART = 512  # Examples of a pass without steps; only memory depends on it.


class MixedModel(NamedTuple):
    """Memory: v_k, under the names of the network's tensors, and alpha_k, a scalar."""

    params: dict[str, Tensor]
    alpha: Tensor


class _Mix(Precise):
    """Alpha_k, a part of the half, so that clients that train stacked have each their own."""

    alpha: Tensor

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.register_buffer("alpha", torch.tensor(float(alpha)))


class APFLClient(TwinClient):
    """FedAvg's client that trains its part of a mixture with the common model.

    Args:
        alpha: First share of v_k in the client's model: 0 is FedAvg, 1 local learning.
        adaptive: Whether a client moves alpha_k at the start of each of its turns, by all its examples.
        arguments: As in `TwinClient`.
    """

    method = "APFL"
    apart = None  # v_k and alpha_k are in the state dict, so turns can be stacked

    def __init__(self, *, alpha: UnitInterval = 0.5, adaptive: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.adaptive = adaptive
        self.mix = _Mix(alpha)
        self._initial = MixedModel(snapshot(self.model), self.mix.alpha.clone())
        self._num_asked = 0

    def receive(self, payload: Weights, memory: MixedModel | None) -> None:
        """Take w^t, and v_k and alpha_k beside it."""
        super().receive(payload, memory)
        found = memory or self._initial
        self.mix.alpha.copy_(found.alpha)
        self.own.fill(found.params | self._statistics(found))

    def _statistics(self, found: MixedModel) -> dict[str, Tensor]:
        """Mix running statistics too: those of v_k are of its last turn, but vbar_k has w's weights of this round."""
        share = self.mix.alpha
        return {
            name: torch.lerp(w, found.params[name].to(w), share.to(w))
            for name, w in self.model.named_buffers()
            if name in found.params and w.is_floating_point()
        }

    def recall(self, payload: Weights | None, memory: MixedModel | None) -> None:
        """Take vbar_k of v_k and the received w."""
        super().recall(payload, memory)
        mixed = {name: tensor.detach().clone() for name, tensor in self._mixed().items()}
        self.own.fill(mixed)
        copy_into(self.model, self.own.network.state_dict())
        self.mix.alpha.fill_(1.0)

    def begin_turn(self, turn: Turn) -> None:
        """Move alpha_k where it is adaptive."""
        if self.adaptive and len(turn.class_counts) and turn.class_counts.sum():
            self._move_alpha(turn)

    def _move_alpha(self, turn: Turn) -> None:
        """``alpha_k - lr * <v_k - w_k, grad F_k(vbar_k)>``, the derivative of F_k(vbar_k) by alpha_k."""
        self.to(turn.device).eval()
        with torch.enable_grad():
            alpha = self.mix.alpha.clone().requires_grad_()
            total = torch.zeros_like(alpha)
            for inputs, labels in turn.batches(_PART):
                logits = self.own(self.laid_out(inputs), self._mixed(alpha))
                (slope,) = torch.autograd.grad(self.cross_entropy(logits, labels) * len(labels), alpha)
                total += slope
        self.mix.alpha.copy_((self.mix.alpha - turn.lr * total / int(turn.class_counts.sum())).clamp(0, 1))
        self.train()

    def _mixed(self, alpha: Tensor | None = None) -> dict[str, Tensor]:
        """``alpha * v + (1 - alpha) * w``, in which w is fixed; of what trains, for the rest is the same in both."""
        share, w = self.mix.alpha if alpha is None else alpha, dict(self.model.named_parameters())
        own = {name: v for name, v in self.own.named_tensors().items() if v.requires_grad}
        return {name: share * v + (1 - share) * w[name].detach() for name, v in own.items()}

    def loss(self, batch: Batch) -> Tensor:
        """``F_k(vbar) + F_k(w)``, in which no gradient passes from vbar to w."""
        inputs, labels = batch
        own = self.cross_entropy(self.own(self.laid_out(inputs), self._mixed()), labels)
        return own + super().loss(batch)

    def predict(self, inputs: Tensor) -> Tensor:
        """Logits (B, num_classes) of inputs (B, ...) by vbar_k."""
        return self.own(self.laid_out(inputs), self._mixed())

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[Weights, MixedModel]:
        """Give w_k, keep v_k and alpha_k."""
        payload, _ = super().upload(turn, tensors)
        self._num_asked = int(turn.class_counts.sum()) if self.adaptive else 0
        return payload, MixedModel(own_tensors(tensors["own"]), tensors["mix"]["alpha"])

    def turn_metrics(self) -> dict[str, float]:
        """As `TwinClient`, with the FLOPs of alpha's pass."""
        metrics = super().turn_metrics()
        metrics["flops"] += self._num_asked * self.flops_per_example
        return metrics
