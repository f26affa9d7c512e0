"""What every executor is: a place where clients' tasks run, which gives their results in cohort order."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedfeat.clients.tasks import Scores, Task
from fedfeat.clients.worker import Worker
from fedfeat.errors import ClientError

_log = logging.getLogger(__name__)


class Course(NamedTuple):
    """How the rounds of a run go, as far as an executor may choose by it.

    Attributes:
        cohort_size: Clients of a round.
        num_rounds: Rounds.
        num_steps: Optimizer steps of a turn, on average.
        batch_size: Examples of a step.
    """

    cohort_size: int
    num_rounds: int
    num_steps: float
    batch_size: int


class Executor(ABC):
    """Runs jobs of clients and yields their results in cohort order.

    A job is a sequence of tasks that are made when they are asked for (`tasks.Turns`). What is asked of a single
    model, and whatever a subclass does not do elsewhere, is done by the worker of this process.

    Attributes:
        worker: The worker of this process. Its module is the server's network.
    """

    worker: Worker

    def settle(self, run_dir: Path, course: Course) -> None:  # noqa: B027 - most have nothing to choose
        """Choose what fixes the numbers; called once, before `start`, after the threads have been set.

        Args:
            run_dir: Directory of the run, which may have been begun.
            course: How the rounds go.
        """

    def note(self, run_dir: Path) -> None:  # noqa: B027
        """Keep in the run directory what was chosen."""

    def start(self) -> None:  # noqa: B027 - most executors have nothing to start
        """Start what the executor needs beside this process; called once, after the threads have been set."""

    def open(self) -> None:  # noqa: B027
        """Start what only rounds need, before loggers have threads; called when they are about to begin."""

    def close(self) -> None:  # noqa: B027
        """End what `start` and `open` have started."""

    @abstractmethod
    def map(self, job: str, tasks: Sequence[Task], *shared: Any) -> Iterator[Any]:
        """Call a method of a worker once for each task, and give the results in the tasks' order.

        A client that fails has its `ClientError` for a result, so that the caller decides what it means (see
        `raise_failures`); every other error is raised in its place.

        Args:
            job: The method's name, of `Worker`.
            tasks: Its first argument; each is asked for once.
            shared: Its other arguments, the same for all tasks.
        """

    def score(self, payload: Any, indices: np.ndarray | None = None, client_id: int | None = None) -> Scores:
        """Score the server's model on test examples, all of them unless ``indices`` are given."""
        return self.worker.score(payload, indices, client_id)

    def observe(self, payload: Any) -> dict[str, Tensor]:
        """Give what the method watches in the server's model, each (n,)."""
        return self.worker.observe(payload)

    def score_validation(self, payload: Any) -> Scores:
        """Score the server's model on the validation examples."""
        return self.worker.score_validation(payload)


def raise_failures(results: Iterator[Any]) -> Iterator[Any]:
    """Pass on the results of a job in which no client may fail; the error of one that has is raised."""
    # No generator, which would hold a result until it has the next one.
    return map(_not_failed, results)


def survivor(result: Any, skip_failed: bool) -> Any:
    """Give a job's result, or None for a failed turn, whose error is raised unless failures are skipped."""
    if not isinstance(result, ClientError):
        return result
    if not skip_failed:
        raise result
    _log.warning("%s Skipped.", result)
    return None


def _not_failed(result: Any) -> Any:
    if isinstance(result, ClientError):
        raise result
    return result
