"""FedHeNN: Makhija et al., "Architecture Agnostic Federated Learning for Neural Networks", ICML 2022, Alg. 1 and 2.

    server: each round t (from 0):  X_t <- m unlabelled inputs, the same for everyone;  eta_t <- eta_0 sqrt(t)
            homogeneous:    send w, X_t;  receive w_k;  w <- sum_k n_k / (sum_j n_j) * w_k
            heterogeneous:  Kbar <- 1/N sum_j K(A_j), A_j the representation of X_t by the network of client j
                            send Kbar, X_t;  receive w_k, which only client k goes on with
    client: homogeneous:    w_k <- w;  Kbar <- K(A), A the representation of X_t by w, fixed
            heterogeneous:  w_k is its own
            minimise  F_k(w_k) + eta_t * (1 - CKA(K(A_k), Kbar)),  A_k the representation of X_t by w_k

Gradients flow through K(A_k) only. Every client keeps its last w_k, which is its personal model. The paper takes the
term over all of X_t at every step; ``rad_batch`` takes it over some of X_t, drawn anew for every step.

A_k is what a dropout in front of the last layer reads: after it, a network in training would be far from the target
that it gives itself (1 - CKA of .9 in sent140_lstm). dishamakhija/FedHeNN compares after it, in its networks for
CIFAR-100.
"""

import math
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from fedfeat.algorithms.fedhenn_client import AlignedWeights
from fedfeat.features.kernels import Kernel, KernelMean, KernelName, KernelNorm, gaussian_kernel
from fedfeat.server import Server
from fedfeat.types import Answer, Federation, Survey, Update

RadSource = Literal["train_pool", "heldout", "test_unlabelled"]
EtaSchedule = Literal["sqrt", "linear", "const", "log"]
ETA_SCHEDULES = {"sqrt": math.sqrt, "linear": float, "const": lambda t: 1.0, "log": math.log1p}
"""Factor of eta_0 in round t, from 0; ``sqrt`` is that of dishamakhija/FedHeNN, without a term in the first round."""


class FedHeNNState(NamedTuple):
    """State of either server.

    Attributes:
        round_idx: The round.
        average: State of the server half that averages; None where nothing is averaged.
        inputs: X_t between survey and aggregation.
        target: Kbar, likewise.
    """

    round_idx: int
    average: Any = None
    inputs: Tensor | None = None
    target: Kernel | None = None


class AlignmentServer(Server):
    """What both servers share: a set of unlabelled inputs per round, and the weight of the term.

    Args:
        rad_size: m, 5,000 in the paper and 1,000 in dishamakhija/FedHeNN.
        rad_source: Where X_t comes from, see `FederatedData.unlabelled`; that code takes ``train_pool``.
        rad_augment: Whether X_t is augmented; in that code it is.
        eta0: Base weight of the term; .01 in that code, the paper's number is not known.
        eta_schedule: See `ETA_SCHEDULES`.
    """

    payload_type: ClassVar[type] = AlignedWeights

    def __init__(
        self,
        rad_size: int = 5000,
        rad_source: RadSource = "train_pool",
        rad_augment: bool = False,
        eta0: float = 0.01,
        eta_schedule: EtaSchedule = "sqrt",
    ) -> None:
        self.eta0, self.eta_schedule = eta0, eta_schedule
        self.rad = Survey(rad_source, rad_size, augment=rad_augment)

    def eta(self, round_idx: int) -> float:
        """Give eta_t."""
        return self.eta0 * ETA_SCHEDULES[self.eta_schedule](round_idx)

    def survey(self, state: FedHeNNState, round_idx: int) -> Survey | None:
        """Share X_t in rounds whose term has a weight."""
        return self.rad if self.eta(round_idx) else None

    def hear(self, state: FedHeNNState, inputs: Tensor, answers: Iterable[Answer]) -> FedHeNNState:
        """Keep X_t for the round."""
        return state._replace(inputs=inputs)


class FedHeNNServer(AlignmentServer):
    """Algorithm 1: clients of one architecture, whose weights another server half averages.

    Args:
        average: The server half that averages.
        arguments: As in `AlignmentServer`.
    """

    def __init__(self, average: Server, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.average = average
        self.accepts_unequal = average.accepts_unequal

    def check(self, model: nn.Module) -> None:
        """Take what the average takes."""
        self.average.check(model)

    def init(self, model: nn.Module, federation: Federation) -> FedHeNNState:
        """Start from the common initial model."""
        return FedHeNNState(0, self.average.init(model, federation))

    def broadcast(self, state: FedHeNNState, client_id: int) -> AlignedWeights:
        """Send w and X_t."""
        params = self.average.broadcast(state.average, client_id).params
        return AlignedWeights(params, state.inputs, eta=self.eta(state.round_idx))

    def aggregate(self, state: FedHeNNState, updates: Iterable[Update]) -> FedHeNNState:
        """Average the weights and drop X_t."""
        return FedHeNNState(state.round_idx + 1, self.average.aggregate(state.average, updates))

    def global_payload(self, state: FedHeNNState) -> AlignedWeights | None:
        """Give the averaged model."""
        payload = self.average.global_payload(state.average)
        return None if payload is None else AlignedWeights(payload.params)


class FedHeNNHeteroServer(AlignmentServer):
    """Algorithm 2: clients of any architecture, who share nothing but the mean of their kernels.

    A client's upload is its weights, as in the paper, where the server computes K_j with them. Here that happens where
    the client's turns run, on the same weights from its memory, and the server sums the kernels up.

    Args:
        kernel: ``linear`` or ``rbf``; the clients' own.
        sigma_factor: Of rbf.
        kernel_norm: ``none`` (the paper's plain mean), or ``fro``: no client counts more for the scale of its kernel.
        kbar_over: ``all`` clients (Algorithm 2), or the round's ``participants``, as in dishamakhija/FedHeNN.
        arguments: As in `AlignmentServer`.
    """

    accepts_unequal = True

    def __init__(
        self,
        kernel: KernelName = "linear",
        sigma_factor: float = 0.4,
        kernel_norm: KernelNorm = "none",
        kbar_over: Literal["all", "participants"] = "all",
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.kernel, self.sigma_factor, self.kernel_norm = kernel, sigma_factor, kernel_norm
        self.rad = self.rad._replace(answer="all" if kbar_over == "all" else "cohort")

    def init(self, model: nn.Module, federation: Federation) -> FedHeNNState:
        """Start without anything common."""
        return FedHeNNState(0)

    def hear(self, state: FedHeNNState, inputs: Tensor, answers: Iterable[Answer]) -> FedHeNNState:
        """Sum the clients' kernels up as they come."""
        mean = KernelMean(self.kernel_norm)
        for answer in answers:
            mean.add(self._kernel(answer))
        return state._replace(inputs=inputs, target=mean.result())

    def _kernel(self, answer: Answer) -> Kernel:
        if self.kernel == "linear":
            return answer.kernel
        return gaussian_kernel(answer.kernel, self.sigma_factor)

    def broadcast(self, state: FedHeNNState, client_id: int) -> AlignedWeights:
        """Send Kbar and X_t."""
        return AlignedWeights({}, state.inputs, state.target, self.eta(state.round_idx))

    def aggregate(self, state: FedHeNNState, updates: Iterable[Update]) -> FedHeNNState:
        """Let the clients keep what they have, and drop X_t."""
        for _ in updates:
            pass
        return FedHeNNState(state.round_idx + 1)

    def global_payload(self, state: FedHeNNState) -> None:
        """There is no common model."""
