"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017, Alg. 1.

    server: w <- initial model;  each round: S <- sample clients
            for k in S:  send w;  receive w_k
            w <- sum_k n_k / (sum_j n_j) * w_k
    client: for E epochs over batches b of size B:  w <- w - lr * grad loss(w; b);  return w

With ``personal: [last]`` the last layer stays with the client (FedPer), with ``[norm]`` normalisation does (FedBN).
Two settings of it are the bounds of every comparison: ``local`` keeps everything personal, so that clients learn
alone, and ``centralized`` has a single client that holds all data.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedfeat.models.policy import is_complete, sent_keys
from fedfeat.params import WeightedMean, snapshot
from fedfeat.server import AveragingServer
from fedfeat.types import Federation, Update, Weights


class FedAvgState(NamedTuple):
    """State of the server.

    Attributes:
        params: The shared tensors of the model.
        complete: Whether they are the whole model, so that the server has a model to evaluate.
    """

    params: dict[str, Tensor]
    complete: bool


class FedAvgServer(AveragingServer):
    """Average the clients' weights.

    Args:
        weighting: ``samples`` (the paper) or ``uniform`` (the public code of FedRep and FedHeNN). Equal client sizes
            make them the same.
    """

    def __init__(self, weighting: Literal["samples", "uniform"] = "samples") -> None:
        self.weighting = weighting

    def init(self, model: nn.Module, federation: Federation) -> FedAvgState:
        """Start from the shared tensors of the common initial model."""
        shared = sent_keys(federation.policies)
        return FedAvgState(snapshot(model, shared), complete=is_complete(federation.policies))

    def broadcast(self, state: FedAvgState, client_id: int) -> Weights:
        """Send the same weights to everyone."""
        return Weights(state.params)

    def aggregate(self, state: FedAvgState, updates: Iterable[Update]) -> FedAvgState:
        """Average; a round without an update changes nothing."""
        mean = WeightedMean()
        for update in updates:
            mean.add(update.payload.params, self._weight(update.num_examples))
        return state if mean.is_empty else state._replace(params=mean.result())

    def global_payload(self, state: FedAvgState) -> Weights | None:
        """Give the averaged model where nothing of it is personal."""
        return Weights(state.params) if state.complete else None

    def params(self, state: FedAvgState) -> dict[str, Tensor]:
        """Give the shared tensors."""
        return state.params

    def with_params(self, state: FedAvgState, params: dict[str, Tensor]) -> FedAvgState:
        """Give the state with other shared tensors."""
        return state._replace(params=params)

    def weights(self, state: FedAvgState, client_id: int, num_examples: int) -> dict[str, Tensor]:
        """Give a client's weight, the same for all tensors."""
        return dict.fromkeys(
            state.params, torch.tensor(float(self._weight(num_examples)), dtype=torch.float64)
        )

    def _weight(self, num_examples: int) -> int:
        return num_examples if self.weighting == "samples" else 1
