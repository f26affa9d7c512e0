"""Messages between processes of one machine: any record, its tensors together in one piece of shared memory."""

import io
import pickle
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes, a cache line


class Packed(NamedTuple):
    """A record whose tensors lie in shared memory.

    Sent through a connection of `torch.multiprocessing`, ``memory`` is not copied and costs one file descriptor.

    Attributes:
        record: The pickled record, with places instead of tensors.
        places: Type, shape, strides and first byte of each tensor.
        memory: All of them, uint8 (N,).
    """

    record: bytes
    places: list[tuple[torch.dtype, torch.Size, tuple[int, ...], int]]
    memory: Tensor


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> int | None:
        if type(value) is not Tensor:
            return None
        # Strides that leave no gaps are kept: images and filters may be channels-last.
        value = value.detach()
        self.tensors.append(value if _is_dense(value) else value.contiguous())
        return len(self.tensors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: Packed) -> None:
        super().__init__(io.BytesIO(packed.record))
        self._packed = packed

    def persistent_load(self, number: int) -> Tensor:
        return _view(self._packed.memory, *self._packed.places[number])


def pack(value: Any) -> Packed:
    """Pack a record; its tensors, which must be on the CPU, are copied once."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    places, size = [], 0
    for tensor in pickler.tensors:
        places.append((tensor.dtype, tensor.shape, tensor.stride(), size))
        size += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    # `share_memory_` would copy what is in an ordinary tensor; this is how torch's own DataLoader collates.
    memory = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(size))
    for tensor, place in zip(pickler.tensors, places, strict=True):
        _view(memory, *place).copy_(tensor)
    return Packed(file.getvalue(), places, memory)


def unpack(packed: Packed) -> Any:
    """Give the record again; its tensors are views of the shared memory, which lives as long as one of them."""
    return _Unpickler(packed).load()


def _view(
    memory: Tensor, dtype: torch.dtype, shape: torch.Size, strides: tuple[int, ...], start: int
) -> Tensor:
    size = shape.numel() * dtype.itemsize
    return memory[start : start + size].view(dtype).as_strided(shape, strides)


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
