"""One model of many, whose tensors are stacked along a first axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fedfeat.types import Params


class Row(dict[str, Tensor]):
    """One model of many: its tensors (*), which are views of stacks (K, *).

    Attributes:
        stack: The stacks, under the same names and perhaps more.
        index: Which of the K it is.
        num_bytes: Of its tensors.
    """

    def __init__(
        self, tensors: Iterable[tuple[str, Tensor]], stack: Params, index: int, num_bytes: int
    ) -> None:
        super().__init__(tensors)
        self.stack, self.index, self.num_bytes = stack, index, num_bytes


def rows(stack: Params) -> list[Row]:
    """Give every model of a stack (K, *), as views."""
    each = zip(*[tensor.unbind() for tensor in stack.values()], strict=True)
    num_bytes = sum(tensor.nbytes // max(len(tensor), 1) for tensor in stack.values())
    return [Row(zip(stack, views, strict=True), stack, index, num_bytes) for index, views in enumerate(each)]
