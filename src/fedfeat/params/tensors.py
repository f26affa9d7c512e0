"""Functions of parameters: dictionaries from names to tensors, as values.

The functions give new tensors and never change their inputs, except `copy_into`, whose purpose it is. Tensors
have any shape ``(*)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedfeat.params.rows import Row, as_row

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from fedfeat.types import Params

_HALF = (torch.float16, torch.bfloat16)


def select(params: Params, keys: Iterable[str]) -> Params:
    """Give the named tensors, in the order of the names and not copied.

    Raises:
        ValueError: A name is not there.
    """
    wanted = list(keys)
    _refuse_unknown(wanted, params)
    chosen = {key: params[key] for key in wanted}
    if (row := as_row(params)) is not None:
        num_bytes = sum(tensor.nbytes for tensor in chosen.values())
        return Row(chosen.items(), row.stack, row.index, num_bytes)
    return chosen


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
    require_equal_shapes(params, state)
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


def require_equal_keys(left: Params, right: Params) -> None:
    """Refuse parameters whose names differ.

    Raises:
        ValueError: A name is in only one of the two.
    """
    if left.keys() != right.keys():
        key = min(left.keys() ^ right.keys())
        raise ValueError(f"params must have equal keys, but {key} is in only one of the two.")


def require_equal_shapes(left: Params, right: Params) -> None:
    """Refuse parameters whose shapes differ.

    Raises:
        ValueError: A tensor of the first has another shape in the second.
    """
    for key, tensor in left.items():
        if tensor.shape != right[key].shape:
            raise ValueError(
                f"{key} must have the shape {tuple(right[key].shape)}, but it is {tuple(tensor.shape)}."
            )
