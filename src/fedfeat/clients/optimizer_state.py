"""A client's memory between its turns: the method's personal tensors and, with ``opt_state=keep``, its optimizer's."""

import torch
from torch import Tensor

_OPTIMIZER = "optimizer/"


def split_memory(memory: dict[str, Tensor] | None) -> tuple[dict[str, Tensor] | None, dict[str, Tensor]]:
    """Part a client's memory into the method's tensors and those of its optimizer."""
    if memory is None:
        return None, {}
    own = {key: value for key, value in memory.items() if not key.startswith(_OPTIMIZER)}
    return own or None, {key: value for key, value in memory.items() if key.startswith(_OPTIMIZER)}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Flatten an optimizer's state to ``optimizer/<parameter>/<name>``."""
    return {
        f"{_OPTIMIZER}{index}/{name}": value.detach().cpu().clone()
        for index, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }


def optimizer_state(kept: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Put an optimizer's state together again; the inverse of `optimizer_tensors`."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in kept.items():
        _, index, name = key.split("/")
        # Optimizers change their state in place, and a turn that fails or does not count must leave the memory alone.
        state.setdefault(int(index), {})[name] = value.clone()
    return state
