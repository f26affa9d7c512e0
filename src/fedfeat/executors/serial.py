"""All tasks one after the other in this process: the reference that the other executors are compared with."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedfeat.clients.tasks import Task
from fedfeat.clients.worker import Worker
from fedfeat.errors import ClientError
from fedfeat.executors.base import Executor


class SerialExecutor(Executor):
    """One worker, no parallelism.

    Args:
        build_worker: Makes the worker.
    """

    def __init__(self, build_worker: Callable[[], Worker]) -> None:
        self.worker = build_worker()

    def map(self, job: str, tasks: Sequence[Task], *shared: Any) -> Iterator[Any]:
        """Call the worker's method in cohort order."""
        for task in tasks:
            yield self.here(job, task, *shared)

    def here(self, job: str, task: Task, *shared: Any) -> Any:
        """Call the worker's method for one task; the error of a client that fails is its result."""
        try:
            return getattr(self.worker, job)(task, *shared)
        except ClientError as error:
            return error
