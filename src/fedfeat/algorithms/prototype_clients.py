"""Client halves whose clients send class means of what their networks compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from fedfeat.client import Batch, ClientModule
from fedfeat.config.conditions import NotNegative
from fedfeat.errors import ConfigError
from fedfeat.features.prototypes import (
    Moments,
    Prototypes,
    Scatter,
    class_moments,
    nearness,
    pooled,
    prototypes_of,
    pull,
)
from fedfeat.models.grouped import refuse_groups
from fedfeat.models.network import Network
from fedfeat.models.shapes import dtype_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fedfeat.types import Turn

_BATCH = 500
"""Examples to represent at once."""


class ClassMeansClient(ClientModule):
    """A client that looks at class means of what its network computes.

    They are taken anew at the upload, over all of its training examples in eval mode and without augmentation.
    """

    runs_at_upload = True
    apart: str | None = None

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._num_passed = 0

    @property
    def network(self) -> Network:
        """The client's network."""
        return cast(Network, self.model)

    def class_means(self, turn: Turn, function: Callable[[Tensor], Tensor], *scatter: Scatter) -> Moments:
        """Give the moments of a function from inputs (B, ...) to vectors (B, d), over the client's examples."""
        num_classes = self.network.num_classes
        parts = [
            class_moments(function(self.laid_out(inputs)), labels, num_classes, *scatter)
            for inputs, labels in turn.batches(_BATCH)
        ]
        found = pooled(parts)
        self._num_passed = int(found.counts.sum())
        return found

    def turn_metrics(self) -> dict[str, float]:
        """As `ClientModule`, with the pass that takes the means."""
        metrics = super().turn_metrics()
        metrics["flops"] += self._num_passed * self.forward_flops_per_example
        return metrics


class PrototypeClient(ClassMeansClient):
    """A client that looks at the class means of its representations."""

    apart: str | None = None

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        refuse_groups(
            self.model, "where clients send prototypes, of which a group of the last layer would read a part"
        )

    def own_moments(self, turn: Turn, network: Network, *scatter: Scatter) -> Moments:
        """Give counts and means of what a network's last layer reads, over the client's examples."""
        return self.class_means(turn, network.representation, *scatter)

    def own_prototypes(self, turn: Turn) -> tuple[Prototypes, Moments]:
        """Give the prototypes of the trained network, in its type, and what they are made of."""
        found = self.own_moments(turn, self.network)
        return prototypes_of(found, dtype_of(self.model)), found


def require_all_personal(client: ClientModule, arguments: Mapping[str, Any]) -> None:
    """Refuse a client half, made with these arguments, that would send weights.

    Raises:
        ConfigError: Something is not personal.
    """
    if client.shared_keys:
        rule = "be [all] where clients send no weights"
        raise ConfigError.rule("algorithm.client.personal", rule, list(arguments.get("personal", ())))


class CommonPrototypesClient(PrototypeClient):
    """A client with common prototypes beside its network: ``prototypes`` (C, d), of the classes that are ``known``."""

    apart: str | None = None
    prototypes: Tensor
    known: Tensor

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        classes = self.network.num_classes
        self.register_buffer("prototypes", torch.zeros(classes, self.network.last_layer.in_features))
        self.register_buffer("known", torch.zeros(classes, dtype=torch.bool))

    def take(self, sent: Prototypes) -> None:
        """Have the prototypes that were sent, and no others."""
        classes = sent.classes.to(self.known.device)
        self.known.zero_()[classes] = True
        self.prototypes.zero_()[classes] = sent.means.to(self.prototypes)


class PulledClient(CommonPrototypesClient):
    """A client with a whole model of its own, whose representations are pulled towards common prototypes.

    Args:
        lam: lambda, the weight of the pull.
        predict_by: The client's own model: its own ``head``, or the nearest common ``prototype``; before there is one
            its head.
        arguments: As in `ClientModule`; ``personal`` is all.
    """

    payload_type: ClassVar[type] = Prototypes
    apart = None  # the prototypes are in the state dict

    def __init__(
        self,
        *,
        lam: NotNegative = 1.0,
        predict_by: Literal["head", "prototype"] = "prototype",
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        require_all_personal(self, arguments)
        self.lam, self.predict_by = lam, predict_by

    def receive(self, payload: Any, memory: Any) -> None:
        """Take the common prototypes; the network is the client's own."""
        self.take(payload)

    def loss(self, batch: Batch) -> Tensor:
        """``F_k(w) + lambda * mean of 1/d ||z - P[y]||^2``."""
        inputs, labels = batch
        z, logits = self.network.representation_and_logits(self.laid_out(inputs))
        return self.cross_entropy(logits, labels) + self.lam * pull(z, labels, self.prototypes, self.known)

    def predict(self, inputs: Tensor) -> Tensor:
        """Logits (B, num_classes): the head's, or minus the distances to the prototypes."""
        if self.predict_by == "head" or not bool(self.known.any()):
            return self(inputs)
        return nearness(self.network.representation(self.laid_out(inputs)), self.prototypes, self.known)
