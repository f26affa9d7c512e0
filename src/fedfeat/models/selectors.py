"""Parts of a network by the names that the configuration gives them."""

from collections.abc import Sequence

from torch import nn

from fedfeat.errors import ConfigError
from fedfeat.models.network import NORMS, Network

_SHOWN = 12


def modules_of(model: nn.Module, selector: str) -> dict[str, nn.Module]:
    """Give the modules that a selector names, by their path; none if it names nothing.

    Args:
        model: A network with named blocks.
        selector: ``last`` (the linear layer that gives the logits), ``norm`` (normalisation layers by type), or the
            dotted name of a block or module (``encoder``, ``encoder.conv1``, ``head.fc1.linear``).
    """
    if selector == "last":
        return {model.last_layer_name: model.last_layer} if isinstance(model, Network) else {}
    named = ((name, part) for name, part in model.named_modules() if name)
    if selector == "norm":
        return {name: part for name, part in named if isinstance(part, NORMS)}
    return {name: part for name, part in named if name == selector}


def unknown_selector(model: nn.Module, selector: str, key: str, words: Sequence[str]) -> ConfigError:
    """Build the refusal of a selector that names nothing.

    Args:
        model: The network.
        selector: The selector.
        key: Where it stands in the configuration.
        words: The selectors beside names of blocks and modules that are known there.
    """
    names = [name for name, part in model.named_modules() if name and part.state_dict()]
    blocks = [name for name in names if name.count(".") < 2]
    shown = ", ".join(blocks[:_SHOWN]) + (", ..." if len(blocks) > _SHOWN else "")
    quoted = ", ".join(f"'{word}'" for word in words)
    rule = f"name parts of the network by {quoted}, or a block or module such as {shown}"
    return ConfigError.rule(key, rule, selector, (*words, *names))
