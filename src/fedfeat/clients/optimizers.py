"""Optimizers that treat some parameters unlike others."""

from collections.abc import Iterable
from typing import Any

from torch import nn, optim


def sgd_sparing_biases(
    params: Iterable[nn.Parameter], lr: float, momentum: float = 0.0, weight_decay: float = 0.0
) -> optim.SGD:
    """Make an SGD that decays weights alone, as the public code of FedRep and FedHeNN does (lgcollins/FedRep).

    Parameters of one dimension, biases and scales of normalisation layers, do not decay.
    """
    params = list(params)
    decaying = [parameter for parameter in params if parameter.ndim > 1]
    spared = [parameter for parameter in params if parameter.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decaying}, {"params": spared, "weight_decay": 0.0}]
    return optim.SGD(groups, lr=lr, momentum=momentum, weight_decay=weight_decay)
