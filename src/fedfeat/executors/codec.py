"""Messages between processes: any value, pickled with its tensors taken out, each of them once.

What carries the tensors' bytes differs: shared memory on one machine (`forked.shared`), arrays in Ray's object store
(`on_ray.flat`).
"""

import io
import pickle
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedfeat.clients.tasks import Task
from fedfeat.errors import ClientError
from fedfeat.tree import identical

CPU = torch.device("cpu")

# Lists of tensors that several tasks may have in common: a server may have several models, and shares more than them.
_KEPT = 4
# Out-of-band numbers of tensors count from 0.
_DEVICE = -1


class Layout(NamedTuple):
    """What a tensor is beside its bytes. Its strides leave no gaps; filters and images may be channels-last."""

    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "Layout":
        """Give a tensor's layout; gaps and overlaps are closed, the order of dimensions stays."""
        return cls(tensor.dtype, tensor.shape, torch.empty_like(tensor, device="meta").stride())

    @property
    def num_bytes(self) -> int:
        """Bytes that the tensor takes."""
        return self.shape.numel() * self.dtype.itemsize

    def bytes_of(self, tensor: Tensor) -> Tensor:
        """Give the bytes, uint8 (N,), of a tensor of this layout; without gaps it is not copied."""
        dense = tensor if tensor.stride() == self.strides else tensor.clone()
        return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)

    def view(self, memory: Tensor) -> Tensor:
        """Show bytes, uint8 (N,), as the tensor."""
        if not len(memory):  # it may have no stride by which it could be viewed as another type
            return torch.empty_strided(self.shape, self.strides, dtype=self.dtype)
        return memory.view(self.dtype).as_strided(self.shape, self.strides)


class TensorPickler(pickle.Pickler):
    """Writes numbers instead of tensors, which it lists."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        """Give the number of a tensor, or of a device that becomes the receiver's."""
        if isinstance(value, torch.device) and value.type != "cpu":
            return _DEVICE
        # A leaf of a graph travels by itself and stays one; others leave their graph behind.
        if type(value) is not Tensor or value.is_meta or (value.requires_grad and value.is_leaf):
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.tensors)
            self.tensors.append(value)  # and so kept alive: no other gets its id
        return self._numbers[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, record: bytes, tensors: Sequence[Tensor], device: torch.device) -> None:
        super().__init__(io.BytesIO(record))
        self._tensors, self._device = tensors, device

    def persistent_load(self, number: int) -> Any:
        return self._device if number == _DEVICE else self._tensors[number]


class Packed(NamedTuple):
    """A value taken apart: the pickled record, with numbers instead of tensors, and what carries those."""

    record: bytes
    tensors: Any


def take_apart(value: Any, pickler: type[TensorPickler] = TensorPickler) -> tuple[bytes, list[Tensor]]:
    """Pickle a value with numbers instead of its tensors, and list those, each once."""
    file = io.BytesIO()
    one = pickler(file)
    one.dump(value)
    return file.getvalue(), one.tensors


def put_together(record: bytes, tensors: Sequence[Tensor], device: torch.device = CPU) -> Any:
    """Undo `take_apart`; devices other than the CPU become ``device``."""
    return _Unpickler(record, tensors, device).load()


class Packer:
    """Packs arguments of tasks: ``carry`` makes what carries tensors, ``pickler`` writes the rest.

    Tensors that come again soon, such as the server's weights, are carried once.
    """

    def __init__(
        self, carry: Callable[[list[Tensor]], Any], pickler: type[TensorPickler] = TensorPickler
    ) -> None:
        self._carry, self._pickler = carry, pickler
        # The tensors are kept beside what carries them: they are told by which objects they are.
        self._recent: deque[tuple[list[Tensor], Any]] = deque(maxlen=_KEPT)

    def __call__(self, arguments: Iterable[Any]) -> list[Packed]:
        """Pack arguments; a task's payload, which many clients share, goes apart from the rest of it."""
        packed = []
        for argument in arguments:
            if isinstance(argument, Task):
                record, own = take_apart(argument._replace(payload=None), self._pickler)
                packed.append(Packed(record, self._carry(own)))
                argument = argument.payload
            record, tensors = take_apart(argument, self._pickler)
            packed.append(Packed(record, self._carried(tensors)))
        return packed

    def _carried(self, tensors: list[Tensor]) -> Any:
        for place, entry in enumerate(self._recent):
            if identical(entry[0], tensors):
                del self._recent[place]
                break
        else:
            entry = tensors, self._carry(tensors)
        self._recent.append(entry)
        return entry[1]


def arguments_of(unpacked: Iterable[Any]) -> list[Any]:
    """Give the arguments that a `Packer` has packed: tasks get their payloads back."""
    rest = iter(unpacked)
    return [one._replace(payload=next(rest)) if isinstance(one, Task) else one for one in rest]


def portable(result: Any) -> Any:
    """Give a result that can be sent: an error with its stack trace as a note, for its cause stays behind."""
    if not isinstance(result, Exception):
        return result
    error = result
    if not isinstance(error, ClientError):
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
    error.add_note("".join(traceback.format_exception(result)))
    return error
