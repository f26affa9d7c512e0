"""Floating point operations of a network, counted operation by operation without computing anything.

A multiplication and an addition count as two; only matrix products and convolutions count.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from fedfeat.errors import ConfigError
from fedfeat.models.network import Network
from fedfeat.models.shapes import dtype_of, meta_state


def forward_flops(network: Network, batch: int = 2) -> int:
    """Count FLOPs per example of one forward pass.

    Args:
        network: The network; only its shapes are read.
        batch: Examples in the pass that is counted.
    """
    return _count(network, network, batch, backward=False)


def training_flops(network: Network, batch: int = 2) -> int:
    """Count FLOPs per example of one forward and one backward pass (no gradient for the input).

    Args:
        network: The network; only its shapes and ``requires_grad`` are read.
        batch: See `forward_flops`.
    """
    return _count(network, network, batch, backward=True)


def encoder_flops(network: Network, batch: int = 2) -> int:
    """Count `forward_flops` of the encoder alone."""
    return _count(network.encoder, network, batch, backward=False)


def _count(part: nn.Module, network: Network, batch: int, backward: bool) -> int:
    x = torch.empty((batch, *network.input_shape), dtype=dtype_of(part), device="meta")
    formulas = {torch.ops.aten.convolution_backward: _convolution_backward_flops}
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    with torch.set_grad_enabled(backward), _any_momentum(part), counter:
        try:
            output = functional_call(part, meta_state(part), (x,))
        except RuntimeError as error:
            rule = f"model must take inputs of the shape {network.input_shape}"
            raise ConfigError(f"{rule}, but that says: {str(error).rstrip('.')}.") from error
        if backward:
            output.sum().backward()
    return counter.get_total_flops() // batch


@contextmanager
def _any_momentum(part: nn.Module) -> Iterator[None]:
    """Have batch norms that take plain means not look how many batches there were: nothing is computed here."""
    norms = [
        m for m in part.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.momentum is None
    ]
    for norm in norms:
        norm.momentum = 0.1
    try:
        yield
    finally:
        for norm in norms:
            norm.momentum = None


def _convolution_backward_flops(grad_out: Any, x: Any, weight: Any, *settings: Any, **_: Any) -> int:
    """Count each gradient asked for (input, weight) as one forward pass.

    torch's own formula forgets the groups in the weight's gradient: there, a depthwise convolution of 512
    channels would count 512 times too much.
    """
    *_bias_to_dilation, transposed, _, _, asked = settings
    return conv_flop_count(x, weight, grad_out, transposed) * sum(map(bool, asked[:2]))
