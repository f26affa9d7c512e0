"""Which values of a network belong to groups, where shared ones are cut into slices, and the widths of each group."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from fedfeat.errors import ConfigError
from fedfeat.models.flow import Flow, Step
from fedfeat.models.network import Network
from fedfeat.models.streams import WEIGHTED

if TYPE_CHECKING:
    from fedfeat.models.grouped import GroupSeparation


class Unfit(Exception):
    """A boundary that cannot be where it is asked for; the message says why."""


@dataclass(frozen=True)
class GroupPlan:
    """What becomes of a network's values.

    Attributes:
        grouped: Whether each of them is behind the boundary.
        owned: Whether its channels belong to groups: of a paired boundary, those of the slices in front of it do too.
        cuts: (value, step) wherever a grouped step reads slices of a shared value.
        widths: Channels of each group, of all streams that are cut into groups, by stream.
    """

    grouped: tuple[bool, ...]
    owned: tuple[bool, ...]
    cuts: tuple[tuple[int, int], ...]
    widths: dict[int, list[int]]


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


def plan_at_depth(
    spec: GroupSeparation, network: Network, flow: Flow, num_groups: int
) -> tuple[GroupPlan, int]:
    """Give the plan for the depth that is asked for with that depth, or say which depths there can be.

    Args:
        spec: How the network is separated.
        network: The network as it was.
        flow: What it computes.
        num_groups: G.

    Raises:
        ConfigError: Some depth, or any, would split what cannot be cut.
    """
    numbered = list(numbered_layers(network, spec.layer_unit))
    depth, last = spec.num_shared(network), network.last_layer

    def plan(depth: int) -> GroupPlan:
        shared = {id(module) for module, number in numbered if number < depth}
        return plan_groups(spec, flow, shared, last, num_groups)

    def fits(depth: int) -> bool:
        try:
            plan(depth)
        except Unfit:
            return False
        return True

    try:
        return plan(depth), depth
    except Unfit as error:
        least = 0 if spec.boundary == "dense" else 1
        others = [str(n) for n in range(least, numbered[-1][1] + 1) if fits(n)]
        if not others:
            raise ConfigError(f"structure cannot separate this network at any depth: {error}.") from None
        one_of = "one of " if len(others) > 1 else ""
        rule = f"be {one_of}{', '.join(others)} for this network (elsewhere {error})"
        raise ConfigError.rule("structure.depth", rule, depth) from None


def plan_groups(
    spec: GroupSeparation, flow: Flow, shared: Collection[int], last: nn.Module, num_groups: int
) -> GroupPlan:
    """Decide what is cut into groups so that no group reads of another.

    Args:
        spec: How the network is separated.
        flow: What the network computes.
        shared: Ids of the layers that stay shared.
        last: The layer that gives the logits, whose outputs are the classes.
        num_groups: G.

    Raises:
        Unfit: The boundary would go through something that cannot be cut.
    """
    grouped = _grouped(spec, flow, shared)
    cuts = [
        (value, number)
        for number, step in enumerate(flow.steps)
        for value in step.inputs
        if grouped[number]
        and not grouped[value]
        and not (step.kind == "weighted" and spec.boundary == "dense")
    ]
    own = [n for n, step in enumerate(flow.steps) if step.kind == "weighted" and step.module is not last]
    for value, number in cuts:
        if flow.is_fixed(value):
            raise Unfit(f"{flow.steps[number].name} would read slices of what has a fixed width")
    # In front of the groups a layer keeps its width, up to what can be cut; so does all that its outputs are added to.
    kept = {flow.stream(n) for n in own if not grouped[n]}
    widths: dict[int, list[int]] = {}
    for value in [*(value for value, _ in cuts), *(n for n in own if grouped[n])]:
        stream, width = flow.stream(value), flow.width(value)
        if flow.is_fixed(value) or width is None:
            raise Unfit(f"{flow.steps[value].name} would be added to what has a fixed width")
        factor = 1.0 if stream in kept else float(spec.width_factor)
        scaled = max(round(width * factor), 1)
        widths[stream] = split_width(scaled, num_groups, spec.width_policy, flow.unit(value))
    is_paired = spec.boundary_pairing == "paired"
    owned = [grouped[n] or (is_paired and flow.stream(n) in widths) for n in range(len(grouped))]
    for number, step in enumerate(flow.steps):
        if step.kind == "weighted" and not grouped[number] and owned[step.inputs[0]]:
            rule = f"be shared where {step.name}, which everyone shares, reads what is cut into slices"
            raise ConfigError.rule("structure.boundary_pairing", rule, "paired")
    return GroupPlan(tuple(grouped), tuple(owned), tuple(cuts), widths)


def _grouped(spec: GroupSeparation, flow: Flow, shared: Collection[int]) -> list[bool]:
    grouped: list[bool] = []
    for step in flow.steps:
        behind = any(grouped[value] for value in step.inputs)
        grouped.append(_is_grouped(step, behind, spec.boundary == "dense", shared))
    for part in flow.parts:
        opaque = next((flow.steps[n] for n in part.steps if flow.steps[n].kind == "opaque"), None)
        if opaque is not None and any(grouped[n] for n in part.steps):
            raise Unfit(f"{opaque.name} might mix groups")
    return grouped


def _is_grouped(step: Step, behind: bool, is_dense: bool, shared: Collection[int]) -> bool:
    layer = step.module
    if step.kind in ("weighted", "depthwise"):
        if id(layer) in shared:
            if behind:
                raise Unfit(f"{step.name} would be shared and read groups")
            return False
        # A depthwise layer in front of the first dense boundary serves all groups, so it is shared too.
        return behind or step.kind == "weighted" or not is_dense
    if step.kind == "opaque":
        inside = () if layer is None else layer.modules()
        return behind or any(isinstance(m, WEIGHTED) and id(m) not in shared for m in inside)
    return behind


def split_width(width: int, groups: int, policy: str, unit: int = 1) -> list[int]:
    """Give the width of each group (methods/fed2.md#widths).

    Args:
        width: Of the network as it was.
        groups: G.
        policy: ``nearest`` multiple of G (half up), ``ceil``, ``floor``, or ``uneven`` parts of the total.
        unit: Every group's width is a multiple of it.
    """
    if policy == "uneven":
        units = width // unit
        if units < groups:
            rule = f"be at most {units} with structure.width_policy=uneven, as a grouped layer has {width} channels"
            raise ConfigError.rule("structure.groups", rule, groups)
        return [(units // groups + (g < units % groups)) * unit for g in range(groups)]
    whole = groups * unit
    share = {"nearest": math.floor(width / whole + 0.5), "ceil": -(-width // whole)}
    return [max(share.get(policy, width // whole), 1) * unit] * groups
