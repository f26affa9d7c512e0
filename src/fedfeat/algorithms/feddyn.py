"""FedDyn: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, Algorithm 1.

    server: theta, h <- initial model, 0;  each round: S <- sample of the N clients
            for k in S:  send theta;  receive theta_k
            h <- h - alpha * sum over S of w_k / (sum over all N of w_j) * (theta_k - theta)
            theta <- (mean over S of theta_k) - h / alpha
    client: g_k comes from its memory, at first 0
            theta_k <- minimise  F_k(y) - <g_k, y> + alpha / 2 * ||y - theta||^2  from theta
            g_k <- g_k - alpha * (theta_k - theta);  keep g_k;  return theta_k

The paper's w_k are 1 and its minimisation is exact, after which g_k is the gradient of F_k at theta_k. With any weights
h is the weighted mean of all g_k. The model of the method is theta; the mean of the participants, of which it is made,
is scored beside it (``global/cohort_mean_acc``). h / alpha does not depend on alpha, so alpha -> 0 is no FedAvg; here
alpha = 0 is, by definition. The averaging is any weighted mean, for example Fed2's paired one.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedfeat.algorithms.around_mean import AroundMean, by_row, full_zeros, shares, summed
from fedfeat.algorithms.fedprox import FedProxClient
from fedfeat.client import Batch, ClientModule
from fedfeat.config.conditions import NotNegative
from fedfeat.errors import UserError
from fedfeat.models.frozen import FrozenCopy
from fedfeat.params import full, select, trained_names, zeros_of
from fedfeat.server import AveragingServer, noting
from fedfeat.types import Federation, Setting, Tensors, Turn, Update, Weights


class Dual(NamedTuple):
    """A client's memory: its g_k, of what is trained and shared."""

    gradient: dict[str, Tensor]


class FedDynClient(ClientModule):
    """FedAvg's client with the dynamic regulariser.

    Args:
        alpha: Weight of the regulariser; 0 is FedAvg.
        arguments: As in `ClientModule`.
    """

    keeps_tensors = True
    apart = None  # theta and g_k are in the state dict, so turns can be stacked

    def __init__(self, *, alpha: NotNegative = 0.01, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.alpha = alpha
        self.received, self.dual = FrozenCopy(self.model), FrozenCopy(self.model)
        self._trained = trained_names(self.model, self.shared_keys)

    def check(self, setting: Setting) -> None:
        """Refuse a second proximal term, of which g_k would know nothing."""
        super().check(setting)
        if isinstance(self, FedProxClient):
            raise UserError(
                f"algorithm/client must have one proximal term for algorithm={setting.algorithm}, but it has FedProx's "
                "beside that of algorithm.client.alpha."
            )

    def begin_turn(self, turn: Turn) -> None:
        """Fix theta and g_k for the turn."""
        super().begin_turn(turn)
        theta = select(turn.payload.params, self._trained)
        self.received.fill(theta)
        self.dual.fill(_gradient_in(turn, theta))

    def loss(self, batch: Batch) -> Tensor:
        """``F_k(y) - <g_k, y> + alpha / 2 * ||y - theta||^2``."""
        if self.alpha == 0.0 or not self._trained:
            return super().loss(batch)
        own = dict(self.model.named_parameters())
        theta, dual = self.received.named_tensors(), self.dual.named_tensors()
        terms = [
            0.5 * self.alpha * (own[name] - theta[name]).square().sum() - (dual[name] * own[name]).sum()
            for name in self._trained
        ]
        return super().loss(batch) + torch.stack(terms).sum()

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[Weights, Dual | None]:
        """Give theta_k, and keep g_k."""
        payload = Weights(select(tensors["model"], self.shared_keys))
        if self.alpha == 0.0:
            return payload, None
        theta = select(turn.payload.params, self._trained)
        before = _gradient_in(turn, theta)
        # As h is, in no half precision: there a sum over rounds stands still.
        moves = {key: full(payload.params[key]) - full(theta[key]) for key in theta}
        return payload, Dual({key: full(before[key]) - self.alpha * move for key, move in moves.items()})


def _gradient_in(turn: Turn, like: dict[str, Tensor]) -> dict[str, Tensor]:
    if turn.memory is not None:
        return turn.memory.gradient
    return zeros_of(like)


class FedDynState(NamedTuple):
    """State of the server.

    Attributes:
        average: State of the server half that averages: the mean of the participants.
        theta: What is trained of theta; running statistics are the average's.
        dual: h, in float32 at least: a sum of many shares in half precision stands still.
        totals: What all N clients weigh in the average, see `AveragingServer.weights`.
    """

    average: Any
    theta: dict[str, Tensor]
    dual: dict[str, Tensor]
    totals: dict[str, Tensor]


class FedDynServer(AroundMean):
    """Average weights, and correct the mean by what the duals have not yet made up for.

    Args:
        average: The server half that averages; what clients weigh in its mean they weigh in h.
        alpha: The clients' own.
    """

    def __init__(self, average: AveragingServer, alpha: NotNegative = 0.01) -> None:
        super().__init__(average)
        self.alpha = alpha

    def init(self, model: nn.Module, federation: Federation) -> FedDynState:
        """Start from the common initial model and zeros."""
        average = self.average.init(model, federation)
        theta = select(self.average.params(average), self.trained_keys(model, average))
        totals = select(self.total_weights(average, federation), theta)
        dual = full_zeros(theta)
        return FedDynState(average, theta, dual, totals)

    def averages(self, state: FedDynState, client_id: int | None = None) -> Any:
        """Give the average's state with theta in the place of the mean."""
        return self.average.with_params(state.average, self.average.params(state.average) | state.theta)

    def aggregate(self, state: FedDynState, updates: Iterable[Update]) -> FedDynState:
        """Average, renew h and correct; a round without an update changes nothing."""
        cohort: list[tuple[int, int]] = []
        average = self.average.aggregate(self.averages(state), noting(updates, cohort))
        if not cohort:
            return state
        mean = select(self.average.params(average), state.theta)
        if self.alpha == 0.0:
            return state._replace(average=average, theta=mean)
        weights = summed(select(self.weights(state.average, *who), state.theta) for who in cohort)
        share = {key: by_row(s, state.dual[key]) for key, s in shares(weights, state.totals).items()}
        dual = {
            key: h - self.alpha * share[key] * (full(mean[key]) - full(state.theta[key]))
            for key, h in state.dual.items()
        }
        # A group that nobody of the cohort holds stays where it is.
        theta = {
            key: torch.where(share[key] > 0, (full(mean[key]) - dual[key] / self.alpha).to(old.dtype), old)
            for key, old in state.theta.items()
        }
        return state._replace(average=average, theta=theta, dual=dual)

    def further_payloads(self, state: FedDynState) -> dict[str, Any]:
        """Give the mean of the participants."""
        payload = self.average.global_payload(state.average)
        return {} if payload is None else {"cohort_mean": payload}
