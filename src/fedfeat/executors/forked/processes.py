"""Clients' tasks in several processes of one machine, of which this process is one.

The others are forked once everything has been built, so that they share data and code with this process until they
write, and start in milliseconds.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fedfeat.clients.host import num_cores
from fedfeat.clients.tasks import Scores, Task
from fedfeat.clients.worker import Worker
from fedfeat.config.conditions import Count
from fedfeat.errors import ConfigError, UserError
from fedfeat.executors.base import Executor
from fedfeat.executors.codec import Packer
from fedfeat.executors.forked.child import Child
from fedfeat.executors.forked.shared import NoRoom, Shared
from fedfeat.executors.job import DEATHS, Job, attempt, costs_of

_log = logging.getLogger("fedfeat")

# Tasks that a child has at once: their messages have to find room in its socket.
_MOST = 64


class ProcessExecutor(Executor):
    """A worker in each of several processes on the CPU, one thread each.

    The result of a task does not depend on where it runs. A process that dies is not replaced: its tasks run in the
    others, but one at which three have died fails.

    Args:
        build_worker: Makes the worker.
        num_processes: Processes, this one included; None is one for each core that this process may use.
        window: How many tasks from the oldest unfinished one on may be started, which bounds the results that are
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
        self._check()

    def _check(self) -> None:
        if not sys.platform.startswith("linux"):
            raise ConfigError.rule("executor", "be serial or ray outside Linux", "processes")
        device = self.worker.data.device.type
        if device != "cpu":
            raise ConfigError.rule("trainer.accelerator", "be cpu for executor=processes", device)
        num_threads, strategy = self.worker.trainer.num_threads, self.worker.trainer.strategy
        if num_threads not in (None, 1):
            raise ConfigError.rule("trainer.num_threads", "be 1 or null for executor=processes", num_threads)
        if self.worker.lightning.world_size > 1:
            raise ConfigError.rule("trainer.strategy", "be auto for executor=processes", strategy)

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

    def map(self, job: str, tasks: Sequence[Task], *shared: Any) -> Iterator[Any]:
        """Call the workers' method, for the longest tasks first."""
        return self._run(job, lambda place: (tasks[place], *shared), costs_of(tasks))

    def score(self, payload: Any, indices: np.ndarray | None = None, client_id: int | None = None) -> Scores:
        """Score the server's model on test examples, all of them unless ``indices`` are given."""
        chosen = np.arange(self.worker.data.num_test) if indices is None else indices
        # Cut where batches end: the batches are those of one process, hence so is every bit of the scores.
        size = self.worker.settings.eval_batch_size
        batches = -(-len(chosen) // size)
        share = max(-(-batches // (len(self._children) + 1)), 1) * size
        parts = [chosen[start : start + share] for start in range(0, len(chosen), share)] or [chosen]
        sizes = [float(len(part)) for part in parts]
        scores = list(self._run("score", lambda place: (payload, parts[place], client_id), sizes))
        return Scores(*(np.concatenate(values) for values in zip(*scores, strict=True)))

    def _run(
        self, method: str, make: Callable[[int], Sequence[Any]], costs: Sequence[float]
    ) -> Iterator[Any]:
        """Run a `Job`, see there for the arguments, and give its results in cohort order."""
        job = Job(method, make, costs, self._window, Packer(Shared))
        while not job.done:
            # A task with which a process has died is for another, or the run might die with it.
            place = job.next(lost=False)
            self._feed(job, 0.0 if place is None else job.costs[place])
            if place is None and not any(child.waiting for child in self._children):
                place = job.next()
            if place is not None:
                job.put(place, attempt(self.worker, method, job.arguments(place)))
            self._collect(wait=place is None)
            yield from job.results()

    def _feed(self, job: Job, own_cost: float) -> None:
        """Give every child as much to do as takes this process its own task, and a task more."""
        while self._children:
            child = min(self._children, key=lambda one: one.outstanding)
            has_room = child.outstanding <= own_cost and len(child.waiting) < _MOST
            place = job.next() if has_room else None
            if place is None:
                return
            try:
                is_alive = child.send(job, place)
            except NoRoom:
                return job.give_back(place)  # there is some once results have been read
            if not is_alive:
                job.give_back(place)
                self._bury(child)

    def _collect(self, wait: bool) -> None:
        """Take the results that have arrived, or wait for one."""
        for child in Child.with_news(self._children, wait):
            if not child.receive():
                self._bury(child)

    def _bury(self, child: Child) -> None:
        self._children.remove(child)
        ending = child.ending()
        child.end()
        # This process may have no descriptor left for what it would receive.
        what = f"has died ({ending})" if ending else "cannot be heard"
        told = "Process %d of executor=processes %s; %d of its tasks run again in the %d left."
        _log.warning(told, child.pid, what, len(child.waiting), len(self._children) + 1)
        if ending and child.waiting:
            # It was at the oldest, the others had not begun.
            self._lose(*child.waiting.popleft(), ending)
        for job, place in child.waiting:
            job.give_back(place)

    def _lose(self, job: Job, place: int, ending: str) -> None:
        if job.lose(place):
            return
        cause = f"its process died {DEATHS} times, at last by {ending}"
        match job.arguments(place)[0]:
            case Task() as task:
                job.put(place, self.worker.failure(task, cause))
            case _:
                job.put(place, UserError(f"The server's model could not be scored: {cause}."))
