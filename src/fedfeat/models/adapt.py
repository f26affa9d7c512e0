"""The walk over a network's layers that makes its group-separated form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedfeat.errors import ConfigError
from fedfeat.models import grouped_layers as layers
from fedfeat.models.blocks import named_layers
from fedfeat.models.network import Block, Network, output_shape

if TYPE_CHECKING:
    from fedfeat.models.grouped import GroupSeparation
    from fedfeat.models.grouped_layers import ClassSets

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm)
Named = list[tuple[str, nn.Module]]
OWN = "own_groups"
"""Name of the layer that takes the kept groups' part of the shared features."""


def numbered_layers(network: Network, unit: str) -> Iterator[tuple[nn.Module, int]]:
    """Give every convolution and linear layer with the number, from 0, of the layer of the paper that it belongs to.

    Args:
        network: The network.
        unit: ``block`` numbers the blocks that have weights, ``conv`` the convolutions and linear layers.
    """
    number = -1
    for _, block in network.blocks():
        weighted = [m for m in block.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        number += unit == "block" and bool(weighted)
        for module in weighted:
            number += unit == "conv"
            yield module, number


class Adapter:
    """One walk from input to logits.

    Args:
        spec: How the network is separated.
        network: The network as it was.
        sets: The classes of all groups.
        kept: Those of the groups that are built, in this order.
    """

    def __init__(self, spec: GroupSeparation, network: Network, sets: ClassSets, kept: ClassSets) -> None:
        self.spec, self.network, self.kept = spec, network, kept
        self.num_groups = len(sets)
        self.places = [sets.index(classes) for classes in kept]
        self.num_shared = spec.num_shared(network)
        numbered = list(numbered_layers(network, spec.layer_unit))
        self.shared = {id(module) for module, n in numbered if n < self.num_shared}
        # The layer that sets the width at the entry; depthwise layers keep that of their input.
        setting = [m for m, n in numbered if n < self.num_shared and not _is_depthwise(m)]
        self.last_shared = setting[-1] if setting else None
        # Channels (or features) of each group here; of all groups up to the entry, then of the kept ones.
        self.widths: list[int] = []
        self.entered = False
        self.shape = network.input_shape

    def build(self) -> tuple[list[Block], list[Block]]:
        """Give the blocks of encoder and head, newly initialised."""
        encoder = [self._block(name, block) for name, block in self.network.encoder.named_children()]
        return encoder, [self._block(name, block) for name, block in self.network.head.named_children()]

    def _block(self, name: str, block: nn.Module) -> Block:
        built: Named = []
        for layer_name, layer in block.named_children():
            for new_name, new in self._layer(layer_name, layer):
                built.append((new_name, new))
                self.shape = output_shape(new.eval(), self.shape)
                new.train()
        return name, named_layers(built)

    def _layer(self, name: str, layer: nn.Module) -> Named:
        if isinstance(layer, _NORMS):
            return []  # every convolution gets the norm of its part instead
        if isinstance(layer, nn.Conv2d):
            entry, conv = self._conv(layer)
            norm_name = name.replace("conv", "norm") if "conv" in name else f"{name}_norm"
            return _present((OWN, entry), (name, conv), (norm_name, self._norm(_width(conv))))
        if isinstance(layer, nn.Linear):
            entry, linear = self._linear(layer)
            return _present((OWN, entry), (name, linear))
        if any(isinstance(m, nn.Conv2d) for m in layer.modules()):
            entry, residual = self._residual(layer)
            return _present((OWN, entry), (name, residual))
        return [(name, deepcopy(layer))]

    def _conv(self, conv: nn.Conv2d) -> tuple[nn.Module | None, nn.Module]:
        n_in = self.shape[0]
        depthwise = _is_depthwise(conv)
        # A depthwise layer in front of the first dense boundary serves all groups, so it is shared too.
        waits = depthwise and not self.entered and self.spec.boundary == "dense"
        if id(conv) in self.shared or waits:
            width = n_in if depthwise else self._shared_width(conv, conv.out_channels)
            return None, self._at_boundary(layers.like_conv(conv, n_in, width, n_in if depthwise else 1))
        entry, widths_in = self._enter()
        if not depthwise:
            self.widths = self._own_widths(conv.out_channels)
        if not self.spec.separate:
            return None, layers.like_conv(conv, n_in, sum(self.widths), n_in if depthwise else 1)
        if depthwise:
            return entry, layers.depthwise_conv(conv, self.widths)
        if not widths_in:
            return None, layers.fan_out_conv(conv, n_in, self.widths)
        return entry, layers.grouped_conv(conv, widths_in, self.widths)

    def _linear(self, linear: nn.Linear) -> tuple[nn.Module | None, nn.Module]:
        features = math.prod(self.shape)
        if id(linear) in self.shared:
            return None, self._at_boundary(
                nn.Linear(features, self._shared_width(linear, linear.out_features))
            )
        entry, widths_in = self._enter()
        if linear is self.network.last_layer:
            if not self.spec.separate:
                return None, nn.Linear(features, linear.out_features)
            last = layers.ClassLinear(self.kept, widths_in or [features], self.network.num_classes)
            return entry, layers.owned(last, [len(classes) for classes in self.kept])
        self.widths = self._own_widths(linear.out_features)
        if not self.spec.separate:
            return None, nn.Linear(features, sum(self.widths))
        if not widths_in:
            return None, layers.fan_out_linear(features, self.widths)
        return entry, layers.grouped_linear(widths_in, self.widths)

    def _enter(self) -> tuple[nn.Module | None, list[int]]:
        """Give what must stand in front of a grouped layer, and each group's inputs (none where all read all)."""
        at_entry, self.entered = not self.entered, True
        if at_entry and self.spec.boundary == "dense":
            return None, []
        # Flattening multiplies every group's channels by the pixels.
        widths = [width * self.shape[0] // sum(self.widths) for width in self.widths]
        if not at_entry or self.spec.boundary_pairing == "paired":
            return None, widths
        own = [widths[place] for place in self.places]
        self.widths = [self.widths[place] for place in self.places]
        if self.places == list(range(self.num_groups)):
            return None, own
        starts = [0, *accumulate(widths)]
        index = [torch.arange(starts[place], starts[place] + widths[place]) for place in self.places]
        return layers.TakeChannels(torch.cat(index)), own

    def _norm(self, width: int) -> nn.Module | None:
        """Give the norm behind the convolution that was just built."""
        if not self.entered:
            norm = self.spec.norm_shared
            return None if norm == "none" else self._at_boundary(_shared_norm(norm, width))
        if self.spec.norm_group == "bn":
            return layers.owned(nn.BatchNorm2d(sum(self.widths)), self.widths)
        return None if self.spec.norm_group == "none" else layers.grouped_norm(self.widths)

    def _shared_width(self, layer: nn.Module, width: int) -> int:
        """Give the width of a shared layer: the last one in front of slices is cut into G equal parts."""
        if layer is not self.last_shared or self.spec.boundary == "dense":
            return width
        self.widths = self._split(width)
        if self.spec.boundary_pairing == "paired":
            self.widths = [self.widths[place] for place in self.places]
        return sum(self.widths)

    def _at_boundary(self, layer: nn.Module) -> nn.Module:
        """Note whose slices a shared layer has, from the last one that is cut into them on."""
        is_cut = self.spec.boundary_pairing == "paired" and self.widths
        return layers.owned(layer, self.widths) if is_cut else layer

    def _own_widths(self, width: int) -> list[int]:
        widths = self._split(max(round(width * float(self.spec.width_factor)), 1))
        return [widths[place] for place in self.places]

    def _split(self, width: int) -> list[int]:
        """Give the width of each group (methods.md#fed2-widths)."""
        groups, policy = self.num_groups, self.spec.width_policy
        if policy == "uneven":
            if width < groups:
                rule = f"be at most the width of every grouped layer, and one has {width}"
                raise ConfigError.rule("structure.groups", rule, groups)
            return [width // groups + (g < width % groups) for g in range(groups)]
        share = {"nearest": math.floor(width / groups + 0.5), "ceil": -(-width // groups)}
        return [max(share.get(policy, width // groups), 1)] * groups

    def _residual(self, layer: nn.Module) -> tuple[nn.Module | None, nn.Module]:
        """Adapt a residual block, whose sum needs equal widths on both sides, where G divides them all."""
        convs = {name: m for name, m in layer.named_modules() if isinstance(m, nn.Conv2d)}
        new, is_shared = deepcopy(layer), all(id(conv) in self.shared for conv in convs.values())
        ends_shared = any(conv is self.last_shared for conv in convs.values())
        entry = None
        if not is_shared or (ends_shared and self.spec.boundary == "slice"):
            self._require_even(convs)
        if ends_shared and self.spec.boundary_pairing == "paired":
            # What its sum adds are channels of the layers before it, which serve everyone.
            rule = "be shared where the last shared layer is in a residual block"
            raise ConfigError.rule("structure.boundary_pairing", rule, "paired")
        if ends_shared:
            self.widths = self._split(output_shape(new.eval(), self.shape)[0])
        if not is_shared:
            entry, _ = self._enter()
        part = len(self.kept) if self.spec.separate else self.num_groups
        for name, module in layer.named_modules():
            if isinstance(module, nn.Conv2d) and not is_shared and self.spec.separate:
                widths = [[c // self.num_groups] * part for c in (module.in_channels, module.out_channels)]
                new.set_submodule(name, layers.grouped_conv(module, *widths))
            elif isinstance(module, _NORMS):
                channels = module.num_channels if isinstance(module, nn.GroupNorm) else module.num_features
                self.widths = self.widths if is_shared else [channels // self.num_groups] * part
                new.set_submodule(name, self._norm(channels) or nn.Identity())
        return entry, new

    def _require_even(self, convs: dict[str, nn.Conv2d]) -> None:
        sizes = {c for conv in convs.values() for c in (conv.in_channels, conv.out_channels)}
        sizes |= {conv.groups for conv in convs.values() if conv.groups > 1}
        if any(size % self.num_groups for size in sizes):
            rule = f"divide the widths {sorted(sizes)} of a residual block, which cannot be rounded"
            raise ConfigError.rule("structure.groups", rule, self.num_groups)
        if self.spec.boundary == "dense" and not self.entered:
            raise ConfigError.rule("structure.boundary", "be slice in front of a residual block", "dense")
        if self.spec.width_factor != 1:
            raise ConfigError.rule(
                "structure.width_factor", "be 1 with residual blocks", self.spec.width_factor
            )


def _shared_norm(norm: str, width: int) -> nn.Module:
    return nn.BatchNorm2d(width) if norm == "bn" else nn.GroupNorm(1, width)


def _is_depthwise(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels > 1


def _width(conv: nn.Module) -> int:
    return conv.out_channels if isinstance(conv, nn.Conv2d) else 0


def _present(*named: tuple[str, nn.Module | None]) -> Named:
    return [(name, module) for name, module in named if module is not None]
