"""Structure adaptation of Psi-Net and Fed2 as a transform: any network becomes its group-separated form.

Layers 1..s stay shared; the later ones are split into G groups, each with its own channels, features and logits.
Where the papers leave a choice open, the option is here with the reading that is the default
(methods/fed2.md#open-choices).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from fedfeat.config.conditions import INTEGER, Count, UnitInterval, any_of, interval, one_of
from fedfeat.errors import ConfigError
from fedfeat.models.adapt import Adapter
from fedfeat.models.class_map import ClassMap, class_sets
from fedfeat.models.draws import draw_layers
from fedfeat.models.group_plan import numbered_layers
from fedfeat.models.grouped_layers import ClassSets, group_rows
from fedfeat.models.network import Block, Network
from fedfeat.models.shapes import output_shape

DEPTH = any_of(one_of("last6", "auto"), INTEGER, text="be last6, auto or a number of layers")
WIDTH_FACTOR = any_of(interval("(0, inf)"), one_of("match"), text="be above 0, or match")


class GroupedNetwork(Network):
    """A network whose upper layers are split into groups.

    Attributes:
        class_sets: The classes of each group, in the order of the groups. Two groups of different networks are a
            pair if these are equal, wherever they stand.
        num_shared: Layers in front of the groups; of a paired boundary the last of them is theirs too.
    """

    def __init__(
        self,
        encoder: Sequence[Block],
        head: Sequence[Block],
        input_shape: Sequence[int],
        num_classes: int,
        class_sets: ClassSets,
        num_shared: int,
    ) -> None:
        super().__init__(encoder, head, input_shape, num_classes)
        self.class_sets, self.num_shared = class_sets, num_shared

    def group_rows(self) -> dict[str, Tensor]:
        """Give, for every grouped tensor, the group of each entry of its first dimension."""
        return group_rows(self)


@dataclass(frozen=True)
class GroupSeparation:
    """How a network is separated into groups.

    Attributes:
        groups: G; None is one group per class.
        depth: Shared layers s; ``last6`` splits the last six, Fed2's default, and in networks of fewer than nine layers
            the last two thirds, rounded down, as six are of vgg9;
            ``auto`` chooses by total variance after a warm-up (methods/fed2.md#depth), before the network is built.
        layer_unit: What counts as a layer: a ``block`` of the network, or each ``conv`` and linear layer
            (methods/fed2.md#layer-unit).
        width_policy: Where G does not divide a width: ``nearest`` multiple (half up), ``ceil``, ``floor``, or
            ``uneven`` groups of the exact total (methods/fed2.md#widths).
        boundary: The first grouped layer reads its ``slice`` of the shared output, or all of it (``dense``;
            methods/fed2.md#boundary).
        boundary_pairing: Whose the last shared layer is under ``slice``: ``shared`` by everyone as those before it, or
            ``paired``: its slices, with norm and bias, belong to the groups that read them, are averaged and trimmed
            with them (methods/fed2.md#boundary).
        class_map: Which group learns which classes, see `class_map.class_sets` (methods/fed2.md#class-map).
        norm_shared: After shared convolutions: ``bn``, ``gn1`` (one group) or ``none`` (methods/fed2.md#normalisation).
        norm_group: After grouped convolutions: ``gn``, ``bn`` (an ablation of Fed2's Fig. 12) or ``none``; none of them
            crosses groups.
        warmup_epochs: Epochs of ``depth=auto``'s warm-up on the pooled data; the papers say at least 50.
        tau: Its threshold between smallest and largest total variance; the papers give none (methods/fed2.md#depth).
        width_factor: Factor on the widths of the grouped layers, or ``match``: the one that comes nearest to the
            parameters of the network as it was.
        separate: False keeps widths and norms but no separation: the ablation "FedAvg + GN".
        trim: Whether a client's network lacks the groups of classes that it does not hold (Psi-Net Eq. 6).
    """

    groups: Count | None = None
    depth: Annotated[int | Literal["last6", "auto"], DEPTH] = "last6"
    layer_unit: Literal["block", "conv"] = "block"
    width_policy: Literal["nearest", "ceil", "floor", "uneven"] = "nearest"
    boundary: Literal["slice", "dense"] = "slice"
    boundary_pairing: Literal["shared", "paired"] = "shared"
    class_map: ClassMap = "contiguous"
    norm_shared: Literal["bn", "gn1", "none"] = "bn"
    norm_group: Literal["gn", "bn", "none"] = "gn"
    warmup_epochs: Count = 10
    tau: UnitInterval = 0.5
    width_factor: Annotated[float | Literal["match"], WIDTH_FACTOR] = 1.0
    separate: bool = True
    trim: bool = False

    def __post_init__(self) -> None:
        if self.trim and self.width_policy == "uneven":
            rule = "be other than uneven with structure.trim=true"
            raise ConfigError.rule("structure.width_policy", rule, "uneven")
        if self.trim and not self.separate:
            raise ConfigError.rule("structure.trim", "be false with structure.separate=false", True)
        unpaired = {
            "boundary=dense": self.boundary == "dense",
            "separate=false": not self.separate,
            "norm_shared=gn1, which mixes the slices": self.norm_shared == "gn1",
        }
        other = next((setting for setting, holds in unpaired.items() if holds), None)
        if self.boundary_pairing == "paired" and other:
            rule = f"be shared with structure.{other}"
            raise ConfigError.rule("structure.boundary_pairing", rule, "paired")

    def sets(self, network: Network, class_names: Sequence[str] = (), seed: int = 0) -> ClassSets:
        """Give the classes of each group of a network's grouped form."""
        return class_sets(self.class_map, self.groups, network.num_classes, class_names, seed)

    def num_shared(self, network: Network) -> int:
        """Give s, the layers of a network that stay shared.

        Raises:
            ConfigError: The depth is not between 0 (1 under ``slice``) and one less than the number of layers.
        """
        layers = 1 + max(number for _, number in numbered_layers(network, self.layer_unit))
        if self.depth == "auto":
            raise ValueError("depth=auto must be replaced by a number before the network is built.")
        least = 1 if self.boundary == "slice" else 0
        depth = layers - max(1, min(6, 2 * layers // 3)) if self.depth == "last6" else self.depth
        if layers <= least:
            raise ConfigError(
                f"structure must separate a network of at least {least + 1} layers, but this one has {layers}."
            )
        if not least <= depth < layers:
            rule = f"be between {least} and {layers - 1} for this network of {layers} layers"
            raise ConfigError.rule("structure.depth", rule, depth)
        return depth

    def __call__(self, network: Network, sets: ClassSets, kept: ClassSets | None = None) -> Network:
        """Build the group-separated form of a network, newly initialised.

        Args:
            network: Any network of ordered blocks; it stays as it is.
            sets: The classes of each group.
            kept: The groups that are built, in this order; None is all of them.
        """
        if self.width_factor == "match":
            return self.matched(network, sets)(network, sets, kept)
        adapter = Adapter(self, network, sets, sets if kept is None else kept)
        encoder, head = adapter.build()
        shape = (network.input_shape, network.num_classes)
        if self.separate:
            built: Network = GroupedNetwork(encoder, head, *shape, adapter.kept, adapter.num_shared)
        else:
            built = Network(encoder, head, *shape)
        built.draw = network.draw
        for layer in adapter.new:
            draw_layers(layer, built.draw)
        if kept is None and self.norm_group == "gn":
            _refuse_norms_of_one(built, len(sets))
        return built

    def matched(self, network: Network, sets: ClassSets) -> "GroupSeparation":
        """Replace ``width_factor=match`` by the factor, found by bisection: parameters grow with it.

        Args:
            network: The network as it was; on the meta device this costs least.
            sets: The classes of each group.
        """
        if self.width_factor != "match":
            return self
        wanted = sum(p.numel() for p in network.parameters())
        # With widths times f a grouped layer has f * f / G of its weights, one that reads shared features f / G: f = G
        # brings them all back, up to rounding.
        low, high = 0.05, 2.0 * len(sets)
        size = partial(self._size, network, sets)
        with torch.device("meta"):
            for _ in range(30):
                middle = (low + high) / 2
                low, high = (middle, high) if size(middle) < wanted else (low, middle)
            nearest = min((low, high), key=lambda factor: abs(size(factor) - wanted))
        return replace(self, width_factor=nearest)

    def _size(self, network: Network, sets: ClassSets, factor: float) -> float:
        try:
            built = replace(self, width_factor=factor)(network, sets)
        except ConfigError:
            # Too narrow; what is refused at every width is refused when the network is built.
            return -math.inf
        return sum(p.numel() for p in built.parameters())


def refuse_groups(network: nn.Module, reason: str) -> None:
    """Refuse groups where a method has no use for them; the sentence goes on with the reason.

    Raises:
        ConfigError: The network is separated into groups.
    """
    if isinstance(network, GroupedNetwork):
        raise ConfigError.rule("structure", f"be none {reason}", "grouped")


def _refuse_norms_of_one(network: Network, num_groups: int) -> None:
    """Refuse group norms whose groups are a single number, of which nothing is left."""
    single: list[str] = []

    def look(norm: nn.GroupNorm, inputs: tuple[Tensor], *, name: str) -> None:
        if inputs[0][0].numel() == norm.num_groups:
            single.append(name)

    hooks = [
        part.register_forward_pre_hook(partial(look, name=name))
        for name, part in network.named_modules()
        if isinstance(part, nn.GroupNorm) and part.num_groups == part.num_channels
    ]
    if hooks:
        output_shape(network, network.input_shape)
    for hook in hooks:
        hook.remove()
    if single:
        rule = f"leave a group more than one number at {single[0]}, as a norm of one leaves nothing of it"
        raise ConfigError.rule("structure.groups", rule, num_groups)
