"""FD: Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation ...", 2018, Alg. 1.

    server: each round: S <- sample clients;  receive F_k[c]
            send to k, for each class c:  G_k[c] <- mean of F_j[c] over the clients j != k that have class c
    client: w_k is its own;  p the softmax of its logits;  minimise  F_k(w_k) + lambda * mean over examples of KL(G_k[y] || p)
            F_k[c] <- mean of p over its examples of class c

Only vectors of C numbers cross the wire, so clients may run any networks.
"""  # noqa: E501

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfeat.algorithms.prototype_clients import ClassMeansClient, require_all_personal
from fedfeat.client import Batch
from fedfeat.config.conditions import NotNegative
from fedfeat.features.prototypes import mean_over_known, prototypes_of, pull
from fedfeat.models.grouped import refuse_groups
from fedfeat.models.shapes import dtype_of
from fedfeat.params import full
from fedfeat.server import Server, alone
from fedfeat.types import Federation, Tensors, Turn, Update


class ClassOutputs(NamedTuple):
    """Payload: down G_k, up F_k.

    Attributes:
        classes: The classes, int64 (m,).
        means: Mean outputs on examples of each, (m, C).
    """

    classes: Tensor
    means: Tensor


class FDClient(ClassMeansClient):
    """Clients with models of their own, whose outputs on a class are drawn to those of others.

    Args:
        lam: lambda, the weight of the distillation.
        outputs: What is averaged and compared: ``probabilities`` by KL(G || p), or ``logits`` by 1/C times the squared
            distance.
        arguments: As in `ClientModule`; ``personal`` is all.
    """

    payload_type: ClassVar[type] = ClassOutputs
    apart = None  # what was received is in the state dict

    def __init__(
        self,
        *,
        lam: NotNegative = 1.0,
        outputs: Literal["probabilities", "logits"] = "probabilities",
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        require_all_personal(self, arguments)
        refuse_groups(self.model, "for FD, whose vectors have a number for every class")
        self.lam, self.outputs = lam, outputs
        num_classes = self.network.num_classes
        self.targets: Tensor
        self.known: Tensor
        self.register_buffer("targets", torch.zeros(num_classes, num_classes))
        self.register_buffer("known", torch.zeros(num_classes, dtype=torch.bool))

    def receive(self, payload: ClassOutputs, memory: None) -> None:
        """Take the others' outputs; the network is the client's own."""
        classes = payload.classes.to(self.known.device)
        self.known.zero_()[classes] = True
        self.targets.zero_()[classes] = payload.means.to(self.targets)

    def loss(self, batch: Batch) -> Tensor:
        """``F_k(w)`` and lambda times the distillation, 0 for examples of classes of which nothing was received."""
        inputs, labels = batch
        logits = self(inputs)
        if self.outputs == "logits":
            distillation = pull(logits, labels, self.targets, self.known)
        else:
            distillation = divergence(logits, labels, self.targets, self.known)
        return self.cross_entropy(logits, labels) + self.lam * distillation

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[ClassOutputs, None]:
        """Give F_k of the classes that the client has."""
        found = self.class_means(turn, self if self.outputs == "logits" else self._probabilities)
        return ClassOutputs(*prototypes_of(found, dtype_of(self.model))), None

    def _probabilities(self, inputs: Tensor) -> Tensor:
        return full(self(inputs)).softmax(1)


def divergence(logits: Tensor, labels: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """Give the mean over a batch of ``KL(G[y] || softmax(logits))``; examples of classes without a target add 0.

    Args:
        logits: (B, C).
        labels: y, (B,); a negative one is of no example.
        targets: G, (C, C).
        known: Which of them there are, bool (C,).
    """
    of_class = targets[labels.clamp(min=0)]
    values = functional.kl_div(full(logits).log_softmax(1), of_class, reduction="none").sum(1)
    return mean_over_known(values, labels, known)


class FDState(NamedTuple):
    """State of the server.

    Attributes:
        outputs: F_k of all clients, (K, C, C); 0 where there is none.
        known: Which of them there are, bool (K, C).
        totals: Their sums over the clients, float64 (C, C).
    """

    outputs: Tensor
    known: Tensor
    totals: Tensor


class FDServer(Server):
    """Average the clients' outputs class by class, each client counting one.

    Args:
        leave_one_out: Whether a client's own outputs are left out of what it receives.
        keep_absent: Whether clients that are not in a cohort count by what they have sent last.
    """

    payload_type: ClassVar[type] = ClassOutputs
    accepts_unequal = True

    def __init__(self, leave_one_out: bool = True, keep_absent: bool = True) -> None:
        self.leave_one_out, self.keep_absent = leave_one_out, keep_absent

    def init(self, model: nn.Module, federation: Federation) -> FDState:
        """Start without outputs."""
        num_clients, num_classes = federation.class_counts.shape
        outputs = torch.zeros(num_clients, num_classes, num_classes, dtype=dtype_of(model))
        known = torch.zeros(num_clients, num_classes, dtype=torch.bool)
        return FDState(outputs, known, outputs.sum(0, dtype=torch.float64))

    def broadcast(self, state: FDState, client_id: int) -> ClassOutputs:
        """Send the client the means of the others."""
        own = state.known[client_id]
        counts, totals = state.known.sum(0), state.totals
        if self.leave_one_out:
            counts, totals = counts - own.long(), totals - state.outputs[client_id]
        return _means(totals, counts, state.outputs.dtype)

    def aggregate(self, state: FDState, updates: Iterable[Update]) -> FDState:
        """Take the outputs of the cohort; a round without an update changes nothing."""
        found = {update.client_id: alone(update.payload) for update in updates}
        if not found:
            return state
        kept = self.keep_absent
        outputs = state.outputs.clone() if kept else torch.zeros_like(state.outputs)
        known = state.known.clone() if kept else torch.zeros_like(state.known)
        for client_id, payload in found.items():
            known[client_id, payload.classes] = True
            outputs[client_id, payload.classes] = payload.means.to(outputs)
        return FDState(outputs, known, outputs.sum(0, dtype=torch.float64))

    def global_payload(self, state: FDState) -> None:
        """There is no common model."""

    def newcomer_payload(self, state: FDState) -> ClassOutputs:
        """Give the means of all clients; a client starts from its own initial model."""
        return _means(state.totals, state.known.sum(0), state.outputs.dtype)


def _means(totals: Tensor, counts: Tensor, dtype: torch.dtype) -> ClassOutputs:
    classes = counts.nonzero().flatten()
    return ClassOutputs(classes, (totals[classes] / counts[classes].unsqueeze(1)).to(dtype))
