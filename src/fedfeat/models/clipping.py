"""Clipping of the gradients of one client by PyTorch; many clients' is `executors.stacked.clipping`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from fedfeat.models.quick_module import QuickModule

if TYPE_CHECKING:
    from fedfeat.types import Params

Bound = Callable[[Iterable[str]], None]
"""Clips the gradients of these names together: by their common norm, or each number by its value."""


def gradients_and_bound(
    module: nn.Module, optimizer: Optimizer, value: float, algorithm: str | None
) -> tuple[Params, Bound]:
    """Give the gradients of what an optimizer steps, in its order, and what Lightning's Trainer would clip them by."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    stepped = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    parameters = {names[parameter]: parameter for parameter in stepped}
    clip = clip_grad_value_ if algorithm == "value" else clip_grad_norm_

    def bound(chosen: Iterable[str]) -> None:
        clip([parameters[name] for name in chosen], value)

    return {name: p.grad for name, p in parameters.items() if p.grad is not None}, bound


class ClippedModule(QuickModule):
    """A LightningModule that says itself which of its gradients are clipped together."""

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Lightning hook: as `clip` says."""
        if gradient_clip_val:
            found = gradients_and_bound(self, optimizer, gradient_clip_val, gradient_clip_algorithm)
            self.clip(*found, self.state_dict())

    def clip(self, gradients: Params, bound: Bound, tensors: Params) -> None:
        """Clip gradients by name, in place, of one client (*) or stacked (K, *); here all of them together.

        Args:
            gradients: Of what trains, by the names of this module's.
            bound: Clips those of some names by their common norm.
            tensors: The tensors of this module by name.
        """
        bound(gradients)
