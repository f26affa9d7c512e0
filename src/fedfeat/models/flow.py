"""What a network computes, operation by operation, and which of its values are streams of the same channels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import fx, nn

Kind = Literal["weighted", "depthwise", "norm", "alike", "joined", "opaque"]


class Step(NamedTuple):
    """One operation, whose output is the value of the same number.

    Attributes:
        kind: ``weighted`` begins a stream, ``depthwise``, ``norm`` and ``alike`` continue one, ``joined`` is of
            several; of what is ``opaque``, the network's input among it, nothing is known.
        inputs: Numbers of the values that it reads.
        module: The layer that computes it, if one does.
        node: Its place in the graph of the part that it is in, if that has one.
        name: Of the layer or function, for messages.
    """

    kind: Kind
    inputs: tuple[int, ...]
    module: nn.Module | None
    node: fx.Node | None
    name: str


class Part(NamedTuple):
    """One layer of a block, a residual block of several for example.

    Attributes:
        layer: The layer.
        source: Number of the value that it reads.
        steps: Numbers of what it computes.
        graph: How it computes it, where there are layers inside.
    """

    layer: nn.Module
    source: int
    steps: range
    graph: fx.Graph | None


@dataclass
class Flow:
    """What a network computes, in the order in which it does.

    Attributes:
        steps: All operations; the first one stands for the input.
        parts: The layers of all blocks.
    """

    steps: list[Step] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    _parent: list[int] = field(default_factory=list)
    _width: list[int | None] = field(default_factory=list)
    _unit: list[int] = field(default_factory=list)
    _fixed: list[bool] = field(default_factory=list)

    def stream(self, value: int) -> int:
        """Give the stream of a value: the number of the first value in it."""
        while self._parent[value] != value:
            value = self._parent[value]
        return value

    def width(self, value: int) -> int | None:
        """Give the channels of a value's stream; None where they are not known."""
        return self._width[self.stream(value)]

    def unit(self, value: int) -> int:
        """Give what a group's channels are a multiple of: those of one of a convolution's own groups (ResNeXt)."""
        return self._unit[self.stream(value)]

    def is_fixed(self, value: int) -> bool:
        """Whether something writes to a value's stream that cannot be widened."""
        return self._fixed[self.stream(value)]

    def add(self, step: Step, width: int | None = None) -> int:
        """Note an operation; its value begins a stream, or is of those of the values that it reads."""
        roots = {self.stream(value) for value in step.inputs}
        known = {self._width[root] for root in roots} - {None}
        if step.kind == "joined" and len(known) > 1:
            step = step._replace(kind="opaque")
        number = len(self.steps)
        self.steps.append(step)
        self._parent.append(number)
        self._width.append(width)
        self._fixed.append(step.kind == "opaque")
        self._unit.append(1)
        if step.kind not in ("weighted", "opaque"):
            self._join({number, *roots}, next(iter(known), None))
        if step.kind == "weighted" and isinstance(step.module, nn.Conv2d):
            conv = step.module
            self._widen_unit(number, conv.out_channels // conv.groups if conv.groups > 1 else 1)
            self._widen_unit(step.inputs[0], conv.in_channels // conv.groups if conv.groups > 1 else 1)
        return number

    def _join(self, roots: set[int], width: int | None) -> None:
        first = min(roots)
        self._width[first] = width
        self._fixed[first] = any(self._fixed[root] for root in roots)
        self._unit[first] = math.lcm(*(self._unit[root] for root in roots))
        for root in roots:
            self._parent[root] = first

    def _widen_unit(self, value: int, unit: int) -> None:
        root = self.stream(value)
        self._unit[root] = math.lcm(self._unit[root], unit)
