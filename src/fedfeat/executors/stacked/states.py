"""The optimizer's state of many clients side by side, where it outlasts their turns (``federation.opt_state=keep``)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

from fedfeat.clients.optimizers import optimizer_tensors

if TYPE_CHECKING:
    from fedfeat.types import Params

CLOCKS = ("step", "mu_product")
"""What a state has that is one number for all of a parameter; clients of one fit must have the same."""


def clock(kept: Params) -> Hashable:
    """Give what kept states must have in common for one fit: what they hold, and the values of `CLOCKS`."""
    return tuple((key, float(value) if _name(key) in CLOCKS else None) for key, value in sorted(kept.items()))


def load_states(optimizer: Optimizer, kept: Sequence[Params]) -> None:
    """Give an optimizer over stacked parameters the states that its clients keep, all of one `clock`."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, first in kept[0].items():
        index, name = key.split("/")
        parameter = parameters[int(index)]
        value = first.clone() if name in CLOCKS else torch.stack([one[key] for one in kept])
        # As `load_state_dict` has it: a count of steps stays as it is, everything else follows the weights.
        optimizer.state[parameter][name] = value if name == "step" else value.to(parameter)


class StateRows:
    """Reads each client's state from an optimizer over stacked parameters, also of clients that have ended.

    Args:
        optimizer: The optimizer; it changes its tensors in place.
        count: Its clients.
    """

    def __init__(self, optimizer: Optimizer, count: int) -> None:
        self._optimizer, self._active = optimizer, count
        self._clocks: list[Params] = [{}] * count
        self._whole: Params = {}

    def note(self, active: int) -> None:
        """Note what is about to be lost before all but the first ``active`` clients end."""
        if active < self._active:
            now = optimizer_tensors(self._optimizer)
            self._whole = self._whole or now
            clocks = {key: value.clone() for key, value in now.items() if _name(key) in CLOCKS}
            self._clocks[active : self._active] = [clocks] * (self._active - active)
            self._active = active

    def read(self) -> list[Params]:
        """Give the state of every client, on the CPU."""
        self.note(0)
        whole = {key: value.cpu() for key, value in self._whole.items()}
        return [
            {key: clocks[key].cpu() if key in clocks else whole[key][index] for key in whole}
            for index, clocks in enumerate(self._clocks)
        ]


def _name(key: str) -> str:
    return key.split("/")[1]
