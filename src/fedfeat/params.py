"""Arithmetic on parameters: dictionaries from names to tensors, as values.

The functions give new tensors and never change their inputs, except `copy_into`, whose purpose it is. Tensors
have any shape ``(*)``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from fedfeat.types import Params

_HALF = (torch.float16, torch.bfloat16)


class Row(dict[str, Tensor]):
    """One model of many: its tensors (*), which are views of stacks (K, *).

    Attributes:
        stack: The stacks, under the same names and perhaps more.
        index: Which of the K it is.
    """

    def __init__(self, tensors: Params, stack: Params, index: int) -> None:
        super().__init__(tensors)
        self.stack, self.index = stack, index


class WeightedMean:
    """The weighted mean of a stream of parameters, in constant memory.

    Updates are summed one by one in the order of the calls, whenever they arrive. Weights are taken relative
    to the first one: the mean of a single update is that update bit for bit (times 1, over 1), equal weights
    give the plain mean, and half-precision sums stay in range. These are made in float32, because with 8 to
    11 bits a sum stops growing after some hundred updates. `Row`s of one stack, one after the other, are summed at
    once. Integer tensors (``num_batches_tracked``) take the
    maximum.
    """

    def __init__(self) -> None:
        self._like: Params = {}
        self._summed: list[str] = []
        self._counted: list[str] = []
        self._sums: list[Tensor] = []
        self._counters: list[Tensor] = []
        self._first_weight = 0.0
        self._total = 0.0
        self._stack: Params = {}
        self._rows: dict[int, float] = {}

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
        if self._total > 0:
            _require_equal_keys(params, self._like)
            _require_equal_shapes(params, self._like)
        if weight == 0:
            return
        if self._total == 0:
            self._start(params, weight)
        elif isinstance(params, Row):
            self._wait(params, weight)
        else:
            self._sum_rows()
            self._go_on(params, weight)
        self._total += weight / self._first_weight

    def _start(self, params: Params, weight: float) -> None:
        # Meta tensors keep shapes and types without keeping the first update alive.
        self._like = {key: tensor.detach().to("meta") for key, tensor in params.items()}
        self._summed = [key for key, tensor in params.items() if _is_averaged(tensor)]
        self._counted = [key for key, tensor in params.items() if not _is_averaged(tensor)]
        self._sums = [params[key].detach().to(sum_dtype(params[key]), copy=True) for key in self._summed]
        self._counters = [params[key].detach().clone() for key in self._counted]
        self._first_weight = weight

    def _go_on(self, params: Params, weight: float) -> None:
        if self._sums:  # foreach operations refuse empty lists
            summed = [params[key].detach() for key in self._summed]
            torch._foreach_add_(self._sums, summed, alpha=weight / self._first_weight)
        counters = [params[key].detach() for key in self._counted]
        self._counters = [torch.maximum(*pair) for pair in zip(self._counters, counters, strict=True)]

    def _wait(self, row: Row, weight: float) -> None:
        if row.stack is not self._stack or row.index in self._rows:
            self._sum_rows()
            self._stack = row.stack
        self._rows[row.index] = weight / self._first_weight

    def _sum_rows(self) -> None:
        """Add the rows that wait, in one product for each tensor; rows of weight 0 or never added stay outside."""
        if not self._rows:
            return
        places = torch.tensor(list(self._rows))
        for key, total in zip(self._summed, self._sums, strict=True):
            chosen = self._stack[key].detach().index_select(0, places.to(total.device)).to(total.dtype)
            weights = torch.tensor(list(self._rows.values()), dtype=total.dtype, device=total.device)
            total += torch.tensordot(weights, chosen, dims=1)
        for at, key in enumerate(self._counted):
            most = self._stack[key].index_select(0, places.to(self._stack[key].device)).amax(0)
            self._counters[at] = torch.maximum(self._counters[at], most)
        self._stack, self._rows = {}, {}

    def result(self) -> Params:
        """Give the mean of what was added so far, as new tensors.

        Raises:
            ValueError: Nothing of positive weight was added.
        """
        if self._total == 0:
            raise ValueError("A weighted mean needs at least one update of positive weight, but it has none.")
        self._sum_rows()
        means = iter(torch._foreach_div(self._sums, self._total) if self._sums else [])
        counters = iter(self._counters)
        return {
            key: next(means).to(like.dtype) if _is_averaged(like) else next(counters).clone()
            for key, like in self._like.items()
        }


def select(params: Params, keys: Iterable[str]) -> Params:
    """Give the named tensors, in the order of the names and not copied.

    Raises:
        ValueError: A name is not there.
    """
    wanted = list(keys)
    _refuse_unknown(wanted, params)
    chosen = {key: params[key] for key in wanted}
    return Row(chosen, params.stack, params.index) if isinstance(params, Row) else chosen


def zeros_of(params: Params, keys: Iterable[str] | None = None) -> Params:
    """Give zeros in the form of tensors, of all or of the named ones.

    Raises:
        ValueError: A name is not there.
    """
    chosen = params if keys is None else select(params, keys)
    return {key: torch.zeros_like(tensor) for key, tensor in chosen.items()}


@torch.no_grad()
def copy_into(module: nn.Module, params: Params) -> None:
    """Write parameters and buffers into a module, keeping its device and memory format.

    Args:
        module: What is changed.
        params: All or some of the entries of its state_dict; the others stay as they are.

    Raises:
        ValueError: A key is not in the module, or its shape differs; nothing has been changed then.
    """
    state = module.state_dict()
    _refuse_unknown(params, state)
    _require_equal_shapes(params, state)
    if params:
        torch._foreach_copy_([state[key] for key in params], list(params.values()))


def snapshot(module: nn.Module, keys: Iterable[str] | None = None) -> Params:
    """Copy entries of a module's state_dict to the CPU.

    Args:
        module: What is read.
        keys: The entries and their order; None takes all.

    Raises:
        ValueError: A key is not in the module.
    """
    state = module.state_dict()
    chosen = state if keys is None else select(state, keys)
    return {key: tensor.detach().to("cpu", copy=True) for key, tensor in chosen.items()}


def trained_names(module: nn.Module, among: Container[str] | None = None) -> list[str]:
    """Name the parameters of a module that train.

    Args:
        module: The module.
        among: Names that count; None: all do.
    """
    named = module.named_parameters()
    return [name for name, own in named if own.requires_grad and (among is None or name in among)]


def standalone(params: Params) -> Params:
    """Bring tensors to the CPU, contiguous and each alone in its memory, as files and budgets need it.

    Tensors that are so already are not copied.
    """
    seen: set[int] = set()
    result = {}
    for key, tensor in params.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage()
        alone = storage.nbytes() == plain.numel() * plain.element_size() and storage.data_ptr() not in seen
        result[key] = plain if alone else plain.clone()
        seen.add(storage.data_ptr())
    return result


def _is_averaged(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def full(tensor: Tensor) -> Tensor:
    """Give a tensor in float32, or in float64 where it is."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def sum_dtype(tensor: Tensor) -> torch.dtype:
    """Give the type in which tensors like this one are summed: float32 for half precision, else its own."""
    return torch.float32 if tensor.dtype in _HALF else tensor.dtype


def _refuse_unknown(keys: Iterable[str], known: Params) -> None:
    unknown = next((key for key in keys if key not in known), None)
    if unknown is not None:
        raise ValueError(f"params must name entries that exist, but there is no {unknown}.")


def _require_equal_keys(left: Params, right: Params) -> None:
    if left.keys() != right.keys():
        key = min(left.keys() ^ right.keys())
        raise ValueError(f"params must have equal keys, but {key} is in only one of the two.")


def _require_equal_shapes(left: Params, right: Params) -> None:
    for key, tensor in left.items():
        if tensor.shape != right[key].shape:
            raise ValueError(
                f"{key} must have the shape {tuple(right[key].shape)}, but it is {tuple(tensor.shape)}."
            )
