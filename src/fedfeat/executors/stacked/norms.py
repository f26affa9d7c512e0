"""Batch norm of one model among many: statistics of its own examples, never of padding, and none changed in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from fedfeat.types import Params

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def batch_norms(module: nn.Module) -> dict[str, BatchNorm]:
    """Give the batch norms that normalise by batches and train, by their paths; those of a frozen part do not."""
    return {path: layer for path, layer in _named(module) if layer.training}


def resting_norms(module: nn.Module) -> list[BatchNorm]:
    """List the batch norms that normalise by their running statistics: frozen ones, and those of frozen copies."""
    return [layer for _, layer in _named(module) if not layer.training and layer.track_running_stats]


def _named(module: nn.Module) -> Iterator[tuple[str, BatchNorm]]:
    """Go through the batch norms that are PyTorch's own; a class derived from them may compute something else."""
    for path, layer in module.named_modules():
        if isinstance(layer, BatchNorm) and type(layer) in BatchNorm.__args__:
            yield path, layer


def normalised(layer: BatchNorm, x: Tensor, real: Tensor, running: Params) -> tuple[Tensor, Params]:
    """Normalise as ``layer`` in training mode does, by the examples that are some.

    Args:
        layer: Gives ``eps``, ``momentum``, ``weight`` and ``bias``.
        x: (B, C, ...).
        real: Which examples are no padding, bool (B,).
        running: The running statistics by their names in the layer; empty where it has none.

    Returns:
        The output (B, C, ...), and what follows the running statistics. Without a real example these stay.
    """
    axes = [0, *range(2, x.dim())]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    weight = real.to(wide.dtype).view(-1, *[1] * (x.dim() - 1))
    count = (real.sum() * x[0, 0].numel()).clamp(min=1)
    mean = (wide * weight).sum(axes) / count
    centred = wide - mean.view(_along(x))
    variance = (centred.square() * weight).sum(axes) / count
    unbiased = variance * count / (count - 1).clamp(min=1)
    moved = _moved(running, layer.momentum, mean, unbiased, real.any()) if running else {}
    return _scaled(layer, centred, variance).to(x.dtype), moved


def at_rest(layer: BatchNorm, x: Tensor) -> Tensor:
    """Normalise (B, C, ...) as ``layer`` in eval mode does.

    PyTorch's own, stacked, takes no bfloat16 beside statistics in float32.
    """
    mean, variance = layer.running_mean, layer.running_var
    assert mean is not None
    assert variance is not None
    if x.dtype == mean.dtype:
        return type(layer).forward(layer, x)
    centred = x.to(mean.dtype) - mean.view(_along(x))
    return _scaled(layer, centred, variance).to(x.dtype)


def _along(x: Tensor) -> tuple[int, ...]:
    """Give the shape of numbers (C,) beside a tensor (B, C, ...)."""
    return (1, -1, *[1] * (x.dim() - 2))


def _scaled(layer: BatchNorm, centred: Tensor, variance: Tensor) -> Tensor:
    """Divide (B, C, ...) by the deviation of a variance (C,), and apply the layer's weight and bias."""
    along = _along(centred)
    out = centred * (variance + layer.eps).rsqrt().view(along)
    return out * layer.weight.view(along) + layer.bias.view(along) if layer.affine else out


def _moved(running: Params, momentum: float | None, mean: Tensor, variance: Tensor, moves: Tensor) -> Params:
    """Give the running statistics after one more batch."""
    tracked = running["num_batches_tracked"] + moves
    # Without momentum they are the plain mean over the batches so far.
    share = momentum if momentum is not None else 1.0 / tracked.clamp(min=1).to(mean.dtype)
    found = {"running_mean": mean.detach(), "running_var": variance.detach()}
    new = {
        name: torch.where(moves, running[name].lerp(value.to(running[name].dtype), share), running[name])
        for name, value in found.items()
    }
    return {**new, "num_batches_tracked": tracked}
