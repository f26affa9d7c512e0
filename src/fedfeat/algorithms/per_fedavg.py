"""Per-FedAvg: Fallah et al., "Personalized Federated Learning with Theoretical Guarantees", NeurIPS 2020, Algorithm 1.

    server: as FedAvg, on w, from which a step on a client's data leads to a good model of the client
    client: w_k <- w^t
            for E epochs over batches, each cut into halves b, b':
                u <- w_k - alpha * grad F_k(w_k; b)
                w_k <- w_k - lr * grad F_k(u; b')
            return w_k
    own:    w - alpha * grad F_k(w), over all of the client's examples

First order: the second gradient leaves out the factor I - alpha * Hessian (the paper's FO variant, Section 5).
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from fedfeat.algorithms.own_models import gradient_at, refuse_personal
from fedfeat.client import Batch, ClientModule
from fedfeat.config.conditions import NotNegative
from fedfeat.data.batches import PADDED
from fedfeat.models.freezing import has_batch_norm
from fedfeat.models.frozen import FrozenCopy
from fedfeat.models.network import DROPOUTS
from fedfeat.params import trained_names
from fedfeat.types import Turn

_PART = 512  # Examples of a pass without steps; only memory depends on it.


def halves(inputs: Tensor, labels: Tensor, least: int = 1) -> tuple[Batch, Batch]:
    """Give every other example of a batch, and the others; all of them twice where a half has fewer than ``least``.

    Padding comes last (`executor=vectorized`), so that examples fall into the same halves with and without it.
    """
    if len(labels) < 2 * least:
        return (inputs, labels), (inputs, labels)
    first, second = (inputs[0::2], labels[0::2]), (inputs[1::2], labels[1::2])
    alone, count = (second[1] == PADDED).all(), len(second[1])
    pairs: Iterable[tuple[Tensor, Tensor]] = zip(second, first, strict=True)
    kept, others = (torch.where(alone, its[:count], mine) for mine, its in pairs)
    return first, (kept, others)


class PerFedAvgClient(ClientModule):
    """Clients that train the start of one more step.

    Args:
        alpha: Length of that step.
        arguments: As in `ClientModule`.
    """

    keeps_model = True
    apart = None

    def __init__(self, *, alpha: NotNegative = 0.01, **arguments: Any) -> None:
        super().__init__(**arguments)
        refuse_personal("Per-FedAvg", arguments.get("personal", ()))
        self.alpha = alpha
        self.own = FrozenCopy(self.model)
        draws = any(isinstance(part, DROPOUTS) and part.p for part in self.model.modules())
        mixes = has_batch_norm(self.model)
        self._least = 2 if mixes else 1
        if draws or mixes:
            self.apart = (
                "it passes halves of batches, and stacked dropout and batch norm are for whole ones (model)"
            )
        self._trained = trained_names(self.model)

    def loss(self, batch: Batch) -> Tensor:
        """``F_k(w - alpha * g; b')`` with g, the gradient at w on b, fixed."""
        (inputs, labels), (others, wanted) = halves(self.laid_out(batch[0]), batch[1], self._least)
        slopes = self._slopes(inputs, labels)
        w = dict(self.model.named_parameters())
        moved = {name: w[name] - self.alpha * slopes[name] for name in self._trained}
        return self.cross_entropy(functional_call(self.model, moved, (others,)), wanted)

    def _slopes(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        named = dict(self.model.named_parameters())
        w = {name: named[name].detach() for name in self._trained}
        return gradient_at(self.model, w, inputs, lambda logits: self.cross_entropy(logits, labels))[0]

    def adapt(self, turn: Turn) -> None:
        """Take the step from w on all examples of the client."""
        count = int(turn.class_counts.sum())
        moved = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        # A client without examples has one batch, an empty one.
        for inputs, labels in turn.batches(_PART) if count else ():
            for name, slope in self._slopes(self.laid_out(inputs), labels).items():
                moved[name] -= self.alpha * len(labels) / count * slope
        self.own.fill(moved)

    def own_tensors(self) -> dict[str, Tensor]:
        """Give the model of `adapt`."""
        return self.own.named_tensors()

    def predict(self, inputs: Tensor) -> Tensor:
        """Logits (B, num_classes) of inputs (B, ...) by the client's own model, of `adapt`."""
        return self.own(self.laid_out(inputs))
