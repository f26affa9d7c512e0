"""The executor of whoever names none: what fixes numbers is chosen by a rule, what does not by the clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import current_process
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedfeat.clients.host import num_cores
from fedfeat.clients.tasks import Scores, Task, Turns
from fedfeat.clients.worker import Worker
from fedfeat.config.conditions import Positive
from fedfeat.errors import ConfigError
from fedfeat.executors.base import Course, Executor
from fedfeat.executors.choice import Choice, by_rule, flops_of_step, stored
from fedfeat.executors.forked.processes import ProcessExecutor
from fedfeat.executors.job import costs_of
from fedfeat.executors.serial import SerialExecutor
from fedfeat.executors.stacked.vectorized import VectorizedExecutor

_log = logging.getLogger("fedfeat")

# Each process has a copy of what it changes, some 100 MB.
_MOST_PROCESSES = 16

# A run whose turns take less is over before processes have brought anything, by a rough count of seconds.
_WORTH_FORKING = 1.0
_SECONDS_PER_TURN, _SECONDS_PER_STEP, _FLOPS_PER_SECOND = 4e-3, 1e-3, 2e10

# Turns that take longer than this, in seconds, gain from processes whatever their messages cost.
_LONG_TURN = 0.25

# Of a round, what may run in one process to be compared: seconds, and the share of its turns.
_SAMPLE, _SHARE = 0.5, 0.25

# Processes must save a tenth of the time, for clocks are noisy.
_WORTHWHILE = 0.9


class AutoExecutor(Executor):
    """Stacks the clients of tiny networks; runs others one by one, in several processes where that is faster.

    Whether to stack is a rule (`choice`), and kept in the run directory. Whether turns that run one by one do so in
    this process or in several changes no bit, so it is measured on the turns of the first rounds, of which none is run
    twice.

    Args:
        build_worker: Makes the worker.
        among: What may be chosen beside ``serial``: ``vectorized``, ``processes``.
        memory_mb: See `VectorizedExecutor`.

    Attributes:
        choice: What fixes the numbers; None before `settle`.
        current: The executor that runs the turns.
    """

    def __init__(
        self,
        build_worker: Callable[[], Worker],
        among: Sequence[Literal["vectorized", "processes"]] = ("vectorized", "processes"),
        memory_mb: Positive | None = None,
    ) -> None:
        self.worker = build_worker()
        self.choice: Choice | None = None
        self._serial = SerialExecutor(lambda: self.worker)
        self.current: Executor = self._serial
        self._among, self._memory_mb = among, memory_mb
        self._processes, self._why_one = 1, ""
        self._trial = _Trial()

    def settle(self, run_dir: Path, course: Course) -> None:
        """Choose how turns are computed: as the run of the directory began, or by the rule."""
        known = stored(run_dir)
        choice = known or by_rule(self.worker, course, "vectorized" in self._among)
        if choice.stacked:
            try:
                self.current = VectorizedExecutor(lambda: self.worker, self._memory_mb)
                self.current.settle(run_dir, course)
            except ConfigError as refusal:
                if known is not None:
                    raise
                # So small that they have one thread anyway.
                choice = choice._replace(stacked=False, why=str(refusal))
        self.choice = choice
        self._processes, self._why_one = _processes(self.worker, course, choice, self._among)

    def note(self, run_dir: Path) -> None:
        """Keep in the run directory what fixes the numbers."""
        # Processes of a fit that is shared by several have nothing to choose.
        if self.choice is not None and self.worker.lightning.world_size == 1:
            self.choice.write(run_dir)
            self.current.note(run_dir)

    def start(self) -> None:
        """Set the threads."""
        if self.choice is not None:
            torch.set_num_threads(self.choice.num_threads)

    def open(self) -> None:
        """Fork processes where they may pay; parts that are only looked at leave none behind."""
        if self._processes > 1:
            self._fork()
        if self.choice is not None and self.choice.stacked:
            _log.info("executor: vectorized (%s).", self.choice.why)
        elif self.current is self._serial:
            _log.info("executor: serial (%s).", self._why_one)
        else:
            _log.info("executor: processes (%d of one thread each).", self._processes)

    def _fork(self) -> None:
        try:
            self.current = ProcessExecutor(lambda: self.worker, self._processes)
            self.current.start()
        except (ConfigError, OSError) as error:
            self.current.close()  # of some that could be forked
            self.current, self._why_one = self._serial, str(error)

    def close(self) -> None:
        """End the processes."""
        self.current.close()

    def map(self, job: str, tasks: Sequence[Task], *shared: Any) -> Iterator[Any]:
        """Run a job where turns run; the first rounds also tell where that is."""
        if job != "fit" or not tasks or self._trial.over or not isinstance(self.current, ProcessExecutor):
            return self.current.map(job, tasks, *shared)
        return self._tried(tasks)

    def score(self, payload: Any, indices: np.ndarray | None = None, client_id: int | None = None) -> Scores:
        """Score the server's model on test examples, all of them unless ``indices`` are given."""
        return self.current.score(payload, indices, client_id)

    def _tried(self, tasks: Sequence[Task]) -> Iterator[Any]:
        """Run a round, time it, and after the last one that is timed end the processes where they do not pay."""
        costs, trial, alone = costs_of(tasks), self._trial, 0
        began = time.perf_counter()
        if trial.wants_one_process:
            while alone < max(_SHARE * len(tasks), 1) and time.perf_counter() - began < _SAMPLE:
                yield self._serial.here("fit", tasks[alone])
                alone += 1
            trial.note(time.perf_counter() - began, sum(costs[:alone]))
        rest = Turns(range(alone, len(tasks)), tasks.__getitem__, costs[alone:])
        yield from self.current.map("fit", rest)
        if not alone:
            trial.note(time.perf_counter() - began, sum(costs), self._processes / len(tasks))
        if trial.over and not trial.worthwhile:
            self.current.close()
            self.current = self._serial
        if trial.over:
            name = "serial" if self.current is self._serial else "processes"
            _log.info("executor: %s (%s).", name, trial.found)


class _Trial:
    """Compares several processes with one over the first three rounds.

    In the first all processes come to know their work, the second is timed, and of the third a few turns run in this
    process alone.
    """

    def __init__(self) -> None:
        self._rounds, self._several, self._one = 0, 0.0, 0.0
        self.over = False

    @property
    def wants_one_process(self) -> bool:
        return self._rounds == 2

    def note(self, seconds: float, cost: float, turns: float = 1.0) -> None:
        """Take the seconds of a round, or of its part in one process; ``turns`` is the inverse of a turn's share."""
        self._rounds += 1
        if self._rounds == 3:
            self._one, self.over = seconds / cost, True
        elif self._rounds == 2:
            self._several = seconds / cost
            self.over = seconds * turns > _LONG_TURN

    @property
    def worthwhile(self) -> bool:
        return not self._one or self._several <= _WORTHWHILE * self._one

    @property
    def found(self) -> str:
        if not self._one:
            return f"{self._several:.2g} s a step"
        return f"{1e3 * self._several:.3g} ms a step in several processes, {1e3 * self._one:.3g} in one"


def _processes(worker: Worker, course: Course, choice: Choice, among: Sequence[str]) -> tuple[int, str]:
    """Give how many processes may pay, and where one is enough the reason."""
    seconds = _SECONDS_PER_STEP + flops_of_step(worker, course) / _FLOPS_PER_SECOND
    per_turn = _SECONDS_PER_TURN + course.num_steps * seconds
    cores = num_cores()
    reasons = {
        choice.why: choice.stacked or choice.num_threads != 1 or course.cohort_size == 1,
        "executor.among has no processes": "processes" not in among,
        "one core": cores == 1,
        "the device is no CPU": worker.data.device.type != "cpu",
        "this process may have no children": current_process().daemon,
        "so short a run": course.num_rounds * course.cohort_size * per_turn < _WORTH_FORKING,
    }
    why = next((reason for reason, holds in reasons.items() if holds), "")
    return 1 if why else min(cores, course.cohort_size, _MOST_PROCESSES), why
