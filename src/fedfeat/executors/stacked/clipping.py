"""Clipping of gradients, of each client among many by its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Clip(NamedTuple):
    """What Lightning's Trainer does with gradients.

    Attributes:
        value: ``gradient_clip_val``.
        algorithm: ``gradient_clip_algorithm``, ``norm`` or ``value``.
    """

    value: float
    algorithm: str

    def together(self, gradients: Sequence[Tensor]) -> None:
        """Clip gradients (K, *) in place, those of each client by their common norm, or each number by its value."""
        if self.algorithm == "value":
            for gradient in gradients:
                gradient.clamp_(-self.value, self.value)
            return
        norms = [
            torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), dim=1) for gradient in gradients
        ]
        whole = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        # The constant is that of `torch.nn.utils.clip_grad_norm_`.
        factors = (self.value / (whole + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))
