"""A forked process that runs turns, as its parent sees it and from within."""

import ctypes
import os
import pickle
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
from torch.multiprocessing import get_context

from fedfeat.clients.worker import Worker
from fedfeat.errors import ClientError
from fedfeat.executors.forked.packing import Packed, pack, unpack
from fedfeat.types import Task

_PR_SET_PDEATHSIG = 1  # prctl(2)
_SECONDS_TO_END = 2.0


class Message(NamedTuple):
    """One turn for a child.

    Attributes:
        job: Number of the job that the turn belongs to.
        turn: Its place in the job.
        method: Of `Worker`.
        parts: Its arguments, see `parts_of`.
    """

    job: int
    turn: int
    method: str
    parts: list[Packed]


class News(NamedTuple):
    """A turn that a child has finished: see `Message`, and what came of it."""

    job: int
    turn: int
    result: Any


class _Waiting(NamedTuple):
    job: int
    turn: int
    cost: float


class Child:
    """A process with a copy of the worker.

    Args:
        worker: The worker.
        siblings: Children that the parent has already.
    """

    def __init__(self, worker: Worker, siblings: Sequence["Child"]) -> None:
        self._connection, far_end = get_context("fork").Pipe()
        inherited = [sibling._connection for sibling in siblings] + [self._connection]
        self._process = get_context("fork").Process(
            target=_serve, args=(worker, far_end, inherited, os.getpid()), daemon=True
        )
        self._process.start()
        far_end.close()
        self.waiting: deque[_Waiting] = deque()

    @property
    def outstanding(self) -> float:
        """Work that was sent and has not come back."""
        return sum(entry.cost for entry in self.waiting)

    @property
    def pid(self) -> int | None:
        """Process number."""
        return self._process.pid

    def send(self, message: Message, cost: float) -> bool:
        """Send a turn; False where the child is dead."""
        try:
            self._connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return False
        self.waiting.append(_Waiting(message.job, message.turn, cost))
        return True

    def receive(self) -> News | None:
        """Take the result of the turn that was sent first; None where the child is dead."""
        try:
            found = unpack(self._connection.recv())
        # A child that dies while it hands memory over leaves a message whose memory is gone.
        except (EOFError, OSError, pickle.UnpicklingError):
            return None
        entry = self.waiting.popleft()
        return News(entry.job, entry.turn, found)

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._connection.close()
        self._process.terminate()
        self._process.join(_SECONDS_TO_END)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @staticmethod
    def with_news(children: Iterable["Child"], block: bool) -> list["Child"]:
        """Give the children that have a result, or have died; wait for the first one where asked to."""
        by_connection = {child._connection: child for child in children}
        if not by_connection:
            return []
        return [by_connection[one] for one in wait(list(by_connection), None if block else 0)]  # type: ignore[index]


def parts_of(arguments: Sequence[Any]) -> list[Any]:
    """Cut arguments into parts that travel apart: the payload of a task, which many clients share, and all else."""
    parts: list[Any] = []
    for argument in arguments:
        parts += (
            [argument._replace(payload=None), argument.payload] if isinstance(argument, Task) else [argument]
        )
    return parts


def joined(parts: Iterable[Any]) -> list[Any]:
    """Undo `parts_of`."""
    rest = iter(parts)
    return [part._replace(payload=next(rest)) if isinstance(part, Task) else part for part in rest]


def attempt(worker: Worker, method: str, arguments: Sequence[Any]) -> Any:
    """Call a method of a worker; what it raises is a result too, for its turn to be told in cohort order."""
    try:
        return getattr(worker, method)(*arguments)
    except Exception as error:
        return error


def _serve(worker: Worker, connection: Any, inherited: Iterable[Any], parent: int) -> None:
    _die_with(parent)
    for one in inherited:
        one.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this one
    torch.set_num_threads(1)
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        result = attempt(worker, message.method, joined(map(unpack, message.parts)))
        if isinstance(result, Exception):
            result = _portable(result)
        try:
            connection.send(pack(result))
        except (BrokenPipeError, ConnectionResetError):
            return


def _portable(error: Exception) -> Exception:
    """Give an error that can be sent, with its stack trace as a note."""
    if not isinstance(error, ClientError):
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
    error.add_note("".join(traceback.format_exception(error)))
    return error


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, even in the middle of a fit.

    It shares the parent's open files, among them the lock of the run directory.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
