"""What executors are given to do, and a model's scores as they come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedfeat.types import Kept


class Task(NamedTuple):
    """What an executor is given to do for one client.

    Attributes:
        client_id: The client.
        round_idx: The round, from 0.
        payload: What the server sends.
        kept: What the client kept from its last turn, or None before its first.
        num_steps: Optimizer steps of a fit.
        lr_factor: The round's factor on the learning rate.
        evaluate: Score the client's model on its own test part after the fit.
        probe: Take the class preferences of the client's model after the fit.
        final: Whether it is the fit after the last round, see `types.Turn`.
    """

    client_id: int
    round_idx: int
    payload: Any
    kept: Kept | None
    num_steps: int = 0
    lr_factor: float = 1.0
    evaluate: bool = False
    probe: bool = False
    final: bool = False


class Turns(Sequence[Task]):
    """The tasks of a job in cohort order, each made when it is asked for.

    So the payloads and memories of a cohort are never held at once, and an executor may ask in the order that suits
    it. It asks for each task once, for what is sent is counted when a task is made.

    Args:
        clients: Ids of the clients.
        make: Makes a client's task.
        costs: Relative work of each client, for schedules; equal where not given.
    """

    def __init__(
        self, clients: Sequence[int], make: Callable[[int], Task], costs: Sequence[float] | None = None
    ) -> None:
        self.clients, self.costs = list(clients), [1.0] * len(clients) if costs is None else list(costs)
        self._make = make

    def __len__(self) -> int:
        """Give the number of tasks."""
        return len(self.clients)

    def __iter__(self) -> Iterator[Task]:
        """Make the tasks in their order; Sequence's own would take an IndexError of a broadcast for the end."""
        return map(self._make, self.clients)

    def __getitem__(self, position: Any) -> Any:
        """Make the task at a position."""
        return self._make(self.clients[position])


class Scores(NamedTuple):
    """A model's result on every example of a set, in the set's order.

    Attributes:
        correct: 1.0 where the prediction is right, float64 (N,).
        losses: Cross-entropy per example, float64 (N,).
    """

    correct: np.ndarray
    losses: np.ndarray
