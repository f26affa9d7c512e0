"""Shapes by dry runs: what a module gives for inputs of a shape, with nothing computed or drawn."""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedfeat.errors import ConfigError
from fedfeat.models.network import Block


def meta_state(module: nn.Module) -> dict[str, Tensor]:
    """Give shapes of all parameters and buffers as tensors without storage (meta device)."""
    return {
        name: torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)
        for name, tensor in chain(module.named_parameters(), module.named_buffers())
    }


def dtype_of(module: nn.Module) -> torch.dtype:
    """Give the type of a module's parameters; float32 where it has none."""
    return next((parameter.dtype for parameter in module.parameters()), torch.float32)


def output_shape(module: nn.Module, input_shape: Sequence[int]) -> tuple[int, ...]:
    """Give the shape of one example after the module, by a dry run that computes and draws nothing.

    Args:
        module: Any module whose layers run on the meta device.
        input_shape: Shape of one example.
    """
    # Two examples, because batch normalisation refuses a single value per channel.
    x = torch.empty((2, *input_shape), dtype=dtype_of(module), device="meta")
    with torch.no_grad():
        return tuple(functional_call(module, meta_state(module), (x,)).shape[1:])


def feature_shape(model: str, encoder: Sequence[Block], input_shape: Sequence[int]) -> tuple[int, ...]:
    """Give the shape of the features of one example, or refuse an input that is too small.

    Args:
        model: The model's name, for the message.
        encoder: The blocks to run.
        input_shape: Shape of one example, (C, H, W).
    """
    module = nn.Sequential(OrderedDict(encoder))
    try:
        return output_shape(module, input_shape)
    except RuntimeError:
        least = _smallest_side(module, input_shape[0])
        raise ConfigError(
            f"model {model} needs inputs of at least {least}x{least} pixels, "
            f"but the data set gives {tuple(input_shape)}."
        ) from None


def _smallest_side(module: nn.Module, channels: int) -> int:
    """Give the side of the smallest square that passes through the module (a larger one passes too)."""

    def passes(side: int) -> bool:
        try:
            output_shape(module, (channels, side, side))
        except RuntimeError:
            return False
        return True

    sides = range(1, 1025)
    found = bisect_left(sides, True, key=passes)
    if found == len(sides):
        raise ValueError(f"The encoder accepts no square image of up to {sides[-1]} pixels a side.")
    return sides[found]
