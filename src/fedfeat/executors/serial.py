"""All turns one after the other in this process: the reference that the other executors are compared with."""

from collections.abc import Callable, Iterator, Sequence

from fedfeat.clients.worker import Worker
from fedfeat.errors import ClientError
from fedfeat.executors.base import Executor
from fedfeat.types import Task, Update


class SerialExecutor(Executor):
    """One worker, no parallelism.

    Args:
        build_worker: Makes the worker.
    """

    def __init__(self, build_worker: Callable[[], Worker]) -> None:
        self.worker = build_worker()

    def fit(self, turns: Sequence[Task]) -> Iterator[Update | ClientError]:
        """Fit the clients in cohort order."""
        for task in turns:
            yield self.fit_here(task)
