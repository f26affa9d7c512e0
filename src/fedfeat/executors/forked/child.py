"""A forked process that runs tasks, as its parent sees it and from within."""

import atexit
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import Any

import torch

from fedfeat.clients.worker import Worker
from fedfeat.executors.codec import Packed, arguments_of, portable
from fedfeat.executors.forked.shared import NoRoom, pack, receive, send
from fedfeat.executors.job import Job, attempt

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PAUSE = 0.01  # seconds
_MOMENT = 1.0  # seconds between the end of a process's channel and its own, at most
# Ctrl-C, and that by which a cluster announces the end of a job, reach the whole group. The parent answers, ends its
# round with this process's help, and ends it.
_OF_THE_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Child:
    """A process with a copy of the worker; ``siblings`` are children that the parent has already.

    Attributes:
        pid: Process number.
        waiting: Its tasks that it has not answered, each by its job and place there, the oldest first.
    """

    def __init__(self, worker: Worker, siblings: Sequence["Child"]) -> None:
        self._channel, far_end = socket.socketpair()
        inherited = [sibling._channel for sibling in siblings] + [self._channel]
        by_main_thread = threading.current_thread() is threading.main_thread()
        arguments = (worker, far_end, inherited, os.getpid(), by_main_thread)
        self._process = get_context("fork").Process(target=_serve, args=arguments, daemon=True)
        with _held_back():
            self._process.start()
        self.pid = self._process.pid
        far_end.close()
        # Python's own end of daemons is a SIGTERM, which this one leaves to its parent, and a wait.
        atexit.register(self.end)
        self.waiting: deque[tuple[Job, int]] = deque()

    @property
    def outstanding(self) -> float:
        """Work that was sent and has not come back."""
        return sum(job.costs[place] for job, place in self.waiting)

    def send(self, job: Job, place: int) -> bool:
        """Send a task; False where the child is dead.

        Raises:
            NoRoom: Too many messages wait for their readers.
        """
        try:
            send(self._channel, job.method, job.pack(job.arguments(place)))
        except (BrokenPipeError, ConnectionResetError):
            return False
        self.waiting.append((job, place))
        return True

    def receive(self) -> bool:
        """Take the result of the oldest task; False where the child is dead."""
        try:
            _, (result,) = receive(self._channel)
        except (EOFError, OSError):
            return False
        job, place = self.waiting.popleft()
        job.put(place, result)  # also where the job was given up, and nobody asks for it
        return True

    def ending(self) -> str:
        """By what the process ended: a signal, SIGKILL where memory ran out, or its exit code; empty where it lives."""
        self._process.join(_MOMENT)
        code = self._process.exitcode
        if code is None:
            return ""
        return signal.Signals(-code).name if code < 0 else f"code {code}"

    def end(self) -> None:
        """End the process, whatever it is doing."""
        atexit.unregister(self.end)
        self._channel.close()
        self._process.kill()
        self._process.join()

    @staticmethod
    def with_news(children: Iterable["Child"], block: bool) -> list["Child"]:
        """Give the children that have a result, or have died; wait for the first one where asked to."""
        by_channel: dict[Any, Child] = {child._channel: child for child in children}
        found = wait(list(by_channel), None if block else 0) if by_channel else []
        return [by_channel[one] for one in found]


@contextmanager
def _held_back() -> Iterator[None]:
    """Keep signals from a child that has the parent's handlers until it ignores them; the parent gets them after."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(
    worker: Worker,
    channel: socket.socket,
    inherited: Iterable[socket.socket],
    parent: int,
    by_main_thread: bool,
) -> None:
    _die_with(parent, by_main_thread)
    for one in inherited:
        one.close()
    for signum in _OF_THE_PARENT:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_PARENT)
    torch.set_num_threads(1)
    while True:
        try:
            method, arguments = receive(channel)
        except (EOFError, ConnectionResetError):
            return
        result = attempt(worker, method, arguments_of(arguments))
        try:
            _answer(channel, pack(portable(result)))
        except (BrokenPipeError, ConnectionResetError):
            return


def _answer(channel: socket.socket, packed: Packed) -> None:
    """Send a result; where too many messages wait, once some of them have been read."""
    while True:
        try:
            return send(channel, "", [packed])
        except NoRoom:
            time.sleep(_PAUSE)


def _die_with(parent: int, by_main_thread: bool) -> None:
    """Have the kernel kill this process when its parent dies, even in the middle of a fit.

    It shares the parent's open files, among them the lock of the run directory.
    """
    # The kernel means the thread that forked, of which any but the main one may end before its process does.
    if by_main_thread and sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
