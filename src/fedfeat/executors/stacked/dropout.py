"""Dropout of many clients side by side, with the masks that each would draw alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedfeat.models.twin import Twin

# Those that multiply by a mask; `vmap` refuses whatever else draws numbers.
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class DropoutCall(NamedTuple):
    """One call of a dropout layer in a forward pass.

    Attributes:
        layer: The layer.
        shape: Of one example of its input.
        dtype: Of its input.
        aside: In which pass of a `Twin`, from 1; 0 in none. What such a pass draws is drawn again after it.
    """

    layer: nn.Module
    shape: tuple[int, ...]
    dtype: torch.dtype
    aside: int = 0


def dropout_calls(module: nn.Module, run: Callable[[], Any]) -> list[DropoutCall]:
    """List the calls of dropout layers that draw something while ``run`` runs, in their order."""
    calls: list[DropoutCall] = []
    twins = [part for part in module.modules() if isinstance(part, Twin)]
    within = {layer for twin in twins for layer in twin.modules()}
    passes: list[Twin] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if layer.training:
            aside = len(passes) if layer in within else 0
            calls.append(DropoutCall(layer, tuple(inputs[0].shape[1:]), inputs[0].dtype, aside))

    layers = [layer for layer in module.modules() if isinstance(layer, _DROPOUT)]
    handles = [layer.register_forward_pre_hook(note) for layer in layers]
    handles += [twin.register_forward_pre_hook(lambda twin, _: passes.append(twin)) for twin in twins]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return calls


class DropoutMasks:
    """The masks that clients draw in fits of their own, each from its seed.

    Args:
        calls: The dropout of one forward pass.
        seeds: The seed of each client's fit.
        device: Where the fits run; its global generator is used.
    """

    def __init__(self, calls: Sequence[DropoutCall], seeds: Sequence[int], device: torch.device) -> None:
        self._calls, self._device = calls, device
        on_gpu = device.type == "cuda"
        self._generator = (
            torch.cuda.default_generators[device.index or 0] if on_gpu else torch.default_generator
        )
        self._states = [self._generator.manual_seed(seed).get_state() for seed in seeds] if calls else []

    @torch.no_grad()
    def draw(self, sizes: Sequence[int], width: int) -> list[Tensor]:
        """Draw the masks of the next step, one (K, B, ...) for each call.

        Args:
            sizes: Examples of each client's batch.
            width: The B of the masks; where a client has fewer examples, zeros follow.
        """
        place, count = self._device, len(sizes)
        drawn = [
            torch.zeros((count, width, *call.shape), dtype=call.dtype, device=place) for call in self._calls
        ]
        for index, size in enumerate(sizes if self._calls else ()):
            self._generator.set_state(self._states[index])
            for aside, calls in groupby(zip(drawn, self._calls, strict=True), key=lambda pair: pair[1].aside):
                before = self._generator.get_state()
                for masks, call in calls:
                    ones = torch.ones((size, *call.shape), dtype=call.dtype, device=place)
                    masks[index, :size] = type(call.layer).forward(call.layer, ones)
                if aside:
                    self._generator.set_state(before)
            self._states[index] = self._generator.get_state()
        return drawn
