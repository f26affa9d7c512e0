"""FedTGP: Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced ...", AAAI 2024.

    server: each round: S <- sample clients;  send P = F(e);  receive the P_k, with plain class means Q
            (Eqs. 9-11)  delta <- min(largest distance of two Q, tau)
            for S epochs over all pairs (P_k[c], c):  step on the cross-entropy of
                -distance(P_k[c], P[c']) over c', where that to P[c] is delta larger
    client: w_k is its own;  minimise  F_k(w_k) + lambda * mean over examples of 1/d ||z - P[y]||^2
            P_k[c] <- mean of z over its examples of class c

F is an embedding of the classes, a layer with ReLU and a layer. Its client half pulls as FedProto's does.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfeat.algorithms.prototype_clients import PulledClient
from fedfeat.algorithms.prototype_servers import descend, stacked, width_of
from fedfeat.config.conditions import Count, Natural, NotNegative, Positive
from fedfeat.features.prototypes import Prototypes, class_moments, distances_between, prototypes_of
from fedfeat.models.frozen import FrozenCopy
from fedfeat.models.network import Network
from fedfeat.models.shapes import dtype_of
from fedfeat.params import copy_into, full, snapshot
from fedfeat.seeding import derive_seed
from fedfeat.server import Server
from fedfeat.types import Federation, Tensors, Turn, Update

Margin = Literal["all_pairs", "nearest"]


class FedTGPClient(PulledClient):
    """Clients with models of their own, pulled towards the server's trained prototypes.

    Args:
        lam: lambda.
        proto_from: The network whose prototypes are sent: ``after`` the turn (the paper) or ``before`` it, as in
            TsingZ0/FedTGP.
        arguments: As in `PulledClient`.
    """

    payload_type: ClassVar[type] = Prototypes
    apart = None  # the network before the turn is in the state dict

    def __init__(
        self, *, lam: NotNegative = 10.0, proto_from: Literal["after", "before"] = "after", **arguments: Any
    ) -> None:
        super().__init__(lam=lam, **arguments)
        self.start = FrozenCopy(self.model) if proto_from == "before" else None

    def receive(self, payload: Any, memory: Any) -> None:
        """Take the prototypes, and note the network where it is needed."""
        super().receive(payload, memory)
        if self.start is not None:
            self.start.fill(self.model)

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[Prototypes, None]:
        """Give P_k of the classes that the client has."""
        network = self.model if self.start is None else self.start.network
        assert isinstance(network, Network)
        return prototypes_of(self.own_moments(turn, network), dtype_of(self.model)), None


class TrainablePrototypes(nn.Module):
    """F: from an embedding of each class to its prototype.

    Args:
        num_classes: C.
        width: d, of embeddings, the hidden layer and prototypes.
    """

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, width)
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self) -> Tensor:
        """Give all prototypes, (C, d)."""
        return self.out(self.hidden(self.embedding.weight).relu())


def margin_of(centres: Tensor, reading: Margin, tau: float) -> float:
    """Give delta of class centres Q (m, d); 0 for fewer than two.

    Args:
        centres: Q of the classes that there are.
        reading: ``all_pairs``: the largest distance of two (Eq. 9); ``nearest``: the largest distance of one to the
            one nearest to it, as in TsingZ0/FedTGP.
        tau: What it is at most.
    """
    if len(centres) < 2:
        return 0.0
    found = distances_between(centres, centres)
    if reading == "nearest":
        found = found.fill_diagonal_(torch.inf).amin(1)
    return min(float(found.max()), tau)


def contrast(means: Tensor, classes: Tensor, prototypes: Tensor, delta: float) -> Tensor:
    """Give the mean of the server's loss over clients' prototypes.

    Args:
        means: P_k[c], (B, d).
        classes: c, (B,).
        prototypes: P, (C, d).
        delta: The margin.
    """
    distances = distances_between(means, prototypes)
    own = functional.one_hot(classes, len(prototypes)).to(distances)
    return functional.cross_entropy(-(distances + delta * own), classes)


class FedTGPState(NamedTuple):
    """State of the server.

    Attributes:
        seed: The experiment's seed.
        round_idx: The round.
        params: The tensors of F.
        prototypes: P = F(e), (C, d); of no class before a client has sent anything.
    """

    seed: int
    round_idx: int
    params: dict[str, Tensor]
    prototypes: Tensor


class FedTGPServer(Server):
    """Train prototypes that are far apart.

    Args:
        epochs: S.
        lr: Learning rate of F, whose SGD is fresh in every round.
        batch_size: Pairs in a step.
        margin: delta, see `margin_of`.
        tau: What delta is at most; 0 is a plain softmax over minus the distances.
    """

    payload_type: ClassVar[type] = Prototypes
    accepts_unequal = True
    needs_common_width = True

    def __init__(
        self,
        epochs: Natural = 100,
        lr: Positive = 0.01,
        batch_size: Count = 10,
        margin: Margin = "all_pairs",
        tau: NotNegative = 100.0,
    ) -> None:
        self.epochs, self.lr, self.batch_size = epochs, lr, batch_size
        self.margin: Margin = margin
        self.tau = tau

    def init(self, model: nn.Module, federation: Federation) -> FedTGPState:
        """Draw F."""
        num_classes, width = federation.class_counts.shape[1], width_of(model, federation)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(federation.seed, "trainable prototypes"))
            # Distances of half-precision numbers are not implemented, and SGD in it would stand still.
            net = TrainablePrototypes(num_classes, width).to(full(torch.zeros(0, dtype=dtype_of(model))))
        nothing = torch.zeros(0, width, dtype=dtype_of(net))
        return FedTGPState(federation.seed, 0, snapshot(net), nothing)

    def broadcast(self, state: FedTGPState, client_id: int) -> Prototypes:
        """Send P, of all classes."""
        return Prototypes(torch.arange(len(state.prototypes)), state.prototypes)

    def aggregate(self, state: FedTGPState, updates: Iterable[Update]) -> FedTGPState:
        """Train F; a round without a prototype changes nothing but its number."""
        pairs = stacked(update.payload for update in updates)
        state = state._replace(round_idx=state.round_idx + 1)
        if pairs is None:
            return state
        num_classes, width = state.params["embedding.weight"].shape
        net = TrainablePrototypes(num_classes, width).to(self.site.device, state.prototypes.dtype)
        copy_into(net, state.params)
        pairs = Prototypes(pairs.classes.to(self.site.device), pairs.means.to(net.out.weight))
        counts, centres, _ = class_moments(pairs.means, pairs.classes, num_classes)
        delta = margin_of(centres[counts > 0], self.margin, self.tau)
        descend(
            net,
            lambda means, classes: contrast(means, classes, net(), delta),
            pairs,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            address=(state.seed, state.round_idx),
        )
        self._spend(len(pairs.classes), num_classes, width)
        with torch.no_grad():
            return state._replace(params=snapshot(net), prototypes=net().cpu())

    def _spend(self, num_pairs: int, num_classes: int, width: int) -> None:
        """Count the passes of F, of two layers, and the distances, both forward and, as twice that, backward."""
        num_steps = self.epochs * -(-num_pairs // self.batch_size)
        distances = self.epochs * num_pairs * num_classes * width
        self.site.spend(3.0 * 2 * (num_steps * num_classes * 2 * width**2 + distances))

    def global_payload(self, state: FedTGPState) -> None:
        """There is no common model."""

    def newcomer_payload(self, state: FedTGPState) -> Prototypes:
        """Give the prototypes; a client starts from its own initial model."""
        return self.broadcast(state, 0)
