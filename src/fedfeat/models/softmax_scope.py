"""Which logits a client's local softmax is taken over."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedfeat.errors import ConfigError
from fedfeat.models.class_map import kept_sets
from fedfeat.models.grouped import GroupedNetwork

SoftmaxScope = Literal["all", "present_classes", "kept_groups"]
"""All logits that the network has, those of groups that hold a class of the client, or those of its classes alone
(methods.md#fed2-softmax-scope)."""


def check_scope(model: nn.Module, scope: SoftmaxScope) -> None:
    """Refuse a scope that a network does not have.

    Raises:
        ConfigError: ``kept_groups`` for a network without groups.
    """
    if scope == "kept_groups" and not isinstance(model, GroupedNetwork):
        rule = "be all or present_classes for a network without groups"
        raise ConfigError.rule("algorithm.client.softmax_scope", rule, scope)


def outside_scope(
    model: nn.Module, scope: SoftmaxScope, class_counts: np.ndarray, device: torch.device
) -> Tensor | None:
    """Mark the classes (C,) that the local softmax leaves out; None for none.

    Args:
        model: The client's network.
        scope: See `SoftmaxScope`.
        class_counts: The client's training examples per class (C,).
        device: Where the marks are needed.
    """
    if scope == "all":
        return None
    inside = set(np.flatnonzero(class_counts).tolist())
    if scope == "kept_groups":
        assert isinstance(model, GroupedNetwork)
        inside = {c for classes in kept_sets(model.class_sets, class_counts.tolist()) for c in classes}
    return torch.tensor([c not in inside for c in range(len(class_counts))], device=device)
