"""What carries messages between processes of one machine: pieces of memory without a name, sent by their descriptors.

Such memory (memfd_create(2)) goes with the last process that has it open or mapped, however that one ends, and no
folder bounds its size, as that of ``/dev/shm`` may be small. All bytes of a message lie in it, so that what passes the
socket is always short: two processes that write to each other never wait for room.
"""

import ctypes
import errno
import os
import pickle
import socket
import weakref
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from fedfeat.executors.codec import Layout, Packed, put_together, take_apart

_ALIGNMENT = 64  # bytes, a cache line
_CLOSED_ON_EXEC = 1  # MFD_CLOEXEC
# Not `os.memfd_create`, which is missing where Python was built for older systems than this one.
_LIBC = ctypes.CDLL(None, use_errno=True)
_LENGTH = 8  # bytes of the number that passes the socket
_MOST = 253  # descriptors that Linux passes at once (SCM_MAX_FD)


class Shared:
    """Tensors, one after the other in one piece of memory that other processes can map.

    Args:
        tensors: The tensors, on the CPU; they are copied.

    Attributes:
        layouts: Of each.
        descriptors: That of the memory, as long as this lives; without tensors there is none.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.layouts = [Layout.of(tensor) for tensor in tensors]
        size, starts = _size_of(self.layouts), _starts_of(self.layouts)
        self.descriptors = [_anonymous(size)] if size else []
        for descriptor in self.descriptors:
            weakref.finalize(self, os.close, descriptor)
            for layout, tensor, start in zip(self.layouts, tensors, starts, strict=False):
                _write(descriptor, layout.bytes_of(tensor.detach()), start)


def read(descriptors: Iterator[int], layouts: Sequence[Layout]) -> list[Tensor]:
    """Give the tensors of a `Shared`, each a view of the memory of all; who writes to one has a page of its own.

    Args:
        descriptors: The next one is its descriptor, unless it has none.
        layouts: Its layouts.
    """
    size = _size_of(layouts)
    # `mmap.mmap` would keep a descriptor of its own open.
    path = f"/proc/self/fd/{next(descriptors)}" if size else ""
    memory = (
        torch.from_file(path, size=size, dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
    )
    return [
        layout.view(memory[start : start + layout.num_bytes])
        for layout, start in zip(layouts, _starts_of(layouts), strict=False)
    ]


def pack(value: Any) -> Packed:
    """Pack a value; its tensors are copied once."""
    record, tensors = take_apart(value)
    return Packed(record, Shared(tensors))


class NoRoom(Exception):
    """More descriptors are on their way, of all processes of a user, than this one may have open (RLIMIT_NOFILE)."""


def send(channel: socket.socket, word: str, packed: Sequence[Packed]) -> None:
    """Send a word and packed values, whose tensors are `Shared`.

    Raises:
        NoRoom: See there; nothing was sent.
        OSError: Nobody has the other end.
    """
    head = pickle.dumps((word, [(one.record, one.tensors.layouts) for one in packed]))
    carried = Shared([torch.frombuffer(bytearray(head), dtype=torch.uint8)])
    descriptors = [fd for one in (carried, *(each.tensors for each in packed)) for fd in one.descriptors]
    try:
        socket.send_fds(channel, [len(head).to_bytes(_LENGTH, "little")], descriptors)
    except OSError as error:
        if error.errno == errno.ETOOMANYREFS:
            raise NoRoom from error
        raise


def receive(channel: socket.socket) -> tuple[str, list[Any]]:
    """Receive what `send` has sent: the word and the values; wait for it.

    Raises:
        EOFError: Nobody has the other end.
        OSError: Nobody has it any more, or this process may open no more files.
    """
    data, found, _, _ = socket.recv_fds(channel, _LENGTH, _MOST)
    try:
        if not data:
            raise EOFError
        descriptors = iter(found)
        head = os.pread(next(descriptors), int.from_bytes(data, "little"), 0)
        word, parts = pickle.loads(head)
        return word, [put_together(record, read(descriptors, layouts)) for record, layouts in parts]
    except StopIteration as error:
        raise OSError("descriptors of a message are missing") from error
    finally:
        for descriptor in found:
            os.close(descriptor)  # what is mapped stays


def _starts_of(layouts: Sequence[Layout]) -> list[int]:
    return [*accumulate(map(_room, layouts), initial=0)]


def _size_of(layouts: Sequence[Layout]) -> int:
    return _starts_of(layouts)[-1]


def _room(layout: Layout) -> int:
    return -(-layout.num_bytes // _ALIGNMENT) * _ALIGNMENT


def _anonymous(size: int) -> int:
    descriptor: int = _LIBC.memfd_create(b"fedfeat", _CLOSED_ON_EXEC)
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"no memory to share: {os.strerror(code)}")
    os.ftruncate(descriptor, size)
    return descriptor


def _write(descriptor: int, data: Tensor, start: int) -> None:
    # A write makes the pages in a third of the time that filling them by a mapping takes.
    left = data.numpy().data
    while len(left):
        done = os.pwrite(descriptor, left, start)
        left, start = left[done:], start + done
