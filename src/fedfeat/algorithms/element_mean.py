"""The weighted mean of tensors of which clients hold unequal parts: every number over those who hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedfeat.params import sum_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fedfeat.models.widths import Places
    from fedfeat.types import Params


class ElementMean:
    """Average each number over those who hold it, in constant memory; one that nobody holds keeps its value.

    As in `params.WeightedMean`, weights are relative to the first one, integers take the maximum, and where everyone
    holds everything the result is that of `params.WeightedMean` bit for bit.

    Args:
        previous: The whole tensors, as they were.
    """

    def __init__(self, previous: Params) -> None:
        self._previous = previous
        # Minus zero, because with it even a zero keeps its sign.
        self._sums = {
            key: torch.full_like(old, -0.0, dtype=sum_dtype(old))
            for key, old in previous.items()
            if old.is_floating_point()
        }
        self._totals = {key: torch.zeros_like(old, dtype=torch.float64) for key, old in previous.items()}
        self._counters = {key: old for key, old in previous.items() if key not in self._sums}
        self._first_weight = 0.0

    def add(self, params: Params, places: Places, weight: float) -> None:
        """Add one update.

        Args:
            params: The client's tensors.
            places: Where their entries stand in the whole ones; those without places are whole.
            weight: The client's weight; an update of weight 0 changes nothing.
        """
        if weight == 0:
            return
        is_first = not self._first_weight
        self._first_weight = self._first_weight or weight
        share = weight / self._first_weight
        for key, own in params.items():
            if key in self._counters:
                self._counters[key] = own if is_first else torch.maximum(self._counters[key], own)
            elif key not in places:
                self._sums[key].add_(own, alpha=share)
                self._totals[key].add_(share)
            else:
                at = _grid(places[key], own)
                self._sums[key][at] += own.to(self._sums[key].dtype) * share
                self._totals[key][at] += share

    def result(self) -> Params:
        """Give the means as new tensors."""
        return {key: self._mean(key, old) for key, old in self._previous.items()}

    def _mean(self, key: str, old: Tensor) -> Tensor:
        if key in self._counters:
            return self._counters[key].clone()
        total, weights = self._sums[key], self._totals[key]
        least, most = (float(end) for end in weights.aminmax())
        if least == most:
            return (total / least).to(old.dtype) if least else old
        mean = total / weights.clamp_min(torch.finfo(torch.float32).tiny).to(total.dtype)
        return torch.where(weights > 0, mean.to(old.dtype), old)


def covered(whole: Params, parts: Iterable[Places]) -> Params:
    """Say of every number of whole tensors whether it stands in some part, bool.

    Args:
        whole: The tensors.
        parts: Where the entries of each part stand, as in `ElementMean.add`.
    """
    found = {key: torch.zeros_like(tensor, dtype=torch.bool) for key, tensor in whole.items()}
    for places in parts:
        for key, mask in found.items():
            mask[_grid(places[key], mask) if key in places else ...] = True
    return found


def _grid(index: tuple[Tensor | None, ...], own: Tensor) -> tuple[Tensor, ...]:
    """Give an index of all combinations of the entries along the first dimensions of a client's tensor."""
    along = [torch.arange(own.shape[dim]) if i is None else i for dim, i in enumerate(index)]
    return tuple(i.view(-1, *[1] * (len(along) - 1 - dim)) for dim, i in enumerate(along))
