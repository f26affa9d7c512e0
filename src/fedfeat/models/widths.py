"""Networks of fewer channels: which entries of every tensor belong to some of each layer's channels.

Everything that writes to a stream (`models.streams`) keeps the same of its channels, and what reads the stream reads
these. Inputs and logits stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from fedfeat.errors import ConfigError
from fedfeat.models.flow import Flow, Step
from fedfeat.models.network import Network
from fedfeat.models.streams import WEIGHTED, flow_of, is_depthwise

if TYPE_CHECKING:
    from fedfeat.types import Params


class Axis(NamedTuple):
    """What one dimension of a tensor counts.

    Attributes:
        width: Channels of its stream.
        repeat: Entries of each channel, which stand together: the pixels where a linear layer reads an image.
    """

    width: int
    repeat: int = 1

    def kept(self, rate: float, start: int) -> Tensor | None:
        """Give the entries of ``ceil(rate * width)`` channels from ``start mod width`` on; None for all, in order."""
        count = kept_channels(self.width, rate)
        if count == self.width:
            return None
        channels = (start + torch.arange(count)) % self.width
        return (channels[:, None] * self.repeat + torch.arange(self.repeat)).flatten()


Axes = dict[str, tuple[Axis | None, ...]]
"""For tensors by name what their first dimensions count, None where all of one is kept."""
Places = dict[str, tuple[Tensor | None, ...]]
"""For tensors by name the entries along their first dimensions, None for all of them."""


def kept_channels(width: int, rate: float) -> int:
    """Give ``ceil(rate * width)``; a product that is a whole number but for its rounding counts as this one."""
    return math.ceil(rate * width - 1e-9)


def axes_of(network: Network) -> Axes:
    """Find what the dimensions of a network's tensors count.

    Raises:
        ConfigError: A part of the network of which the channels are not known, or cannot be cut.
    """
    flow, paths = flow_of(network), {id(module): name for name, module in network.named_modules()}
    last = network.last_layer
    cut = {flow.stream(n) for n, s in enumerate(flow.steps) if s.kind == "weighted" and s.module is not last}
    _refuse_unknown(flow, cut)
    axes: Axes = {}
    for number, step in enumerate(flow.steps):
        if step.module is None or step.kind not in ("weighted", "depthwise", "norm"):
            continue
        out, read = (_axis(flow, value, step, cut) for value in (number, step.inputs[0]))
        dimensions = (out,) if step.kind != "weighted" else (out, read)
        for name, tensor in step.module.state_dict().items():
            axes[f"{paths[id(step.module)]}.{name}"] = dimensions[: tensor.dim()]
    return {key: dimensions for key, dimensions in axes.items() if any(dimensions)}


def _axis(flow: Flow, value: int, step: Step, cut: set[int]) -> Axis | None:
    width = flow.width(value)
    if flow.stream(value) not in cut or width is None:
        return None
    if isinstance(step.module, nn.Linear) and value in step.inputs:
        return Axis(width, step.module.in_features // width)
    # Behind flattening it has each channel's positions.
    if isinstance(step.module, nn.modules.batchnorm._NormBase):
        return Axis(width, step.module.num_features // width)
    return Axis(width)


def _refuse_unknown(flow: Flow, cut: set[int]) -> None:
    for number, step in enumerate(flow.steps):
        reads = any(flow.stream(value) in cut for value in step.inputs)
        layer = step.module
        is_known = step.kind != "opaque" or number == 0
        if not is_known and (reads or (layer is not None and any(True for _ in layer.parameters()))):
            raise _unfit(f"of {step.name} it is not known which of its numbers belong to which channel")
        if flow.stream(number) in cut and flow.is_fixed(number):
            raise _unfit(f"{step.name} is added to what has a fixed width")
        if flow.stream(number) in cut and flow.unit(number) > 1:
            raise _unfit(f"{step.name} is read by or written by groups of channels")
        if reads and isinstance(layer, nn.GroupNorm) and not layer.affine:
            raise _unfit(f"{step.name} has no tensor by which its channels could be cut")
        if reads and isinstance(layer, nn.Linear) and layer.in_features % (flow.width(step.inputs[0]) or 1):
            raise _unfit(f"{step.name} does not read whole channels")


def _unfit(why: str) -> ConfigError:
    return ConfigError.rule("structure", f"not be one of several widths for this network, as {why}", "widths")


def places(axes: Axes, rate: float, start: int = 0) -> Places:
    """Give where a network of some of the channels stands in the whole one.

    Args:
        axes: Those of the whole network.
        rate: Share of each layer's channels, rounded up.
        start: Each layer's first one, modulo its channels; they go on with channel 0 after the last.
    """
    found = {key: tuple(axis and axis.kept(rate, start) for axis in own) for key, own in axes.items()}
    return {key: own for key, own in found.items() if any(index is not None for index in own)}


def part_of(params: Params, where: Mapping[str, tuple[Tensor | None, ...]]) -> Params:
    """Take the entries of tensors that are at some places; those without places pass through."""
    return {key: _taken(tensor, where[key]) if key in where else tensor for key, tensor in params.items()}


def _taken(tensor: Tensor, index: tuple[Tensor | None, ...]) -> Tensor:
    for dim, own in enumerate(index):
        if own is not None:
            tensor = tensor.index_select(dim, own)
    return tensor


def narrowed(network: Network, axes: Axes, rate: float, scaler: bool = True) -> Network:
    """Give a network of the first of each layer's channels, with their weights.

    Args:
        network: The whole network; left as it is.
        axes: Its axes.
        rate: See `places`.
        scaler: Divide what layers give by ``rate``, see `Scaler`.

    Raises:
        ConfigError: Group norm whose groups do not divide the channels that are left.
    """
    small, scale = deepcopy(network), Scaler(rate)
    small.rate = rate
    for key, index in places(axes, rate).items():
        path, _, name = key.rpartition(".")
        layer = small.get_submodule(path)
        tensor = getattr(layer, name)
        own = _taken(tensor.detach(), index).clone()
        is_trained = isinstance(tensor, nn.Parameter)
        setattr(layer, name, nn.Parameter(own, tensor.requires_grad) if is_trained else own)
        _resize(layer, path, rate, len(own))
    continued = (is_depthwise(layer) or layer is network.last_layer for layer in network.modules())
    for layer, goes_on in zip(small.modules(), continued, strict=True):
        if scaler and isinstance(layer, WEIGHTED) and not goes_on:
            layer.register_forward_hook(scale)
    return small


def _resize(layer: nn.Module, path: str, rate: float, count: int) -> None:
    """Have a layer say the sizes that its tensors have; ``count`` is that of their rows."""
    if isinstance(layer, nn.Conv2d):
        layer.out_channels, layer.in_channels = layer.weight.shape[:2]
        if layer.groups > 1:
            layer.groups = layer.in_channels = layer.out_channels
    elif isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(layer, nn.GroupNorm):
        if count % layer.num_groups:
            rule = f"leave {path} channels that its {layer.num_groups} groups divide"
            raise ConfigError.rule("structure.levels", rule, f"{rate:g}, which leaves {count}")
        layer.num_channels = count
    elif isinstance(layer, nn.modules.batchnorm._NormBase):
        layer.num_features = count


class Scaler:
    """A forward hook that divides what a layer of a narrow network gives by the network's rate.

    Args:
        rate: The rate.

    Attributes:
        in_eval: Whether it does so in eval mode too, as weights that have been trained with it need it.
    """

    def __init__(self, rate: float) -> None:
        self.rate, self.in_eval = rate, True

    def __call__(self, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        """Give the layer's output in place of ``output``; None leaves it."""
        return output / self.rate if layer.training or self.in_eval else None


def scale_in_eval(network: nn.Module, is_on: bool) -> None:
    """Have a narrow network compute in eval mode as in training, or as the part of the whole one that it is."""
    hooks = chain.from_iterable(layer._forward_hooks.values() for layer in network.modules())
    for scaler in (hook for hook in hooks if isinstance(hook, Scaler)):
        scaler.in_eval = is_on
