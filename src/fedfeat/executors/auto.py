"""Which executor is the fastest here: measured on the actual network, data and device before the first fits."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from fedfeat.clients.tasks import Scores, Task, Turns
from fedfeat.clients.worker import Worker
from fedfeat.config.conditions import Positive
from fedfeat.errors import ConfigError
from fedfeat.executors.base import Executor
from fedfeat.executors.forked.processes import ProcessExecutor
from fedfeat.executors.job import costs_of
from fedfeat.executors.serial import SerialExecutor
from fedfeat.executors.stacked.vectorized import VectorizedExecutor

_log = logging.getLogger("fedfeat")

# Seconds that the reference may take for what is measured. A slower candidate takes more, but the stacked form of
# convolutions, which is the slowest, is no more than some three times as slow.
_BUDGET = 0.5

# A candidate must save a tenth of the time, for clocks are noisy.
_WORTHWHILE = 0.9


class AutoExecutor(Executor):
    """Measures its candidates on the first tasks, logs the times, and goes on with the fastest.

    What is measured is thrown away, and the same tasks follow. The first candidate is the reference.

    Args:
        build_worker: Makes the worker that all candidates share.
        among: Candidates beside ``serial``: ``vectorized``, ``processes``.
        memory_mb: See `VectorizedExecutor`.

    Attributes:
        candidates: Executors by name.
        refused: Why others are no candidates, by name.
        chosen: Name of the executor that fits; None until the first fits of several clients.
    """

    def __init__(
        self,
        build_worker: Callable[[], Worker],
        among: Sequence[Literal["vectorized", "processes"]] = ("vectorized", "processes"),
        memory_mb: Positive = 1024,
    ) -> None:
        self.worker = build_worker()
        self.candidates: dict[str, Executor] = {"serial": SerialExecutor(lambda: self.worker)}
        self.refused: dict[str, str] = {}
        self.chosen: str | None = None
        others: dict[str, Callable[[Callable[[], Worker]], Executor]] = {
            "vectorized": partial(VectorizedExecutor, memory_mb=memory_mb),
            "processes": ProcessExecutor,
        }
        for name in among:
            try:
                self.candidates[name] = others[name](lambda: self.worker)
            except ConfigError as error:
                self.refused[name] = str(error)

    def start(self) -> None:
        """Start all candidates."""
        for executor in self.candidates.values():
            executor.start()

    def close(self) -> None:
        """End what they have started."""
        for executor in self.candidates.values():
            executor.close()

    def map(self, job: str, tasks: Sequence[Task], *shared: Any) -> Iterator[Any]:
        """Run a job by the chosen executor, which the first fits of several clients choose."""
        if job == "fit" and self.chosen is None and len(tasks) > 1:
            tasks = self._choose(tasks)
        yield from self._current.map(job, tasks, *shared)

    def score(self, payload: Any, indices: np.ndarray | None = None, client_id: int | None = None) -> Scores:
        """Score the server's model on test examples, all of them unless ``indices`` are given."""
        return self._current.score(payload, indices, client_id)

    @property
    def _current(self) -> Executor:
        return self.candidates[self.chosen or next(iter(self.candidates))]

    def _choose(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Choose by the first tasks; give all of them."""
        if len(self.candidates) == 1:
            self.chosen = next(iter(self.candidates))
            _log.info("executor: %s. %s", self.chosen, " ".join(self.refused.values()))
            return tasks
        first, sample = measured_tasks(self._current, tasks)
        seconds = {name: _seconds(executor, sample) for name, executor in self.candidates.items()}
        self.chosen = fastest(seconds)
        for name in self.candidates.keys() - {self.chosen}:
            self.candidates[name].close()
        found = ", ".join(f"{name} {1e3 * value:.3g}" for name, value in seconds.items())
        steps = max(task.num_steps for task in sample)
        _log.info(
            "executor: %s (ms for each of %d clients with up to %d steps: %s). %s",
            *(self.chosen, len(sample), steps, found, " ".join(self.refused.values())),
        )
        return _begun(tasks, first)


def fastest(seconds: dict[str, float]) -> str:
    """Give the name with the least time; the first one, the reference, where the others do not save enough."""
    reference = next(iter(seconds))
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < _WORTHWHILE * seconds[reference] else reference


def measured_tasks(reference: Executor, tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """Take what the reference does within the budget: of each task as many steps, then as many of the tasks, but two.

    Returns:
        The first tasks as they are, and cut down.
    """

    def cut(task: Task, num_steps: int) -> Task:
        return task._replace(num_steps=min(task.num_steps, num_steps), evaluate=False, probe=False)

    first = [tasks[0]]
    one = [cut(first[0], 1)]
    _timed(reference, one)  # the first fit of all builds what later ones find
    for_one = _timed(reference, one)
    longest = max(int(_BUDGET / 2 / for_one), 1)
    count = int(_BUDGET / (min(longest, first[0].num_steps) * for_one))
    first += [tasks[place] for place in range(1, min(max(count, 2), len(tasks)))]
    return first, [cut(task, longest) for task in first]


def _seconds(executor: Executor, sample: Sequence[Task]) -> float:
    """Time an executor on a sample, per client, after a first fit that is not counted."""
    # Of as many clients, for what is compiled is good for their number only.
    _timed(executor, [task._replace(num_steps=1) for task in sample])
    return _timed(executor, sample) / len(sample)


def _timed(executor: Executor, tasks: Sequence[Task]) -> float:
    start = time.perf_counter()
    deque(executor.map("fit", tasks), maxlen=0)
    return time.perf_counter() - start


def _begun(tasks: Sequence[Task], first: list[Task]) -> Turns:
    """Give tasks of which the first have been asked for; those are given away, so that nobody holds a cohort."""
    waiting = dict(enumerate(first))
    first.clear()
    places = range(len(tasks))
    return Turns(places, lambda at: waiting.pop(at) if at in waiting else tasks[at], costs_of(tasks))
