"""FedProto: Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022, Alg. 1.

    server: each round: S <- sample clients;  send P to S;  receive P_k, n_k
            P[c] <- sum over the k in S that have class c of n_kc / (sum_j n_jc) * P_k[c]
    client: w_k is its own;  minimise  F_k(w_k) + lambda * mean over examples of 1/d ||z - P[y]||^2
            P_k[c] <- mean of z over its examples of class c

z is what the last layer reads. No weights cross the wire, so clients may run any networks whose last layers read
equally many numbers.
"""

from collections.abc import Iterable
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedfeat.algorithms.prototype_clients import PulledClient
from fedfeat.algorithms.prototype_servers import over_all_classes, renewed, width_of
from fedfeat.features.prototypes import Moments
from fedfeat.models.shapes import dtype_of
from fedfeat.server import Server
from fedfeat.types import Federation, Tensors, Turn, Update


class CountedPrototypes(NamedTuple):
    """Payload: down P, up P_k and n_k.

    Attributes:
        classes: The classes, int64 (m,).
        means: Their prototypes, (m, d).
        counts: Up, how many examples each is the mean of, int64 (m,).
    """

    classes: Tensor
    means: Tensor
    counts: Tensor | None = None


class FedProtoClient(PulledClient):
    """Clients with models of their own, pulled towards the mean of all clients' prototypes.

    Args:
        arguments: As in `PulledClient`.
    """

    payload_type: ClassVar[type] = CountedPrototypes

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[CountedPrototypes, None]:
        """Give P_k and n_k of the classes that the client has."""
        found, moments = self.own_prototypes(turn)
        return CountedPrototypes(*found, moments.counts.cpu()[found.classes]), None


class FedProtoState(NamedTuple):
    """State of the server.

    Attributes:
        prototypes: P, (C, d).
        known: Classes that have one, bool (C,).
    """

    prototypes: Tensor
    known: Tensor


class FedProtoServer(Server):
    """Average the clients' prototypes class by class.

    Args:
        weighting: ``samples`` (the paper): by the examples of the class; or ``uniform``, as in yuetan031/FedProto.
        keep_absent: Whether a class that nobody of a cohort has keeps its last prototype.
    """

    payload_type: ClassVar[type] = CountedPrototypes
    accepts_unequal = True
    needs_common_width = True

    def __init__(
        self, weighting: Literal["samples", "uniform"] = "samples", keep_absent: bool = True
    ) -> None:
        self.weighting, self.keep_absent = weighting, keep_absent

    def init(self, model: nn.Module, federation: Federation) -> FedProtoState:
        """Start without a prototype."""
        num_classes = federation.class_counts.shape[1]
        nothing = torch.zeros(num_classes, width_of(model, federation), dtype=dtype_of(model))
        return FedProtoState(nothing, torch.zeros(num_classes, dtype=torch.bool))

    def broadcast(self, state: FedProtoState, client_id: int) -> CountedPrototypes:
        """Send the prototypes that there are."""
        classes = state.known.nonzero().flatten()
        return CountedPrototypes(classes, state.prototypes[classes])

    def aggregate(self, state: FedProtoState, updates: Iterable[Update]) -> FedProtoState:
        """Average; a round without an update changes nothing."""
        parts = [self._moments(state, update.payload) for update in updates]
        if not parts:
            return state
        return FedProtoState(*renewed(*state, parts, self.keep_absent))

    def _moments(self, state: FedProtoState, payload: CountedPrototypes) -> Moments:
        """Lay a client's prototypes out over all classes, with what each weighs."""
        assert payload.counts is not None
        weights = payload.counts if self.weighting == "samples" else torch.ones_like(payload.counts)
        return over_all_classes(payload.classes, payload.means, weights, len(state.known))

    def global_payload(self, state: FedProtoState) -> None:
        """There is no common model."""

    def newcomer_payload(self, state: FedProtoState) -> CountedPrototypes:
        """Give the prototypes; a client starts from its own initial model."""
        return self.broadcast(state, 0)
