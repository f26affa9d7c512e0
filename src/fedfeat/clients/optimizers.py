"""Optimizers that treat some parameters unlike others, and the state of any between a client's turns."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn, optim

from fedfeat.errors import ConfigError


def sgd_sparing_biases(
    params: Iterable[nn.Parameter | tuple[str, nn.Parameter]],
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> optim.SGD:
    """Make an SGD that decays weights alone, as the public code of FedRep and FedHeNN does (lgcollins/FedRep).

    What is called a bias and what has one dimension, as scales of normalisation layers do, does not decay; parameters
    may come with their names, as PyTorch's optimizers take them.
    """
    decaying: list[nn.Parameter] = []
    spared: list[nn.Parameter] = []
    for one in params:
        name, parameter = one if isinstance(one, tuple) else ("", one)
        # Those of grouped linear maps have two dimensions.
        is_spared = parameter.ndim <= 1 or name.rpartition(".")[2] == "bias"
        (spared if is_spared else decaying).append(parameter)
    groups: list[dict[str, Any]] = [{"params": decaying}, {"params": spared, "weight_decay": 0.0}]
    return optim.SGD(groups, lr=lr, momentum=momentum, weight_decay=weight_decay)


# `ClientModule.new_optimizer` hands names over where this is set.
sgd_sparing_biases.by_name = True  # type: ignore[attr-defined]


def optimizer_tensors(optimizer: optim.Optimizer) -> dict[str, Tensor]:
    """Flatten an optimizer's state to ``<parameter>/<name>`` (``federation.opt_state=keep``); nothing is copied."""
    return {
        f"{index}/{name}": value
        for index, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }


def kept_tensors(optimizer: optim.Optimizer) -> dict[str, Tensor]:
    """Copy them to the CPU, for the client to keep.

    Raises:
        ConfigError: The state has something else, without which the optimizer could not go on.
    """
    for entries in optimizer.state_dict()["state"].values():
        for name, value in entries.items():
            if value is not None and not isinstance(value, Tensor):
                rule = f"be reset for {type(optimizer).__name__}, in whose state {name} is no tensor"
                raise ConfigError.rule("federation.opt_state", rule, "keep")
    return {key: value.detach().to("cpu", copy=True) for key, value in optimizer_tensors(optimizer).items()}


def optimizer_state(kept: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Put an optimizer's state together again; the inverse of `optimizer_tensors`."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in kept.items():
        index, name = key.split("/")
        # Optimizers change their state in place, and a turn that fails or does not count must leave what is kept alone.
        state.setdefault(int(index), {})[name] = value.clone()
    return state
