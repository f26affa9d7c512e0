"""Scores of clients' own models, of which there may be a hundred thousand."""

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from fedfeat.clients.tasks import Task, Turns
from fedfeat.clients.turns import adapts
from fedfeat.data.federated import FederatedData
from fedfeat.executors.base import Executor, raise_failures
from fedfeat.runs.client_store import ClientStore
from fedfeat.server import Server
from fedfeat.tree import identical

_log = logging.getLogger("fedfeat")
_SECONDS_BETWEEN_LINES = 15.0
T = TypeVar("T")


def own_scores(
    server: Server,
    executor: Executor,
    data: FederatedData,
    store: ClientStore,
    state: Any,
    clients: Sequence[int],
    round_idx: int,
) -> dict[int, dict[str, float]]:
    """Score clients' own models as they are after ``round_idx`` rounds, each on what it has of `own_parts`.

    Clients that have kept nothing yet and would receive the same are one model, which is run once, unless each has
    inputs or validation examples of its own.
    """
    found: dict[int, dict[str, float]] = {}
    has_state = set(store)
    own_data = data.permuted or data.num_val or adapts(executor.worker.module)
    untrained = [] if own_data else [k for k in clients if k not in has_state]
    make, architecture = partial(server.own_payload, state), executor.worker.networks.key
    for payload, alike in _alike(untrained, make, partial(architecture, round_idx=round_idx)):
        found |= _common_scores(executor, data, Task(alike[0], round_idx, payload, None), alike)
    left = [k for k in clients if k not in found]
    waiting = Turns(left, lambda k: Task(k, round_idx, make(k), store.get(k)))
    scores = raise_failures(executor.map("evaluate_client", waiting))
    found |= zip(left, _with_progress(scores, len(left), "Own models scored"), strict=True)
    return {k: found[k] for k in clients}


def _alike(
    clients: Sequence[int], broadcast: Callable[[int], Any], architecture: Callable[[int], Hashable]
) -> list[tuple[Any, list[int]]]:
    """Group clients that would be one and the same model, two and more, each group with what they would receive."""
    groups: dict[Hashable, tuple[Any, list[int]]] = {}
    for k in clients:
        payload = broadcast(k)
        first, alike = groups.setdefault(architecture(k), (payload, []))
        if identical(payload, first):
            alike.append(k)
    return [group for group in groups.values() if len(group[1]) > 1]


def _common_scores(
    executor: Executor, data: FederatedData, task: Task, clients: Sequence[int]
) -> dict[int, dict[str, float]]:
    (scores,) = raise_failures(executor.map("score_own", Turns([task.client_id], lambda _: task)))
    sizes, correct, losses = (
        data.test_sizes(),
        data.test_means(scores.correct),
        data.test_means(scores.losses),
    )
    return {
        k: {"own/acc": float(correct[k]), "own/loss": float(losses[k])} if sizes[k] else {} for k in clients
    }


def _with_progress(results: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Pass results on and say now and then how many have come, where they take long."""
    said = time.monotonic()
    for count, result in enumerate(results, start=1):
        yield result
        if time.monotonic() - said > _SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            _log.info("%s: %d of %d.", what, count, total)
