"""FedPAC: Xu et al., "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR 2023.

server: each round: S <- sample clients;  send phi, h_k and P to k in S;  receive phi_k, h_k, P_k, n_k, V_k, H_k
        phi <- mean of phi_k by examples;   P[c] <- mean of P_k[c] by examples of class c
        h_i <- sum_j alpha_ij h_j  for i in S,  alpha_i the minimum over the simplex of
            sum_j alpha_j^2 V_j + sum_c || H_i[c] - sum_j alpha_j H_j[c] ||^2
client: with z what the received phi gives, p_c = n_kc / n_k, mu_c the mean of z over class c:
            V_k <- 1/n_k ( mean of ||z||^2 - sum_c || p_c mu_c ||^2 ),   H_k[c] <- p_c mu_c
        for tau_h epochs:  step on h_k with phi frozen
        for the others:    step on phi_k with h_k frozen:  F_k + lambda * mean over examples of 1/d ||z - P[y]||^2,
                           where mu_y stands for a P[y] that there is not
        P_k[c] <- mean over class c of what phi_k gives;  h is the last layer, z what it reads
"""

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedfeat.algorithms.alternating import AlternatingClient
from fedfeat.algorithms.prototype_clients import CommonPrototypesClient
from fedfeat.algorithms.prototype_servers import over_all_classes, renewed, width_of
from fedfeat.client import Batch
from fedfeat.config.conditions import Count, NotNegative, Positive
from fedfeat.errors import ConfigError
from fedfeat.features.prototypes import Moments, Prototypes, pull
from fedfeat.features.simplex import combining_weights
from fedfeat.models.policy import sent_keys
from fedfeat.models.shapes import dtype_of
from fedfeat.params import WeightedMean, copy_into, select, snapshot
from fedfeat.server import Server, alone
from fedfeat.types import Federation, Tensors, Turn, Update


class Statistics(NamedTuple):
    """What the weights of heads follow from.

    Attributes:
        variance: V_k, ().
        means: H_k of the client's classes, (m, d).
    """

    variance: Tensor
    means: Tensor


class BodyAndHead(NamedTuple):
    """Payload: down phi, h_k and P, up phi_k, h_k, P_k, n_k, V_k and H_k.

    Attributes:
        params: The body's tensors.
        head: The last layer's tensors by their names in the network; none where heads stay with their clients.
        prototypes: P, or P_k of the client's classes.
        counts: Up, how many examples each is the mean of, int64 (m,).
        statistics: Up, where heads are combined.
    """

    params: dict[str, Tensor]
    head: dict[str, Tensor]
    prototypes: Prototypes
    counts: Tensor | None = None
    statistics: Statistics | None = None


def statistics_of(moments: Moments) -> Statistics:
    """Give V_k, and H_k of the classes that there are, float64, of moments with squares (``scatter="diagonal"``)."""
    assert moments.scatters is not None
    total = moments.counts.sum().clamp(min=1)
    shares = moments.counts / total.double()
    within = moments.scatters.sum() / total
    between = (shares * (1 - shares) * moments.means.square().sum(1)).sum()
    means = shares.unsqueeze(1) * moments.means
    return Statistics((within + between) / total, means[moments.counts > 0])


class FedPACClient(CommonPrototypesClient, AlternatingClient):
    """FedRep's client, whose features are pulled towards prototypes and whose head is combined with others'.

    Args:
        head_epochs: tau_h; the epochs after it are the body's.
        lam: lambda, the weight of the pull.
        agg_head: Whether heads are sent and combined; else each stays with its client.
        head_lr: Learning rate of the head's epochs, under the schedule; None: the optimizer's.
        arguments: As in `ClientModule`; ``personal`` is the last layer.
    """

    payload_type: ClassVar[type] = BodyAndHead
    apart = None  # the statistics are in the state dict

    def __init__(
        self,
        *,
        head_epochs: Count = 1,
        lam: NotNegative = 1.0,
        agg_head: bool = True,
        head_lr: Positive | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(head_epochs=head_epochs, **arguments)
        self.lam, self.agg_head, self.head_lr = lam, agg_head, head_lr
        self.passes_before = agg_head or lam > 0
        layer, name = self.network.last_layer, self.network.last_layer_name
        if set(self.personal_keys) != {f"{name}.{key}" for key in layer.state_dict()}:
            rule = "be [last] for FedPAC, whose heads are last layers"
            raise ConfigError.rule("algorithm.client.personal", rule, list(arguments.get("personal", ())))
        self.variance: Tensor
        self.class_shares: Tensor
        self.register_buffer("variance", torch.zeros((), dtype=torch.float64))
        self.register_buffer("class_shares", torch.zeros(self.prototypes.shape, dtype=torch.float64))

    def receive(self, payload: BodyAndHead, memory: None) -> None:
        """Take the body, the prototypes, and the head that was combined for the client, where there is one."""
        copy_into(self.model, payload.params | payload.head)
        self.take(payload.prototypes)

    def begin_turn(self, turn: Turn) -> None:
        """Take the statistics of the received body, and what stands for prototypes that there are not."""
        super().begin_turn(turn)
        if not self.passes_before:
            return
        self.to(turn.device).eval()
        with torch.no_grad():
            moments = self.own_moments(turn, self.network, "diagonal")
        self.train()
        found = statistics_of(moments)
        self.variance.copy_(found.variance)
        self.class_shares.zero_()[moments.counts > 0] = found.means.to(self.class_shares)
        if bool(self.known.any()):
            own = (moments.counts > 0) & ~self.known
            self.prototypes[own] = moments.means[own].to(self.prototypes)
            self.known |= own

    def begin_phase(self, phase: int, optimizer: Optimizer) -> None:
        """Turn to head or body, each with its learning rate."""
        super().begin_phase(phase, optimizer)
        if self.head_lr is not None:
            lr = self.head_lr * self.lr / self.base_lr if self.trains_head else self.lr
            for group in optimizer.param_groups:
                group["lr"] = lr

    def loss(self, batch: Batch) -> Tensor:
        """``F_k``, and in the body's epochs ``lambda * mean of 1/d ||z - P[y]||^2``."""
        if self.trains_head:
            return super().loss(batch)
        inputs, labels = batch
        z, logits = self.network.representation_and_logits(self.laid_out(inputs))
        return self.cross_entropy(logits, labels) + self.lam * pull(z, labels, self.prototypes, self.known)

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[BodyAndHead, None]:
        """Give the body and P_k, and head and statistics where heads are combined and there is an example."""
        found, moments = self.own_prototypes(turn)
        body, counts = select(tensors["model"], self.shared_keys), moments.counts.cpu()[found.classes]
        if not self.agg_head or not len(counts):
            return BodyAndHead(body, {}, found, counts), None
        own = Statistics(self.variance.clone(), self.class_shares[found.classes])
        statistics = Statistics(*(tensor.to("cpu", dtype_of(self.model)) for tensor in own))
        head = select(tensors["model"], self.personal_keys)
        return BodyAndHead(body, head, found, counts, statistics), None

    def turn_metrics(self) -> dict[str, float]:
        """As of both halves, with the pass before the fit."""
        metrics = super().turn_metrics()
        if self.passes_before:
            metrics["flops"] += self._num_passed * self.forward_flops_per_example
        return metrics


class FedPACState(NamedTuple):
    """State of the server.

    Attributes:
        params: phi.
        prototypes: P, (C, d).
        known: Classes that have one, bool (C,).
        heads: h_k of the clients that have taken part, where heads are combined.
    """

    params: dict[str, Tensor]
    prototypes: Tensor
    known: Tensor
    heads: dict[int, dict[str, Tensor]]


def combined(updates: list[Update], num_classes: int) -> dict[int, dict[str, Tensor]]:
    """Give each client's combination of the heads of all that sent one."""
    payloads = {update.client_id: update.payload for update in updates if update.payload.head}
    if not payloads:
        return {}
    variances = torch.stack([payload.statistics.variance.double() for payload in payloads.values()])
    vectors = torch.stack([
        over_all_classes(p.prototypes.classes, p.statistics.means, p.counts, num_classes).means.flatten()
        for p in payloads.values()
    ])  # fmt: skip
    heads = {}
    for client_id, row in zip(payloads, combining_weights(variances.numpy(), vectors.numpy()), strict=True):
        mean = WeightedMean()
        for payload, weight in zip(payloads.values(), row.tolist(), strict=True):
            mean.add(payload.head, weight)
        heads[client_id] = mean.result()
    return heads


class FedPACServer(Server):
    """Average bodies and prototypes, and combine heads for each client.

    Args:
        keep_absent: Whether a class that nobody of a cohort has keeps its last prototype.
    """

    payload_type: ClassVar[type] = BodyAndHead

    def __init__(self, keep_absent: bool = True) -> None:
        self.keep_absent = keep_absent

    def init(self, model: nn.Module, federation: Federation) -> FedPACState:
        """Start from the common initial body, without a prototype; heads are the common initial one."""
        num_classes = federation.class_counts.shape[1]
        nothing = torch.zeros(num_classes, width_of(model, federation), dtype=dtype_of(model))
        known = torch.zeros(num_classes, dtype=torch.bool)
        return FedPACState(snapshot(model, sent_keys(federation.policies)), nothing, known, {})

    def broadcast(self, state: FedPACState, client_id: int) -> BodyAndHead:
        """Send the body, the client's head and the prototypes that there are."""
        classes = state.known.nonzero().flatten()
        prototypes = Prototypes(classes, state.prototypes[classes])
        return BodyAndHead(state.params, state.heads.get(client_id, {}), prototypes)

    def aggregate(self, state: FedPACState, updates: Iterable[Update]) -> FedPACState:
        """Average and combine; a round without an update changes nothing."""
        mean, parts, sent, num_classes = WeightedMean(), [], [], len(state.known)
        for update in updates:
            payload = update.payload
            mean.add(payload.params, update.num_examples)
            classes, means = payload.prototypes
            parts.append(over_all_classes(classes, means, payload.counts, num_classes))
            sent.append(update._replace(payload=alone(payload._replace(params={}))))
        if mean.is_empty:
            return state
        prototypes, known = renewed(state.prototypes, state.known, parts, self.keep_absent)
        return FedPACState(mean.result(), prototypes, known, state.heads | combined(sent, num_classes))

    def global_payload(self, state: FedPACState) -> None:
        """There is no common model, for heads are the clients' own."""

    def newcomer_payload(self, state: FedPACState) -> BodyAndHead:
        """Give the body and the prototypes; a client starts with the common initial head."""
        return self.broadcast(state, -1)
