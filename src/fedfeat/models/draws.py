"""Initial weights of single layers, of networks whose builder does not leave them to the framework.

A group-separated network is drawn by the same rule as the network that it was: each group's part of a layer as a whole
layer of the small network that a group is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

from fedfeat.models.grouped_layers import ClassLinear, GroupedLinear

if TYPE_CHECKING:
    from fedfeat.models.network import Network

LinearLayer = nn.Linear | GroupedLinear
Draw = Callable[[nn.Module], None]
"""Draws one layer's weights in place; leaves layers alone that are the framework's."""


def drawn(network: Network, draw: Draw) -> Network:
    """Draw all layers of a network in place, and note in it how; give the network."""
    network.draw = draw
    draw_layers(network, draw)
    return network


def draw_layers(module: nn.Module, draw: Draw | None) -> None:
    """Draw all layers of a module in place; None leaves them as they are."""
    if draw is not None:
        for layer in module.modules():
            draw(layer)


def xavier(layer: nn.Module) -> None:
    """Draw weights Xavier-uniform and set biases to 0 (Glorot and Bengio 2010)."""
    if isinstance(layer, nn.Conv2d | LinearLayer):
        for weight in _single_maps(layer):
            nn.init.xavier_uniform_(weight)
        zero_bias(layer)


def he_fan_in(layer: nn.Module) -> None:
    """Draw weights of convolutions as He et al. 2015 (their equation 10)."""
    _he(layer, "fan_in")


def he_fan_out(layer: nn.Module) -> None:
    """Draw weights of convolutions as He et al. 2015, their equation 14."""
    _he(layer, "fan_out")


def _he(layer: nn.Module, mode: Literal["fan_in", "fan_out"]) -> None:
    if isinstance(layer, nn.Conv2d):
        for weight in _single_maps(layer):
            nn.init.kaiming_normal_(weight, mode=mode, nonlinearity="relu")
        zero_bias(layer)


def zero_bias(layer: nn.Conv2d | LinearLayer) -> None:
    """Set a layer's biases to 0 if it has any."""
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _single_maps(layer: nn.Conv2d | LinearLayer) -> Iterable[Tensor]:
    """Give the weights of each group's own map: what is drawn by a layer's sizes looks at both sides of one."""
    if isinstance(layer, GroupedLinear):
        return layer.weight
    if isinstance(layer, ClassLinear):
        return layer.weight.split(layer.rows_of_groups)
    of_row: Tensor | None = getattr(layer, "group_of_row", None)
    if of_row is None:
        return [layer.weight]
    rows = of_row.unique_consecutive(return_counts=True)[1].tolist()
    return layer.weight.split(rows)
