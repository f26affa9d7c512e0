"""The weighted mean of grouped tensors: every group over its own contributors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedfeat.models.group_rows import Rows
from fedfeat.params import sum_dtype

if TYPE_CHECKING:
    from fedfeat.types import Params


class PairedMean:
    """Average each group over those who contribute to it, in constant memory.

    As in `params.WeightedMean`, weights are relative to the group's first one, so that one contributor's rows come back
    bit for bit, and with equal contributors everywhere the result is that of `params.WeightedMean` bit for bit.

    Args:
        group_of_row: For each grouped tensor, the group of each entry of its first dimension.
        num_groups: G.
    """

    def __init__(self, group_of_row: Mapping[str, Tensor], num_groups: int) -> None:
        self._groups = group_of_row
        self._sums: Params = {}
        self._first = [0.0] * num_groups
        self._totals = [0.0] * num_groups

    def add(self, params: Params, weights: Sequence[float], rows: Rows | None) -> None:
        """Add one update.

        Args:
            params: The grouped tensors of the client.
            weights: Its weight for each group of the whole; 0 where it does not contribute.
            rows: See `rows_of`.
        """
        if not self._groups or not any(weights):
            return
        if not self._sums:
            self._sums = {key: self._nothing(key, params[key]) for key in self._groups}
        self._first = [old or weight for old, weight in zip(self._first, weights, strict=True)]
        alphas = [w / first if first else 0.0 for w, first in zip(weights, self._first, strict=True)]
        self._totals = [total + alpha for total, alpha in zip(self._totals, alphas, strict=True)]
        if rows is None and len(set(alphas)) == 1:
            own = [params[key].detach() for key in self._sums]
            torch._foreach_add_(list(self._sums.values()), own, alpha=alphas[0])
            return
        for key, total in self._sums.items():
            self._add_rows(key, total, params[key].detach(), alphas, rows)

    def _add_rows(self, key: str, total: Tensor, own: Tensor, alphas: list[float], rows: Rows | None) -> None:
        index = torch.arange(len(total)) if rows is None else rows[key]
        factors = torch.tensor(alphas, dtype=total.dtype)[self._groups[key][index]]
        chosen = factors > 0
        shape = (-1, *[1] * (own.dim() - 1))
        total.index_add_(0, index[chosen], own[chosen].to(total.dtype) * factors[chosen].view(shape))

    def result(self, previous: Params) -> Params:
        """Give the means as new tensors; a group without a contributor keeps its previous value."""
        if not self._sums:
            return {key: previous[key] for key in self._groups}
        if len(set(self._totals)) == 1 and self._totals[0]:
            means = torch._foreach_div(list(self._sums.values()), self._totals[0])
            return {k: m.to(previous[k].dtype) for k, m in zip(self._sums, means, strict=True)}
        return {key: self._mean(key, total, previous[key]) for key, total in self._sums.items()}

    def _mean(self, key: str, total: Tensor, previous: Tensor) -> Tensor:
        divisors = torch.tensor(self._totals, dtype=total.dtype)[self._groups[key]]
        shape = (-1, *[1] * (total.dim() - 1))
        mean = total / divisors.clamp_min(torch.finfo(total.dtype).tiny).view(shape)
        return torch.where((divisors > 0).view(shape), mean.to(previous.dtype), previous)

    def _nothing(self, key: str, like: Tensor) -> Tensor:
        shape = (len(self._groups[key]), *like.shape[1:])
        # Minus zero, because with it even a zero keeps its sign.
        return torch.full(shape, -0.0, dtype=sum_dtype(like))
