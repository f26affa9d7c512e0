"""Every tensor of a model has a policy, chosen by block or module type, never by a substring of its name."""

from collections.abc import Sequence

from torch import nn

from fedfeat.models.freezing import still_keys
from fedfeat.models.frozen import frozen_keys
from fedfeat.models.grouped import GroupedNetwork
from fedfeat.models.selectors import modules_of, unknown_selector

SHARED = "shared"
PERSONAL = "personal"
GROUPED = "grouped"
MATCHED = "matched"
DROPPED = "dropped"
"""Of tensors that follow from others, from the seed or from a file (`model.freeze`): neither sent nor kept."""


def tensor_policies(model: nn.Module, personal: Sequence[str] = ()) -> dict[str, str]:
    """Give every entry of ``model.state_dict()`` its policy.

    Args:
        model: A network with named blocks.
        personal: Selectors of what stays with the client: ``"all"``, ``"norm"`` (normalisation layers by type),
            ``"last"`` (the layer that gives the logits), ``"body"`` (all but that layer), or the dotted name of a block
            (``"head"``, ``"head.fc3"``).

    Raises:
        ConfigError: A selector matches nothing.
    """
    chosen = selected(model, personal, "algorithm.client.personal")
    grouped = model.group_rows() if isinstance(model, GroupedNetwork) else {}
    policies = {key: GROUPED if key in grouped else SHARED for key in model.state_dict()}
    policies |= dict.fromkeys(chosen, PERSONAL)
    return policies | dict.fromkeys([*frozen_keys(model), *still_keys(model)], DROPPED)


def selected(model: nn.Module, selectors: Sequence[str], key: str) -> set[str]:
    """Give the entries of ``model.state_dict()`` that selectors name, see `tensor_policies`.

    Args:
        model: A network with named blocks.
        selectors: Any of those.
        key: Where they stand in the configuration.

    Raises:
        ConfigError: A selector matches nothing.
    """
    chosen: set[str] = set()
    for selector in selectors:
        found = _select(model, selector)
        if not found:
            raise unknown_selector(model, selector, key, ("all", "body", "norm", "last"))
        chosen |= found
    return chosen


def sent_keys(policies: dict[str, str]) -> tuple[str, ...]:
    """List the tensors that cross the wire, in the model's order."""
    return tuple(key for key, policy in policies.items() if policy not in (PERSONAL, DROPPED))


def is_complete(policies: dict[str, str]) -> bool:
    """Whether what crosses the wire is the whole model."""
    return PERSONAL not in policies.values()


def keys_with(policies: dict[str, str], policy: str) -> tuple[str, ...]:
    """List the tensors that have one policy, in the model's order."""
    return tuple(key for key, found in policies.items() if found == policy)


def describe(policies: dict[str, str]) -> str:
    """Sum the policies up in one line, e.g. ``18 tensors: 16 shared, 2 personal (head.fc3.weight, ...)``."""
    counts = {policy: len(keys_with(policies, policy)) for policy in dict.fromkeys(policies.values())}
    text = ", ".join(f"{count} {policy}" for policy, count in counts.items())
    personal = keys_with(policies, PERSONAL)
    names = f" ({', '.join(personal[:4])}{', ...' if len(personal) > 4 else ''})" if personal else ""
    return f"{len(policies)} tensors: {text}{names}"


def _select(model: nn.Module, selector: str) -> set[str]:
    keys = set(model.state_dict())
    if selector == "all":
        return keys
    if selector == "body":
        return keys - _select(model, "last")
    prefixes = tuple(f"{name}." for name in modules_of(model, selector))
    return {key for key in keys if key.startswith(prefixes)}
