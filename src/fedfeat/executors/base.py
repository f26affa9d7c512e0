"""What every executor is: a place where clients' turns run, which gives their results in cohort order."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedfeat.clients.worker import Worker
from fedfeat.errors import ClientError
from fedfeat.types import Answer, Scores, Task, Update


class Executor(ABC):
    """Runs jobs of clients and yields their results in cohort order.

    A job is a sequence of tasks that are made when they are asked for (`types.Turns`). What is asked of a single
    model, and whatever a subclass does not do elsewhere, is done by the worker of this process.

    Attributes:
        worker: The worker of this process. Its module is the server's network.
    """

    worker: Worker

    def start(self) -> None:  # noqa: B027 - most executors have nothing to start
        """Start what the executor needs beside this process; called once, after the threads have been set."""

    def close(self) -> None:  # noqa: B027
        """End what `start` has started."""

    @abstractmethod
    def fit(self, turns: Sequence[Task]) -> Iterator[Update | ClientError]:
        """Fit the clients; a failed fit is yielded as its error, so that the loop decides what it means."""

    def fit_here(self, task: Task) -> Update | ClientError:
        """Fit one client in this process."""
        try:
            return self.worker.fit(task)
        except ClientError as error:
            return error

    def evaluate(self, turns: Sequence[Task]) -> Iterator[dict[str, float]]:
        """Score each client's own model on its own test part."""
        for task in turns:
            yield self.worker.evaluate_client(task)

    def answer(self, turns: Sequence[Task], inputs: Tensor) -> Iterator[Answer]:
        """Have clients answer on a survey's inputs (m, ...)."""
        for task in turns:
            yield self.worker.answer(task, inputs)

    def score(self, payload: Any, indices: np.ndarray | None = None, client_id: int | None = None) -> Scores:
        """Score the server's model on test examples, all of them unless ``indices`` are given."""
        return self.worker.score(payload, indices, client_id)

    def observe(self, payload: Any) -> dict[str, Tensor]:
        """Give what the method watches in the server's model, each (n,)."""
        return self.worker.observe(payload)

    def score_validation(self, payload: Any) -> Scores:
        """Score the server's model on the validation examples."""
        return self.worker.score_validation(payload)
