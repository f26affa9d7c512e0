"""The weighted mean of a stream of parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedfeat.params.rows import Row, as_row
from fedfeat.params.tensors import require_equal_keys, require_equal_shapes, sum_dtype

if TYPE_CHECKING:
    from fedfeat.types import Params

# Fewer rows are summed one by one, as updates are that are no rows.
_MANY = 16


class WeightedMean:
    """The weighted mean of a stream of parameters, in constant memory.

    Updates are summed one by one in the order of the calls, whenever they arrive; `Row`s of one stack that follow each
    other in one product for each tensor, where the stack is. Weights are taken relative to the first one: the mean of a
    single update is that update bit for bit (times 1, over 1), equal weights give the plain mean, and half-precision
    sums stay in range. These are made in float32, because with 8 to 11 bits a sum stops growing after some hundred
    updates. Integer tensors (``num_batches_tracked``) take the maximum.
    """

    def __init__(self) -> None:
        self._like: Params = {}
        self._averaged: list[str] = []
        self._sums: Params = {}
        self._first_weight = 0.0
        self._total = 0.0
        self._stack: Params = {}
        self._waiting: dict[int, float] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing of positive weight was added."""
        return self._total == 0

    def add(self, params: Params, weight: float) -> None:
        """Add one update.

        Args:
            params: Its tensors; the same keys and shapes every time.
            weight: Its weight; an update of weight 0 changes nothing.

        Raises:
            ValueError: The weight is negative or not finite, or keys or shapes are not the first update's.
        """
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight must be finite and at least 0, but it is {weight!r}.")
        row = as_row(params)
        if self._total > 0:
            require_equal_keys(params, self._like)
            if row is None or row.stack is not self._stack:  # rows of one stack have the same shapes
                require_equal_shapes(params, self._like)
        if weight == 0:
            return
        if self._total == 0:
            # Meta tensors keep shapes and types without keeping the first update alive.
            self._like = {key: tensor.detach().to("meta") for key, tensor in params.items()}
            self._averaged = [key for key, like in self._like.items() if _is_averaged(like)]
            self._first_weight = weight
        share = weight / self._first_weight
        if row is not None:
            self._wait(row, share)
        else:
            self._sum_rows()
            self._sum(params, share)
        self._total += share

    def _wait(self, row: Row, share: float) -> None:
        assert row.stack is not None
        if row.stack is not self._stack or row.index in self._waiting:
            self._sum_rows()
            self._stack = row.stack
        self._waiting[row.index] = share

    def _sum_rows(self) -> None:
        """Add the rows that wait; those of weight 0 or never added stay outside."""
        if len(self._waiting) < _MANY:
            for index, share in self._waiting.items():
                self._sum({key: self._stack[key][index] for key in self._like}, share)
        else:
            self._sum({key: self._product(self._stack[key].detach()) for key in self._like}, 1.0)
        self._stack, self._waiting = {}, {}

    def _product(self, stack: Tensor) -> Tensor:
        """Give the weighted sum of the rows that wait, of a stack (K, *); of integers the maximum."""
        places = sorted(self._waiting)
        if len(places) < len(stack):
            stack = stack.index_select(0, torch.tensor(places, device=stack.device))
        if not _is_averaged(stack):
            return stack.amax(0)
        stack = stack.to(sum_dtype(stack))
        shares = torch.tensor([self._waiting[place] for place in places], dtype=stack.dtype)
        return torch.tensordot(shares.to(stack.device), stack, dims=1)

    def _sum(self, params: Params, share: float) -> None:
        if not self._sums:  # the first of all, whose share is 1, or rows with the first among them
            self._sums = {
                key: params[key].detach().to(sum_dtype(params[key]), copy=True) for key in self._like
            }
            return
        own = {key: params[key].detach() for key in self._like}
        if any(own[key].device != total.device for key, total in self._sums.items()):
            own = {key: tensor.to(self._sums[key].device) for key, tensor in own.items()}
        if self._averaged:  # foreach operations refuse empty lists
            into = [self._sums[key] for key in self._averaged]
            torch._foreach_add_(into, [own[key] for key in self._averaged], alpha=share)
        for key in self._like.keys() - self._averaged:
            self._sums[key] = torch.maximum(self._sums[key], own[key])

    def result(self) -> Params:
        """Give the mean of what was added so far, as new tensors on the CPU.

        Raises:
            ValueError: Nothing of positive weight was added.
        """
        if self._total == 0:
            raise ValueError("A weighted mean needs at least one update of positive weight, but it has none.")
        self._sum_rows()
        sums = [self._sums[key] for key in self._averaged]
        means = dict(zip(self._averaged, torch._foreach_div(sums, self._total) if sums else [], strict=True))
        return {
            key: (means[key].to(like.dtype) if key in means else self._sums[key].clone()).cpu()
            for key, like in self._like.items()
        }


def _is_averaged(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
