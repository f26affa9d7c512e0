"""A network cut behind the frozen layers that it begins with: what they give is the same in every pass."""

from collections import OrderedDict
from typing import NamedTuple

from torch import nn

from fedfeat.errors import ConfigError
from fedfeat.models.network import Block, Network
from fedfeat.models.shapes import output_shape


class Cut(NamedTuple):
    """The two parts of a network.

    Attributes:
        start: The frozen layers that it begins with, one after the other, in eval mode.
        rest: What is behind them, as a network that reads what they give; its tensors have the names that they have in
            the whole.
    """

    start: nn.Sequential
    rest: Network


def cut_behind_frozen(network: Network) -> Cut:
    """Cut a network; its layers are taken.

    Raises:
        ConfigError: It does not begin with a frozen layer, or the examples of a batch meet in one.
    """
    start: list[nn.Module] = []
    frozen, still = set(network.frozen), True
    parts: dict[str, list[Block]] = {"encoder": [], "head": []}
    for part, blocks in parts.items():
        for name, block in network.get_submodule(part).named_children():
            left = OrderedDict[str, nn.Module]()
            for layer_name, layer in block.named_children():
                still = still and layer in frozen
                if still:
                    start.append(layer)
                else:
                    left[layer_name] = layer
            if left:
                blocks.append((name, nn.Sequential(left)))
    first = nn.Sequential(*start).eval()
    if not any(True for _ in first.parameters()) and not any(True for _ in first.buffers()):
        rule = (
            "be false where the network does not begin with frozen layers (model.freeze=[encoder] or [body])"
        )
        raise ConfigError.rule("model.cached", rule, True)
    if any(getattr(part, "mixes_examples", False) for part in first.modules()):
        raise ConfigError.rule(
            "model.cached", "be false where a frozen layer mixes the examples of a batch", True
        )
    rest = Network(
        parts["encoder"], parts["head"], output_shape(first, network.input_shape), network.num_classes
    )
    rest.draw = network.draw
    there = set(rest.modules())
    rest.frozen = tuple(module for module in network.frozen if module in there)
    return Cut(first, rest.train())
