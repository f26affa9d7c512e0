"""Which turn starts next, and results in cohort order, for executors that run several turns at once."""

from collections.abc import Iterator, Sequence
from typing import Any

from fedfeat.types import Turns


def costs_of(turns: Sequence[Any]) -> Sequence[float]:
    """Give the relative work of turns, equal where they do not say."""
    return turns.costs if isinstance(turns, Turns) else [1.0] * len(turns)


class Window:
    """Starts the longest turn first, but none too far ahead of the oldest result that is still to come.

    Results are handed out in cohort order whatever the order in which they arrive, so sums over them do not depend on
    the number of workers; and no more than ``size`` of them are ever held.

    Args:
        costs: Relative work of each turn, in cohort order.
        size: How many turns from the oldest unfinished one on may be started.
    """

    def __init__(self, costs: Sequence[float], size: int) -> None:
        self.costs, self._size = costs, size
        self._first = 0  # the next result to hand out
        self._seen = 0  # turns from here on have not been looked at
        self._waiting: list[int] = []
        self._results: dict[int, Any] = {}

    @property
    def done(self) -> bool:
        """Whether every result has been handed out."""
        return self._first == len(self.costs)

    def next(self) -> int | None:
        """Give the turn to start now, or None where none may start."""
        end = min(self._first + self._size, len(self.costs))
        self._waiting.extend(range(self._seen, end))
        self._seen = max(self._seen, end)
        if not self._waiting:
            return None
        longest = max(self._waiting, key=lambda turn: (self.costs[turn], -turn))
        self._waiting.remove(longest)
        return longest

    def put(self, turn: int, result: Any) -> None:
        """Take the result of a turn."""
        self._results[turn] = result

    def ready(self) -> Iterator[Any]:
        """Hand out the results that are next in cohort order."""
        while self._first in self._results:
            result = self._results.pop(self._first)
            self._first += 1
            yield result
