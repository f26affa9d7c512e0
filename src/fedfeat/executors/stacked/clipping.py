"""Clipping of gradients, of each client among many by its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pytorch_lightning as pl
import torch
from torch import Tensor

Clip = Callable[[Sequence[Tensor]], None]
"""Changes gradients (K, *) in place."""


def clip_by(algorithm: str, bound: float | None) -> Clip | None:
    """Give what Lightning's ``gradient_clip_algorithm`` does under a ``gradient_clip_val``, for stacks; None for none."""
    if not bound:
        return None
    return partial(_by_value if algorithm == "value" else _by_norm, bound)


def _by_value(bound: float, gradients: Sequence[Tensor]) -> None:
    for gradient in gradients:
        gradient.clamp_(-bound, bound)


def _by_norm(bound: float, gradients: Sequence[Tensor]) -> None:
    norms = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
    whole = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    # The constant is that of `torch.nn.utils.clip_grad_norm_`.
    factors = (bound / (whole + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))


@contextmanager
def unclipped(trainer: pl.Trainer) -> Iterator[None]:
    """Have a Trainer leave gradients alone; it refuses to clip those of a module that steps its own optimizer."""
    bound, trainer.gradient_clip_val = trainer.gradient_clip_val, None
    try:
        yield
    finally:
        trainer.gradient_clip_val = bound
