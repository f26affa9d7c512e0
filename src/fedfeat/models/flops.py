"""Floating point operations of a network, counted operation by operation without computing anything.

A multiplication and an addition count as two; only matrix products and convolutions count.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from fedfeat.models.network import Network, meta_state


def forward_flops(network: Network, batch: int = 2) -> int:
    """Count FLOPs per example of one forward pass.

    Args:
        network: The network; only its shapes are read.
        batch: Examples in the pass that is counted.
    """
    with torch.no_grad():
        return _count(network, batch, backward=False, input_shape=network.input_shape)


def training_flops(network: Network, batch: int = 2) -> int:
    """Count FLOPs per example of one forward and one backward pass (no gradient for the input).

    Args:
        network: The network; only its shapes and ``requires_grad`` are read.
        batch: Examples in the pass that is counted.
    """
    with torch.enable_grad():
        return _count(network, batch, backward=True, input_shape=network.input_shape)


def encoder_flops(network: Network, batch: int = 2) -> int:
    """Count FLOPs per example of one forward pass through the encoder.

    Args:
        network: The network; only its shapes are read.
        batch: Examples in the pass that is counted.
    """
    with torch.no_grad():
        return _count(network.encoder, batch, backward=False, input_shape=network.input_shape)


def _count(module: nn.Module, batch: int, backward: bool, input_shape: Sequence[int]) -> int:
    x = torch.empty((batch, *input_shape), device="meta")
    state = meta_state(module)
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward_flops}
    )
    with counter:
        output = functional_call(module, state, (x,))
        if backward:
            output.sum().backward()
    return counter.get_total_flops() // batch


def _convolution_backward_flops(
    grad_out_shape: Sequence[int],
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    _bias: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _output_padding: Any,
    _groups: int,
    output_mask: Sequence[bool],
    **_: Any,
) -> int:
    """Count each gradient asked for (input, weight) as one forward pass.

    torch's own formula forgets the groups in the weight's gradient: there, a depthwise convolution of 512
    channels would count 512 times too much.
    """
    places = x_shape[2:] if transposed else grad_out_shape[2:]
    forward = 2 * grad_out_shape[0] * math.prod(places) * math.prod(w_shape)
    return forward * sum(map(bool, output_mask[:2]))
