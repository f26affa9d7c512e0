"""Layers by their neurons: as rows to compare, and in another order or at other places of a wider layer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Layer(NamedTuple):
    """A linear or convolutional layer.

    Attributes:
        weight: (O, I) or (O, I, kh, kw).
        bias: (O,), or None.
    """

    weight: Tensor
    bias: Tensor | None


def layer_rows(layer: Layer) -> Tensor:
    """Give a layer's neurons as rows (O, d): flattened incoming weights, then the bias where there is one."""
    weight = layer.weight.flatten(1)
    return weight if layer.bias is None else torch.cat([weight, layer.bias[:, None]], dim=1)


def rows_layer(rows: Tensor, like: Layer) -> Layer:
    """Give rows (L, d) as a layer whose inputs, kernel and bias or none are those of ``like``; its width may differ."""
    weight = rows if like.bias is None else rows[:, :-1]
    # Copies, because files of tensors take no views.
    bias = None if like.bias is None else _copy(rows[:, -1])
    return Layer(_copy(weight).reshape(-1, *like.weight.shape[1:]), bias)


def spread_inputs(weight: Tensor, assignment: Tensor, num_global: int) -> Tensor:
    """Bring the inputs of a client's next layer to the places of the global neurons that now feed it; others get 0.

    Each neuron feeds a block of equal size: an input channel with its kernel, the h * w inputs behind a flattening,
    or one input.

    Args:
        weight: (O, L_j, kh, kw), (O, L_j * h * w) or (O, L_j).
        assignment: Global neuron of each of the client's neurons, int64 (L_j,).
        num_global: L.

    Returns:
        (O, L, kh, kw), (O, L * h * w) or (O, L).
    """
    blocks = _blocks(weight, len(assignment))
    wide = blocks.new_zeros(len(weight), num_global, blocks.shape[2])
    wide[:, assignment] = blocks
    return wide.reshape(len(weight), -1, *weight.shape[2:])


def gather_inputs(weight: Tensor, assignment: Tensor, num_global: int) -> Tensor:
    """Take a client's inputs, in its order, out of those of the global layer: the inverse of `spread_inputs`.

    Args:
        weight: (O, L, kh, kw), (O, L * h * w) or (O, L).
        assignment: See `spread_inputs`.
        num_global: L.
    """
    return _blocks(weight, num_global)[:, assignment].reshape(len(weight), -1, *weight.shape[2:])


def mix_inputs(weight: Tensor, mix: Tensor) -> Tensor:
    """Replace the neurons that feed a layer by others: input j is the sum over i of input i times ``mix[i, j]``.

    Args:
        weight: (O, L_a, kh, kw), (O, L_a * h * w) or (O, L_a).
        mix: (L_a, L_b).
    """
    mixed = torch.einsum("oik,ij->ojk", _blocks(weight, len(mix)), mix.to(weight))
    return mixed.reshape(len(weight), -1, *weight.shape[2:])


def gather_outputs(layer: Layer, assignment: Tensor) -> Layer:
    """Take a client's neurons, in its order, out of those of the global layer."""
    return Layer(layer.weight[assignment], None if layer.bias is None else layer.bias[assignment])


def _copy(part: Tensor) -> Tensor:
    return part.clone(memory_format=torch.contiguous_format)


def _blocks(weight: Tensor, num_neurons: int) -> Tensor:
    """View inputs as blocks, one for each neuron that feeds them: (O, num_neurons, block)."""
    if weight.shape[1] % num_neurons:
        raise ValueError(
            f"{weight.shape[1]} inputs must be a multiple of the {num_neurons} neurons that feed them."
        )
    return weight.reshape(len(weight), num_neurons, -1)
