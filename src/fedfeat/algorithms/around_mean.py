"""A server half around a weighted mean, which sums more of the clients by the weights that they have in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedfeat.errors import ConfigError
from fedfeat.params import full, trained_names, zeros_of
from fedfeat.server import Around, AveragingServer

if TYPE_CHECKING:
    from fedfeat.types import Federation, Params


class AroundMean(Around):
    """A server half around one whose average is a weighted mean of the numbers at each place.

    What clients weigh may differ from tensor to tensor and, with Fed2's groups, from row to row.

    Args:
        average: The server half that averages.

    Raises:
        ConfigError: Its average is no such mean.
    """

    def __init__(self, average: AveragingServer) -> None:
        super().__init__(average)
        if type(average).weights is AveragingServer.weights:
            rule = "be a server half that says what clients weigh in its mean (AveragingServer.weights)"
            raise ConfigError.rule("algorithm.server.average", rule, type(average).__name__)

    def trained_keys(self, model: nn.Module, state: Any) -> list[str]:
        """Name what is averaged and trained, so no running statistics; ``state`` is the average's."""
        return trained_names(model, self.average.params(state))

    def weights(self, state: Any, client_id: int, num_examples: int) -> Params:
        """Give what a client weighs, see `AveragingServer.weights`."""
        found = self.average.weights(state, client_id, num_examples)
        assert found is not None
        return found

    def total_weights(self, state: Any, federation: Federation) -> Params:
        """Add up what all clients weigh that can take part."""
        every = enumerate(federation.num_examples.tolist())
        able = ((client_id, count) for client_id, count in every if client_id not in federation.excluded)
        return summed(self.weights(state, client_id, count) for client_id, count in able)


def summed(weights: Iterable[Params]) -> Params:
    """Add up weights by tensor; nothing for none."""
    total: Params = {}
    for found in weights:
        total = {key: total[key] + weight for key, weight in found.items()} if total else dict(found)
    return total


def shares(weights: Params, totals: Params) -> Params:
    """Divide weights by totals; 0 where nobody weighs anything."""
    return {key: torch.where(totals[key] > 0, w / totals[key], 0.0) for key, w in weights.items()}


def full_zeros(params: Params, keys: Iterable[str] | None = None) -> Params:
    """Give zeros as `zeros_of` does, of half precision in float32, for what is summed."""
    return {key: full(zeros) for key, zeros in zeros_of(params, keys).items()}


def by_row(numbers: Tensor, like: Tensor) -> Tensor:
    """Give a number, or one for each row, in the type and with the dimensions of a tensor."""
    numbers = numbers.to(like.dtype)
    return numbers.view(-1, *[1] * (like.dim() - 1)) if numbers.dim() else numbers


def add_rows(whole: Params, part: Params, factors: Params, rows: Params | None) -> None:
    """Add a client's tensors to the whole ones, in place.

    Args:
        whole: What is added to.
        part: The client's.
        factors: What they are multiplied by, of the whole: () or (n,) for each tensor.
        rows: Where the client's rows stand, see `AveragingServer.rows`.
    """
    for key, tensor in ((key, tensor.to(whole[key].dtype)) for key, tensor in part.items()):
        if rows is None or key not in rows:
            whole[key].addcmul_(tensor, by_row(factors[key], tensor))
        else:
            whole[key].index_add_(0, rows[key], tensor * by_row(factors[key][rows[key]], tensor))
