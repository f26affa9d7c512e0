"""One model of many, whose tensors are stacked along a first axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fedfeat.types import Params


class Row(dict[str, Tensor]):
    """One model of many: its tensors (*), which are views of stacks (K, *).

    With another tensor, or one less, it is a dictionary like any other: what a method puts into a payload counts.

    Attributes:
        stack: The stacks, under the same names and perhaps more; None once it has been changed.
        index: Which of the K it is.
        num_bytes: Of its tensors; None once it has been changed.
    """

    def __init__(
        self, tensors: Iterable[tuple[str, Tensor]], stack: Params | None, index: int, num_bytes: int
    ) -> None:
        super().__init__(tensors)
        self.stack, self.index = stack, index
        self.num_bytes: int | None = num_bytes

    def _leave(self) -> None:
        self.stack = self.num_bytes = None

    def __setitem__(self, key: str, value: Tensor) -> None:
        self._leave()
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._leave()
        super().__delitem__(key)

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]
        self._leave()
        return super().__ior__(other)

    def update(self, *others: Any, **more: Tensor) -> None:
        """As that of a dictionary."""
        self._leave()
        super().update(*others, **more)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """As that of a dictionary."""
        self._leave()
        return super().setdefault(key, default)

    def pop(self, *arguments: Any) -> Any:
        """As that of a dictionary."""
        self._leave()
        return super().pop(*arguments)

    def popitem(self) -> tuple[str, Tensor]:
        """As that of a dictionary."""
        self._leave()
        return super().popitem()

    def clear(self) -> None:
        """As that of a dictionary."""
        self._leave()
        super().clear()


def as_row(params: Params) -> Row | None:
    """Give tensors as a row of a stack, where they are one still."""
    return params if isinstance(params, Row) and params.stack is not None else None


def rows(stack: Params) -> list[Row]:
    """Give every model of a stack (K, *), as views."""
    each = zip(*[tensor.unbind() for tensor in stack.values()], strict=True)
    num_bytes = sum(tensor.nbytes // max(len(tensor), 1) for tensor in stack.values())
    return [Row(zip(stack, views, strict=True), stack, index, num_bytes) for index, views in enumerate(each)]
