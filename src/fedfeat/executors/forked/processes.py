"""Clients' turns in several processes of one machine, of which this process is one.

The others are forked once everything has been built, so that they share data and code with this process until they
write, and start in milliseconds.
"""

import logging
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfeat.clients.host import num_cores
from fedfeat.clients.worker import Worker
from fedfeat.config.conditions import Count
from fedfeat.errors import ClientError, ConfigError
from fedfeat.executors.base import Executor
from fedfeat.executors.forked.child import Child, Message, attempt, parts_of
from fedfeat.executors.forked.packing import Packed, pack
from fedfeat.executors.schedule import Window, costs_of
from fedfeat.tree import tensors
from fedfeat.types import Answer, Scores, Task, Update

_log = logging.getLogger("fedfeat")


# Parts that several turns may have in common: weights, and what a server shares beside them.
_SHARED_PARTS = 3


@dataclass
class _Job:
    """A method to be called once for each turn.

    Arguments are made once and kept until the result is there; ``again`` has the turns of children that have died.
    """

    number: int
    method: str
    make: Callable[[int], tuple[Any, ...]]
    window: Window
    made: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    again: list[int] = field(default_factory=list)

    def arguments(self, turn: int) -> tuple[Any, ...]:
        if turn not in self.made:
            self.made[turn] = self.make(turn)
        return self.made[turn]

    def put(self, turn: int, result: Any) -> None:
        del self.made[turn]
        self.window.put(turn, result)


class ProcessExecutor(Executor):
    """A worker in each of several processes on the CPU, one thread each.

    The result of a turn does not depend on where it runs. A process that dies is not replaced: its turns run in the
    others.

    Args:
        build_worker: Makes the worker.
        num_processes: Processes, this one included; None is one for each core that this process may use.
        window: How many turns from the oldest unfinished one on may be started, which bounds the results that are
            held; None is four for each process.
    """

    def __init__(
        self,
        build_worker: Callable[[], Worker],
        num_processes: Count | None = None,
        window: Count | None = None,
    ) -> None:
        self.worker = build_worker()
        self._num_processes = num_processes or num_cores()
        self._window = window or 4 * self._num_processes
        self._children: list[Child] = []
        self._shared: OrderedDict[tuple[int, ...], tuple[Any, Packed]] = OrderedDict()
        self._numbers = count()
        self._check()

    def _check(self) -> None:
        if not sys.platform.startswith("linux"):
            raise ConfigError.rule("executor", "be serial or ray outside Linux", "processes")
        device = self.worker.data.device.type
        if device != "cpu":
            raise ConfigError.rule("trainer.accelerator", "be cpu for executor=processes", device)
        trainer = self.worker.trainer
        if trainer.num_threads not in (None, 1):
            raise ConfigError.rule(
                "trainer.num_threads", "be 1 or null for executor=processes", trainer.num_threads
            )
        if self.worker.lightning.world_size > 1:
            raise ConfigError.rule("trainer.strategy", "be auto for executor=processes", trainer.strategy)

    def start(self) -> None:
        """Fork the other processes."""
        torch.set_num_threads(1)
        with warnings.catch_warnings():
            # Threads of libraries that wait for work do no harm: a child with one thread never asks for them.
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            for _ in range(self._num_processes - 1):
                self._children.append(Child(self.worker, self._children))

    def close(self) -> None:
        """End the other processes."""
        for child in self._children:
            child.end()
        self._children = []

    def fit(self, turns: Sequence[Task]) -> Iterator[Update | ClientError]:
        """Fit the clients, the longest first."""
        return self._run("fit", lambda turn: (turns[turn],), costs_of(turns))

    def evaluate(self, turns: Sequence[Task]) -> Iterator[dict[str, float]]:
        """Score each client's own model on its own test part."""
        return self._run("evaluate_client", lambda turn: (turns[turn],), costs_of(turns))

    def answer(self, turns: Sequence[Task], inputs: Tensor) -> Iterator[Answer]:
        """Have clients answer on a survey's inputs (m, ...)."""
        return self._run("answer", lambda turn: (turns[turn], inputs), costs_of(turns))

    def score(self, payload: Any, indices: np.ndarray | None = None, client_id: int | None = None) -> Scores:
        """Score the server's model on test examples, all of them unless ``indices`` are given."""
        chosen = np.arange(self.worker.data.num_test) if indices is None else indices
        # Cut where batches end: the batches are those of one process, hence so is every bit of the scores.
        size = self.worker.settings.eval_batch_size
        batches = -(-len(chosen) // size)
        share = max(-(-batches // (len(self._children) + 1)), 1) * size
        parts = [chosen[start : start + share] for start in range(0, len(chosen), share)] or [chosen]
        scores = list(
            self._run("score", lambda turn: (payload, parts[turn], client_id), [float(len(p)) for p in parts])
        )
        return Scores(*(np.concatenate(values) for values in zip(*scores, strict=True)))

    def _run(
        self, method: str, make: Callable[[int], tuple[Any, ...]], costs: Sequence[float]
    ) -> Iterator[Any]:
        """Call a method of the workers once for each turn and give the results in the turns' order."""
        self._shared.clear()
        job = _Job(next(self._numbers), method, make, Window(costs, self._window))
        while not job.window.done:
            turn = job.again.pop() if job.again else job.window.next()
            if turn is not None:
                self._feed(job, costs[turn])
                job.put(turn, attempt(self.worker, method, job.arguments(turn)))
            self._collect(job, wait=turn is None)
            for result in job.window.ready():
                if isinstance(result, Exception) and not isinstance(result, ClientError):
                    raise result
                yield result

    def _feed(self, job: "_Job", own_cost: float) -> None:
        """Give every child as much to do as takes this process its own turn, and a turn more."""
        while self._children:
            child = min(self._children, key=lambda one: one.outstanding)
            turn = job.window.next() if child.outstanding <= own_cost else None
            if turn is None:
                return
            parts = [self._packed(part) for part in parts_of(job.arguments(turn))]
            if not child.send(Message(job.number, turn, job.method, parts), job.window.costs[turn]):
                job.again.append(turn)
                self._bury(child, job)

    def _collect(self, job: "_Job", wait: bool) -> None:
        """Take the results that have arrived, or wait for one."""
        for child in Child.with_news(self._children, wait):
            found = child.receive()
            if found is None:
                self._bury(child, job)
            elif found.job == job.number:  # else of a job that was given up
                job.put(found.turn, found.result)

    def _bury(self, child: Child, job: "_Job") -> None:
        self._children.remove(child)
        lost = [entry.turn for entry in child.waiting if entry.job == job.number]
        job.again += lost
        child.end()
        _log.warning(
            "Process %d of executor=processes has died; %d of its turns run again in the %d left.",
            child.pid, len(lost), len(self._children) + 1,
        )  # fmt: skip

    def _packed(self, part: Any) -> Packed:
        """Pack a part; one that comes again soon, such as the server's weights, only once."""
        key = tuple(id(tensor) for tensor in tensors(part))
        if not key:
            return pack(part)
        if key not in self._shared:
            # The part is kept beside it, so that no new tensor gets one of these ids.
            self._shared[key] = part, pack(part)
            if len(self._shared) > _SHARED_PARTS:
                self._shared.popitem(last=False)
        self._shared.move_to_end(key)
        return self._shared[key][1]
