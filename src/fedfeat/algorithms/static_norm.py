"""Static batch norm: nobody's running statistics are averaged, they are taken anew of the server's model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fedfeat.models.freezing import buffers_of

BatchNorm = nn.modules.batchnorm._BatchNorm


def batch_norms(model: nn.Module) -> list[BatchNorm]:
    """List the batch norms with running statistics."""
    return [m for m in model.modules() if isinstance(m, BatchNorm) and m.track_running_stats]


def statistics_keys(model: nn.Module) -> tuple[str, ...]:
    """Name the running statistics of batch norms, with their counters."""
    return tuple(buffers_of(model, {*batch_norms(model)}))


def begin_statistics(model: nn.Module) -> None:
    """Have batch norms take the plain mean over the batches to come, the first of which replaces what they have."""
    for norm in batch_norms(model):
        norm.momentum = None
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.zero_()


@torch.no_grad()
def take_statistics(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Set running statistics to the mean of those of batches, each normalised by its own, without dropout.

    Args:
        model: The model; left in eval mode.
        batches: Its inputs.
    """
    model.eval()
    begin_statistics(model)
    for norm in batch_norms(model):
        norm.train()
    for batch in batches:
        model(batch)
    model.eval()
