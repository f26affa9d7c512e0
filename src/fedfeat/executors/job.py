"""Jobs of executors that run several tasks at once: which task starts next, and results in cohort order."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedfeat.clients.tasks import Turns
from fedfeat.clients.worker import Worker
from fedfeat.errors import ClientError
from fedfeat.executors.codec import Packer

# A worker that dies with a client may be its victim (out of memory) or that of something else.
DEATHS = 3


def costs_of(tasks: Sequence[Any]) -> Sequence[float]:
    """Give the relative work of tasks, equal where they do not say."""
    return tasks.costs if isinstance(tasks, Turns) else [1.0] * len(tasks)


def attempt(worker: Worker, method: str, arguments: Sequence[Any]) -> Any:
    """Call a method of a worker; what it raises is a result too, to be told in cohort order."""
    try:
        return getattr(worker, method)(*arguments)
    except Exception as error:
        return error


class Job:
    """A method of the workers that is called once for each task, which is told by its place in the job.

    The longest task starts first, but none too far ahead of the oldest result that is still to come. Results are handed
    out in cohort order whatever the order in which they arrive, so sums over them do not depend on the number of
    workers; and no more than ``size`` of them are ever held.

    Args:
        method: Its name.
        make: Makes the arguments for the task at a place. It is asked once, and what it gives is kept until the
            result is there, for a worker that dies.
        costs: Relative work of each task, in cohort order.
        size: How many tasks from the oldest unfinished one on may be started.
        pack: Packs arguments for their way to another process.
    """

    def __init__(
        self,
        method: str,
        make: Callable[[int], Sequence[Any]],
        costs: Sequence[float],
        size: int,
        pack: Packer,
    ) -> None:
        self.method, self.costs, self.pack = method, costs, pack
        self._make, self._size = make, size
        self._losses = Counter[int]()  # by place
        self._first = 0  # the next result to hand out
        self._seen = 0  # places from here on have not been looked at
        self._waiting: list[int] = []
        self._again: list[int] = []
        self._made: dict[int, Sequence[Any]] = {}
        self._results: dict[int, Any] = {}

    @property
    def done(self) -> bool:
        """Whether every result has been handed out."""
        return self._first == len(self.costs)

    def next(self, lost: bool = True) -> int | None:
        """Give the place of the task to start now, one to be run again before others, or None where none may start.

        Args:
            lost: Whether it may be one with which a worker has died.
        """
        for place in self._again:
            if lost or not self._losses[place]:
                self._again.remove(place)
                return place
        end = min(self._first + self._size, len(self.costs))
        self._waiting.extend(range(self._seen, end))
        self._seen = max(self._seen, end)
        if not self._waiting:
            return None
        longest = max(self._waiting, key=lambda place: (self.costs[place], -place))
        self._waiting.remove(longest)
        return longest

    def arguments(self, place: int) -> Sequence[Any]:
        """Give the method's arguments for a task that has no result yet."""
        if place not in self._made:
            self._made[place] = self._make(place)
        return self._made[place]

    def lose(self, place: int) -> bool:
        """Have the task with which a worker has died run again; False where `DEATHS` have, and it does not."""
        self._losses[place] += 1
        is_left = self._losses[place] < DEATHS
        if is_left:
            self.give_back(place)
        return is_left

    def give_back(self, place: int) -> None:
        """Have a task that was not started be the next."""
        self._again.append(place)

    def put(self, place: int, result: Any) -> None:
        """Take the result of a task."""
        del self._made[place]
        self._results[place] = result

    def results(self, opened: Callable[[Any], Any] = lambda result: result) -> Iterator[Any]:
        """Hand out the results that are next in cohort order, ``opened``; errors other than a client's are raised."""
        while self._first in self._results:
            result = self._results.pop(self._first)
            self._first += 1
            yield _settled(opened(result))


def _settled(result: Any) -> Any:
    if isinstance(result, Exception) and not isinstance(result, ClientError):
        raise result
    return result
