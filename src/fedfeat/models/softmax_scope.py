"""Which logits a client's local softmax is taken over."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedfeat.errors import ConfigError
from fedfeat.models.class_map import kept_sets
from fedfeat.models.grouped import GroupedNetwork
from fedfeat.models.shapes import dtype_of

SoftmaxScope = Literal["all", "present_classes", "kept_groups", "balanced"]
"""All logits that the network has, those of groups that hold a class of the client, or those of its classes alone;
under ``balanced`` these with the logarithm of the client's examples of each added (methods/fed2.md#softmax-scope)."""


def check_scope(model: nn.Module, scope: SoftmaxScope) -> None:
    """Refuse a scope that a network does not have.

    Raises:
        ConfigError: ``kept_groups`` for a network without groups.
    """
    if scope == "kept_groups" and not isinstance(model, GroupedNetwork):
        without = "a network without groups (structure=none or separate=false)"
        rule = f"be all, present_classes or balanced for {without}"
        raise ConfigError.rule("algorithm.client.softmax_scope", rule, scope)


def scope_terms(
    model: nn.Module, scope: SoftmaxScope, class_counts: np.ndarray, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Mark the classes that the local softmax leaves out, and give what is added to the logits, each (C,) or None.

    Args:
        model: The client's network.
        scope: See `SoftmaxScope`.
        class_counts: The client's training examples per class (C,).
        device: Where they are needed.
    """
    outside, prior = _outside(model, scope, class_counts), _log_prior(scope, class_counts)
    return (
        None if outside is None else outside.to(device),
        None if prior is None else prior.to(device, dtype_of(model)),
    )


def _outside(model: nn.Module, scope: SoftmaxScope, class_counts: np.ndarray) -> Tensor | None:
    if scope == "all":
        return None
    inside = set(np.flatnonzero(class_counts).tolist())
    if scope == "kept_groups":
        assert isinstance(model, GroupedNetwork)
        inside = {c for classes in kept_sets(model.class_sets, class_counts.tolist()) for c in classes}
    return torch.tensor([c not in inside for c in range(len(class_counts))])


def _log_prior(scope: SoftmaxScope, class_counts: np.ndarray) -> Tensor | None:
    if scope != "balanced":
        return None
    # Against the largest: equal counts add exactly nothing. What is absent is outside of the scope.
    counts = np.maximum(class_counts, 1) / max(class_counts.max(), 1)
    return torch.from_numpy(np.log(counts))


def in_scope(logits: Tensor, outside: Tensor | None, prior: Tensor | None) -> Tensor:
    """Give logits (B, C) as the local softmax takes them; the others as `scope_terms` gives them."""
    if prior is not None:
        logits = logits + prior
    return logits if outside is None else logits.masked_fill(outside, -torch.inf)
