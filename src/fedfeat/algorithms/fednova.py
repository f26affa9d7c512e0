"""FedNova: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", 2020.

    server: x <- initial model;  each round: S <- sample clients
            for k in S:  send x;  receive y_k, ||a_k||_1, tau_k
            d_k <- (x - y_k) / (lr * ||a_k||_1);  p_k <- n_k / (sum over S of n_j)
            x <- x - lr * tau_eff * sum over S of p_k d_k,  tau_eff = sum over S of p_k tau_k
    client: any steps with  x - y_k = lr * sum of a_k's entries times gradients;  return y_k, ||a_k||_1, tau_k

tau_k is ||a_k||_1, but with a proximal term what that would be without it, so for SGD the number of steps. The learning
rate of a round cancels out. A client that has made no step is left out. The averaging is any weighted mean, for
example Fed2's paired one: then p_k and tau_eff are those of a group's contributors.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fedfeat.algorithms.around_mean import AroundMean, by_row, full_zeros, shares, summed
from fedfeat.algorithms.effective_steps import check_solver, effective_steps, proximal_weight, solver_of
from fedfeat.client import ClientModule
from fedfeat.params import full, select
from fedfeat.types import Federation, Setting, Tensors, Turn, Update, Weights


class Normalised(NamedTuple):
    """Payload: down x alone.

    Attributes:
        params: Down x, up y_k.
        norm: Up ||a_k||_1, float64 ().
        reach: Up tau_k, float64 ().
    """

    params: dict[str, Tensor]
    norm: Tensor | None = None
    reach: Tensor | None = None


class FedNovaClient(ClientModule):
    """FedAvg's client, which says how far its steps carry.

    Args:
        arguments: As in `ClientModule`.
    """

    payload_type: ClassVar[type] = Normalised

    def check(self, setting: Setting) -> None:
        """Refuse steps that are no known sums of gradients."""
        super().check(setting)
        check_solver(self, setting)

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[Normalised, None]:
        """Give y_k, ||a_k||_1 and tau_k."""
        made = solver_of(self), turn.num_steps, turn.lr
        norm, reach = (
            torch.tensor(effective_steps(*made, mu), dtype=torch.float64)
            for mu in (proximal_weight(self), 0.0)
        )
        return Normalised(select(tensors["model"], self.shared_keys), norm, reach), None


class FedNovaState(NamedTuple):
    """State of the server.

    Attributes:
        average: State of the server half that averages: x.
        trained: Names of what is trained; the rest, running statistics, is averaged.
    """

    average: Any
    trained: tuple[str, ...]


class FedNovaServer(AroundMean):
    """Average the directions of updates, and go as far along the mean as the clients have gone.

    Args:
        average: The server half that averages.
    """

    payload_type: ClassVar[type] = Normalised

    def init(self, model: nn.Module, federation: Federation) -> FedNovaState:
        """Start from the common initial model."""
        average = self.average.init(model, federation)
        return FedNovaState(average, tuple(self.trained_keys(model, average)))

    def payload(self, state: FedNovaState, weights: Weights, client_id: int | None = None) -> Normalised:
        """Give x."""
        return Normalised(weights.params)

    def aggregate(self, state: FedNovaState, updates: Iterable[Update]) -> FedNovaState:
        """Step; a round without a step of any client changes nothing."""
        x = self.average.params(state.average)
        still = full_zeros(x, state.trained)
        noted: list[tuple[dict[str, Tensor], Tensor]] = []
        directions = self._directions(state, updates, noted)
        mean = self.average.params(
            self.average.aggregate(self.average.with_params(state.average, x | still), directions)
        )
        if not noted:
            return state
        reaches = summed({key: weight * reach for key, weight in own.items()} for own, reach in noted)
        tau = shares(reaches, summed(own for own, _ in noted))
        moved = {
            key: (full(x[key]) + by_row(tau[key], mean[key]) * mean[key]).to(x[key].dtype)
            for key in state.trained
        }
        return state._replace(average=self.average.with_params(state.average, mean | moved))

    def _directions(
        self, state: FedNovaState, updates: Iterable[Update], noted: list[tuple[dict[str, Tensor], Tensor]]
    ) -> Iterator[Update]:
        """Pass updates on with ``-lr * d_k`` in the place of what is trained; note what they weigh, and tau_k."""
        for update in updates:
            y, norm, reach = update.payload
            if not norm:
                continue
            x = self.average.broadcast(state.average, update.client_id).params
            own = self.weights(state.average, update.client_id, update.num_examples)
            noted.append((select(own, state.trained), reach))
            # In half precision a small move, divided by the steps of a long fit, would be nothing.
            moves = {key: full(y[key]) - full(x[key]) for key in state.trained}
            directions = {key: move / norm.to(move.dtype) for key, move in moves.items()}
            yield update._replace(payload=Weights(y | directions))
