"""What carries tensors between processes of one machine: one piece of shared memory for all of a message's."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedfeat.executors.codec import Layout, Packed, put_together, take_apart

_ALIGNMENT = 64  # bytes, a cache line


class Shared(NamedTuple):
    """Tensors in shared memory.

    Sent through a connection of `torch.multiprocessing`, ``memory`` is not copied and costs one file descriptor.

    Attributes:
        memory: All of them one after the other, uint8 (N,).
        layouts: Of each.
    """

    memory: Tensor
    layouts: list[Layout]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "Shared":
        """Copy tensors, which must be on the CPU, into shared memory."""
        layouts = [Layout.of(tensor) for tensor in tensors]
        # `share_memory_` would copy what is in an ordinary tensor; this is how torch's own DataLoader collates.
        storage = torch.UntypedStorage._new_shared(sum(map(_room, layouts)))
        shared = cls(torch.empty(0, dtype=torch.uint8).set_(storage), layouts)
        for tensor, copy in zip(tensors, shared.views(), strict=True):
            copy.copy_(tensor.detach())
        return shared

    def views(self) -> list[Tensor]:
        """Give the tensors as views of the memory, which lives as long as one of them."""
        starts = accumulate(map(_room, self.layouts), initial=0)
        return [
            layout.view(self.memory[start : start + layout.num_bytes])
            for layout, start in zip(self.layouts, starts, strict=False)
        ]


def _room(layout: Layout) -> int:
    return -(-layout.num_bytes // _ALIGNMENT) * _ALIGNMENT


def pack(value: Any) -> Packed:
    """Pack a value; its tensors are copied once."""
    record, tensors = take_apart(value)
    return Packed(record, Shared.of(tensors))


def unpack(packed: Packed) -> Any:
    """Give a packed value again."""
    return put_together(packed.record, packed.tensors.views())
