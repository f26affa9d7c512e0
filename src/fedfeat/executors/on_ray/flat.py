"""What carries tensors between nodes: read-only arrays of bytes, which a node's object store shares."""

import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from ray import cloudpickle
from torch import Tensor

from fedfeat.executors.codec import Layout, Packed, TensorPickler, put_together, take_apart


class CloudPickler(TensorPickler, cloudpickle.Pickler):
    """Takes functions and local classes too, such as those that build a worker."""


class Flat(NamedTuple):
    """A tensor as bytes.

    Attributes:
        data: The bytes, uint8 (N,).
        layout: What it is beside them.
        on_device: Whether it was on an accelerator; it comes back on that of the receiver.
        fixed: Whether nobody changes it, so that it may stay in the object store, where it is read-only.
    """

    data: np.ndarray
    layout: Layout
    on_device: bool
    fixed: bool = False

    @classmethod
    def of(cls, tensor: Tensor, fixed: bool = False) -> "Flat":
        """Flatten a tensor; on the CPU and without gaps between its elements it is not copied."""
        layout = Layout.of(tensor)
        data = layout.bytes_of(tensor.detach().cpu()).numpy()
        return cls(data, layout, tensor.device.type != "cpu", fixed)

    def tensor(self, device: torch.device) -> Tensor:
        """Give the tensor again, in memory of its own unless it is fixed."""
        own = self.data if self.on_device or self.fixed else self.data.copy()
        with warnings.catch_warnings():
            # Of memory that is read-only, which is what fixed ones lie in.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            found = self.layout.view(torch.from_numpy(own))
        return found.to(device, copy=True) if self.on_device else found


def pack(value: Any, fixed: Iterable[Tensor] = ()) -> Packed:
    """Pack a value, functions and local classes included; nobody changes its ``fixed`` tensors, see `Flat`."""
    record, tensors = take_apart(value, CloudPickler)
    kept = {id(tensor) for tensor in fixed}
    return Packed(record, [Flat.of(tensor, id(tensor) in kept) for tensor in tensors])


def unpack(packed: Packed, device: torch.device) -> Any:
    """Give a packed value again; its devices other than the CPU become ``device``."""
    return put_together(packed.record, [flat.tensor(device) for flat in packed.tensors], device)
