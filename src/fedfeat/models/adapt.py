"""The walk over a network's layers that makes its group-separated form."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import fx, nn

from fedfeat.errors import ConfigError
from fedfeat.models import grouped_layers as layers
from fedfeat.models.blocks import named_layers
from fedfeat.models.flow import Part
from fedfeat.models.group_plan import plan_at_depth
from fedfeat.models.grouped_conv import GroupedConv2d, like_conv, own_groups
from fedfeat.models.network import Block, Network
from fedfeat.models.streams import REPLACED_NORMS, flow_of, is_depthwise, with_layers

if TYPE_CHECKING:
    from fedfeat.models.grouped import GroupSeparation
    from fedfeat.models.grouped_layers import ClassSets

Named = list[tuple[str, nn.Module]]
PLAIN = (nn.Conv2d, GroupedConv2d, nn.Linear)
"""Layers that a new one of another size can stand for."""
OWN = "own_groups"
"""Name of the layer that takes the kept groups' part of the shared features."""


class Adapter:
    """One walk from input to logits.

    Args:
        spec: How the network is separated.
        network: The network as it was.
        sets: The classes of all groups.
        kept: Those of the groups that are built, in this order.

    Attributes:
        new: The convolutions and linear layers that it has made, first to last; others keep their weights.
    """

    def __init__(self, spec: GroupSeparation, network: Network, sets: ClassSets, kept: ClassSets) -> None:
        norms = [module for module in network.modules() if isinstance(module, REPLACED_NORMS)]
        needs_biases = bool(norms) and "none" in (spec.norm_shared, spec.norm_group)
        self.spec, self.network, self.kept = spec, deepcopy(network) if needs_biases else network, kept
        self.new: list[nn.Module] = []
        self.places = [sets.index(classes) for classes in kept]
        self.is_whole = self.places == list(range(len(sets)))
        self.flow = flow_of(self.network)
        self.plan, self.num_shared = plan_at_depth(spec, self.network, self.flow, len(sets))
        if needs_biases:
            self._add_biases()
        self.batch_norm = next((norm for norm in norms if isinstance(norm, nn.BatchNorm2d)), None)
        self.number_of = {
            id(step.module): number for number, step in enumerate(self.flow.steps) if step.module
        }

    def build(self) -> tuple[list[Block], list[Block]]:
        """Give the blocks of encoder and head, newly initialised."""
        parts = iter(self.flow.parts)
        built: list[list[Block]] = []
        for half in (self.network.encoder, self.network.head):
            built.append([])
            for block_name, block in half.named_children():
                named = [self._part(name, next(parts)) for name, _ in block.named_children()]
                built[-1].append((block_name, named_layers([one for several in named for one in several])))
        return built[0], built[1]

    def _add_biases(self) -> None:
        """Give a bias to convolutions that had none because of a norm, where no norm is any more."""
        for number, step in enumerate(self.flow.steps):
            conv = step.module
            if isinstance(conv, nn.Conv2d) and conv.bias is None and self._norm_kind(number) == "none":
                conv.bias = nn.Parameter(conv.weight.new_zeros(conv.out_channels))

    def _part(self, name: str, part: Part) -> Named:
        layer = part.layer
        if isinstance(layer, REPLACED_NORMS):
            return []  # every convolution gets the norm of its part instead
        if part.graph is not None:
            return self._composite(name, part)
        if not isinstance(layer, nn.Conv2d | nn.Linear):
            return [(name, deepcopy(layer))]
        number = part.steps[0]
        entry = self._take(part.source, number) if (part.source, number) in self.plan.cuts else None
        built = self._layer(layer, number)
        norm = self._norm(number, layer.out_channels) if isinstance(layer, nn.Conv2d) else None
        norm_name = name.replace("conv", "norm") if "conv" in name else f"{name}_norm"
        return _present((OWN, entry), (name, built), (norm_name, norm))

    def _layer(self, layer: nn.Conv2d | nn.Linear, number: int) -> nn.Module:
        self.new.append(self._made(layer, number))
        return self.new[-1]

    def _made(self, layer: nn.Conv2d | nn.Linear, number: int) -> nn.Module:
        """Build the new form of a convolution or a linear layer."""
        if type(layer) not in PLAIN:
            rule = "separate plain convolutions and linear layers, but this network has a"
            raise ConfigError(f"structure must {rule} {type(layer).__name__}, whose own ways would be lost.")
        has_bias = layer.bias is not None
        reads, writes = self._sizes(layer, number)
        if self._is_slice(number):
            return layers.owned(self._ungrouped(layer, reads, writes), writes)
        if not (self.plan.grouped[number] and self.spec.separate):
            return self._ungrouped(layer, reads, writes)
        if isinstance(layer, nn.Conv2d):
            if is_depthwise(layer):
                return layers.depthwise_conv(layer, writes)
            if self._reads_all(number):
                return layers.fan_out_conv(layer, sum(reads), writes)
            return layers.grouped_conv(layer, reads, writes)
        if self._reads_all(number):
            reads = [sum(reads)]
        if layer is self.network.last_layer:
            last = layers.ClassLinear(self.kept, reads, layer.out_features, has_bias)
            return layers.owned(last, [len(classes) for classes in self.kept])
        if self._reads_all(number):
            return layers.fan_out_linear(reads[0], writes, has_bias)
        return layers.grouped_linear(reads, writes, has_bias)

    def _ungrouped(
        self, layer: nn.Conv2d | nn.Linear, reads: Sequence[int], writes: Sequence[int]
    ) -> nn.Module:
        n_in, n_out = sum(reads), sum(writes)
        if isinstance(layer, nn.Linear):
            return nn.Linear(n_in, n_out, layer.bias is not None)
        return like_conv(layer, n_in, n_out, own_groups(layer, n_in, n_out))

    def _is_slice(self, value: int) -> bool:
        """Whether a shared value's channels belong to groups, as those of a paired boundary do."""
        return self.plan.owned[value] and not self.plan.grouped[value]

    def _sizes(self, layer: nn.Conv2d | nn.Linear, number: int) -> tuple[list[int], list[int]]:
        """Give what a layer reads and writes, of each group or in one where there are none."""
        source = self.flow.steps[number].inputs[0]
        widths = self._widths(source, kept=self.plan.grouped[number] and not self._reads_all(number))
        if isinstance(layer, nn.Conv2d):
            return widths or [layer.in_channels], self._widths(number) or [layer.out_channels]
        reads = [self._pixels(number) * width for width in widths] or [layer.in_features]
        return reads, [layer.out_features] if layer is self.network.last_layer else self._widths(number)

    def _reads_all(self, number: int) -> bool:
        source = self.flow.steps[number].inputs[0]
        return (source, number) not in self.plan.cuts and not self.plan.grouped[source]

    def _pixels(self, number: int) -> int:
        """Give by how much flattening has multiplied the channels that a step reads."""
        step = self.flow.steps[number]
        width = self.flow.width(step.inputs[0])
        return step.module.in_features // width if isinstance(step.module, nn.Linear) and width else 1

    def _widths(self, value: int, kept: bool = False) -> list[int]:
        """Give a value's channels: of the kept groups, of all, or their number where it is not cut; none if unknown."""
        widths = self.plan.widths.get(self.flow.stream(value))
        if widths is None:
            return [width] if (width := self.flow.width(value)) else []
        return [widths[place] for place in self.places] if kept or self.plan.owned[value] else widths

    def _take(self, value: int, number: int) -> nn.Module | None:
        """Give what takes the kept groups' part of a shared value for a step; None where that is all of it."""
        if self.is_whole or self.plan.owned[value]:
            return None
        widths = [self._pixels(number) * width for width in self._widths(value)]
        starts = [0, *accumulate(widths)]
        index = [torch.arange(starts[place], starts[place] + widths[place]) for place in self.places]
        return layers.TakeChannels(torch.cat(index))

    def _norm(self, value: int, width: int) -> nn.Module | None:
        """Give the norm of a value, which had some width if none is known."""
        widths = self._widths(value) or [width]
        kind = self._norm_kind(value)
        if kind == "none":
            return None
        if kind == "gn":
            return layers.grouped_norm(widths)
        total = sum(widths)
        norm = nn.GroupNorm(1, total) if kind == "gn1" else _like_batch_norm(self.batch_norm, total)
        is_owned = self.plan.grouped[value] or self._is_slice(value)
        return layers.owned(norm, widths) if is_owned else norm

    def _norm_kind(self, value: int) -> str:
        return self.spec.norm_group if self.plan.grouped[value] else self.spec.norm_shared

    def _composite(self, name: str, part: Part) -> Named:
        """Adapt the layers inside of a layer; ungrouped ones whose sizes stay are as they were."""
        new = deepcopy(part.layer)
        for path, module in part.layer.named_modules():
            number = self.number_of.get(id(module))
            if number is None:
                continue
            if isinstance(module, REPLACED_NORMS):
                width = module.num_channels if isinstance(module, nn.GroupNorm) else module.num_features
                norm = self._norm(self.flow.steps[number].inputs[0], width)
                new.set_submodule(path, norm or nn.Identity())
            elif isinstance(module, nn.Conv2d | nn.Linear):
                if not self._stays(module, number):
                    new.set_submodule(path, self._layer(module, number))
                elif self._is_slice(number):
                    layers.owned(new.get_submodule(path), self._widths(number))
        cuts = [cut for cut in self.plan.cuts if cut[1] in part.steps]
        takes = {cut: take for cut in cuts if (take := self._take(*cut)) is not None}
        readers = {number for number in part.steps if part.source in self.flow.steps[number].inputs}
        if set(takes) == {(part.source, number) for number in readers}:
            return _present((OWN, next(iter(takes.values()))), (name, new))
        if takes:
            assert part.graph is not None
            nodes = [(self._node(part, value), self._node(part, number)) for value, number in takes]
            between = [(*pair, take) for pair, take in zip(nodes, takes.values(), strict=True)]
            return [(name, with_layers(new, part.graph, OWN, between))]
        return [(name, new)]

    def _node(self, part: Part, value: int) -> fx.Node | None:
        return self.flow.steps[value].node if value in part.steps else None

    def _stays(self, layer: nn.Conv2d | nn.Linear, number: int) -> bool:
        sizes = tuple(map(sum, self._sizes(layer, number)))
        is_apart = self.plan.grouped[number] and self.spec.separate
        if isinstance(layer, nn.Conv2d):
            return not is_apart and sizes == (layer.in_channels, layer.out_channels)
        return not is_apart and sizes == (layer.in_features, layer.out_features)


def _like_batch_norm(norm: nn.BatchNorm2d | None, width: int) -> nn.BatchNorm2d:
    """Build a batch norm with the constants of one that the network had; the framework's where it had none."""
    if norm is None:
        return nn.BatchNorm2d(width)
    return nn.BatchNorm2d(width, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)


def _present(*named: tuple[str, nn.Module | None]) -> Named:
    return [(name, module) for name, module in named if module is not None]
