"""All turns one after the other in this process: the reference that the other executors are compared with."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from torch import Tensor

from fedfeat.errors import ClientError
from fedfeat.types import Answer, Scores, Task, Update
from fedfeat.worker import Worker


class SerialExecutor:
    """One worker, no parallelism.

    Args:
        build_worker: Makes the worker.
    """

    def __init__(self, build_worker: Callable[[], Worker]) -> None:
        self.worker = build_worker()

    def fit(self, tasks: Iterable[Task]) -> Iterator[Update | ClientError]:
        """Fit the clients; a failed fit is yielded as its error, so that the loop decides what it means."""
        for task in tasks:
            try:
                yield self.worker.fit(task)
            except ClientError as error:
                yield error

    def evaluate(self, tasks: Iterable[Task]) -> Iterator[dict[str, float]]:
        """Score each client's own model on its own test part."""
        for task in tasks:
            yield self.worker.evaluate_client(task)

    def score(self, payload: Any, indices: np.ndarray | None = None, client_id: int | None = None) -> Scores:
        """Score the server's model on test examples."""
        return self.worker.score(payload, indices, client_id)

    def represent(self, tasks: Iterable[Task], inputs: Tensor) -> Iterator[Answer]:
        """Represent unlabelled inputs (m, ...) by each client's own model."""
        for task in tasks:
            yield self.worker.represent(task, inputs)

    def observe(self, payload: Any) -> dict[str, Tensor]:
        """Give what the method watches in the server's model, each (n,)."""
        return self.worker.observe(payload)

    def score_validation(self, payload: Any) -> Scores:
        """Score the server's model on the validation examples."""
        return self.worker.score_validation(payload)
