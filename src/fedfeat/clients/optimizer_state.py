"""An optimizer's state between a client's turns, as named tensors (``federation.opt_state=keep``)."""

import torch
from torch import Tensor


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Flatten an optimizer's state to ``<parameter>/<name>``."""
    return {
        f"{index}/{name}": value.detach().cpu().clone()
        for index, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }


def optimizer_state(kept: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Put an optimizer's state together again; the inverse of `optimizer_tensors`."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in kept.items():
        index, name = key.split("/")
        # Optimizers change their state in place, and a turn that fails or does not count must leave what is kept alone.
        state.setdefault(int(index), {})[name] = value.clone()
    return state
