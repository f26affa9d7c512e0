"""Values on their way between nodes: the tensors apart from the rest, as bytes that a node's object store shares."""

import io
import pickle
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from ray import cloudpickle
from torch import Tensor

# Out-of-band numbers of tensors count from 0.
_DEVICE = -1


class Flat(NamedTuple):
    """A tensor as bytes.

    Attributes:
        data: The bytes, uint8 (N,).
        dtype: The tensor's type.
        shape: Its dimensions in the order in which they lie in memory, the slowest first.
        order: Which of its dimensions each of those is: filters and images may be channels-last.
        on_device: Whether it was on an accelerator; it comes back on that of the receiver.
        fixed: Whether nobody changes it, so that it may stay in the object store, where it is read-only.
    """

    data: np.ndarray
    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...]
    on_device: bool
    fixed: bool = False

    @classmethod
    def of(cls, tensor: Tensor, fixed: bool = False) -> "Flat":
        """Flatten a tensor; on the CPU and without gaps between its elements it is not copied."""
        strides = tensor.stride()
        order = tuple(range(tensor.dim()))
        if not tensor.is_contiguous():
            order = tuple(sorted(order, key=lambda dim: -strides[dim]))
        laid = tensor.detach().permute(order).contiguous()
        data = laid.cpu().reshape(-1).view(torch.uint8).numpy()
        return cls(data, tensor.dtype, tuple(laid.shape), order, tensor.device.type != "cpu", fixed)

    def tensor(self, device: torch.device) -> Tensor:
        """Give the tensor again, in memory of its own unless it is fixed."""
        own = self.data if self.on_device or self.fixed else self.data.copy()
        with warnings.catch_warnings():
            # Of memory that is read-only, which is what fixed ones lie in.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            # An empty array has no stride by which it could be viewed as another type.
            flat = torch.from_numpy(own).view(self.dtype) if own.size else torch.empty(0, dtype=self.dtype)
        places = sorted(range(len(self.order)), key=self.order.__getitem__)
        found = flat.view(self.shape).permute(places)
        return found.to(device, copy=True) if self.on_device else found


class Parcel(NamedTuple):
    """A value taken apart.

    Attributes:
        record: The pickled value, with numbers instead of tensors.
        tensors: The tensors.
    """

    record: bytes
    tensors: list[Flat]


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if isinstance(value, torch.device) and value.type != "cpu":
            return _DEVICE
        if type(value) is not Tensor or value.requires_grad or value.is_meta:
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.tensors)
            self.tensors.append(value)  # and so kept alive: no other gets its id
        return self._numbers[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, record: bytes, tensors: Sequence[Flat], device: torch.device) -> None:
        super().__init__(io.BytesIO(record))
        self._flats, self._device = tensors, device
        self._tensors: dict[int, Tensor] = {}

    def persistent_load(self, number: int) -> Any:
        if number == _DEVICE:
            return self._device
        if number not in self._tensors:
            self._tensors[number] = self._flats[number].tensor(self._device)
        return self._tensors[number]


def take_apart(value: Any) -> tuple[bytes, list[Tensor]]:
    """Pickle a value with numbers instead of its tensors, and list those, each once."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return file.getvalue(), pickler.tensors


def put_together(record: bytes, tensors: Sequence[Flat], device: torch.device) -> Any:
    """Undo `take_apart`; devices other than the CPU become ``device``."""
    return _Unpickler(record, tensors, device).load()


def pack(value: Any, fixed: Iterable[Tensor] = ()) -> Parcel:
    """Pack a value, functions and local classes included.

    Args:
        value: The value.
        fixed: Tensors in it that nobody changes, see `Flat`.
    """
    record, tensors = take_apart(value)
    kept = {id(tensor) for tensor in fixed}
    return Parcel(record, [Flat.of(tensor, id(tensor) in kept) for tensor in tensors])


def unpack(parcel: Parcel, device: torch.device) -> Any:
    """Give a packed value again."""
    return put_together(*parcel, device)
