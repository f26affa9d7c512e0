"""Turns of clients of one architecture in one fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from fedfeat.client import ClientModule
from fedfeat.clients.local_trainer import begin_fit, quiet
from fedfeat.clients.worker import Worker
from fedfeat.errors import ClientError
from fedfeat.executors.stacked.batches import StackedBatches
from fedfeat.executors.stacked.fit import StackedClients, trainable
from fedfeat.executors.stacked.stacking import Objective, gradients, repeated, rows, write_row
from fedfeat.params import copy_into, snapshot
from fedfeat.tree import identical, is_finite
from fedfeat.types import Task, Update

if TYPE_CHECKING:
    from fedfeat.types import Params


def fit_stacked(
    worker: Worker,
    tasks: Sequence[Task],
    objective: Objective,
    differentiate: Callable[..., tuple[Params, Tensor]] = gradients,
) -> list[Update | ClientError]:
    """Fit clients of one architecture, each with at least one example, and give their results in their order.

    Args:
        worker: The worker.
        tasks: Their turns, of one round.
        objective: Around their client half.
        differentiate: `stacking.gradients`, or a compiled one, which is made again for every shape of its inputs.
    """
    client: ClientModule = objective.client
    num_steps = [client.local_steps(task.num_steps) for task in tasks]
    # Longest first; the sort is stable.
    places = sorted(range(len(tasks)), key=lambda place: -num_steps[place])
    tasks = [tasks[place] for place in places]
    batches = StackedBatches(
        worker.data,
        [task.client_id for task in tasks],
        [num_steps[place] for place in places],
        (worker.settings.seed, tasks[0].round_idx),
        worker.settings.batch_size,
        one_shape=differentiate is not gradients,
    )
    stack = _received(worker, objective, tasks)
    seeds = [worker.fit_seed(task) for task in tasks] if objective.calls else []
    module = StackedClients(objective, stack, batches.sizes.T.tolist(), seeds, differentiate)
    begin_fit(worker.lightning, len(batches), len(batches))
    with quiet():
        worker.lightning.fit(module, batches)
    results = _updates(worker, client, tasks, module, batches.sizes.sum(1).tolist())
    return [result for _, result in sorted(zip(places, results, strict=True), key=lambda pair: pair[0])]


def _received(worker: Worker, objective: Objective, tasks: Sequence[Task]) -> Params:
    """Stack what clients are before their first step, and leave in the module what they have in common."""
    client = objective.client

    def receive(task: Task) -> Params:
        client.receive(task.payload, task.memory)
        counts = worker.data.class_counts[task.client_id]
        client.begin_turn(task.lr_factor, counts, worker.data.device)
        return objective.state_dict()

    state = receive(tasks[0])
    if _alike(client, tasks):
        return repeated({name: state[name] for name in trainable(client)}, len(tasks))
    stack = repeated(state, len(tasks))
    for index, task in enumerate(tasks[1:], start=1):
        write_row(stack, index, receive(task))
    return stack


def _alike(client: ClientModule, tasks: Sequence[Task]) -> bool:
    """Whether all clients start from the same and differ in nothing but their examples."""
    if client.softmax_scope != "all" or type(client).begin_turn is not ClientModule.begin_turn:
        return False
    first = tasks[0].payload
    return all(task.memory is None and identical(task.payload, first) for task in tasks)


def _updates(
    worker: Worker,
    client: ClientModule,
    tasks: Sequence[Task],
    module: StackedClients,
    num_seen: Sequence[int],
) -> list[Update | ClientError]:
    fitted = module.fitted()
    sent = (*client.shared_keys, *client.personal_keys)
    common = snapshot(client.model, [key for key in sent if key not in fitted])
    healthy = is_finite(fitted)
    results: list[Update | ClientError] = []
    for task, row, loss_sum, seen in zip(tasks, rows(fitted), module.loss_sums(), num_seen, strict=True):
        payload, memory = client.upload_from(common | row)
        if not healthy and not (is_finite(payload) and is_finite(memory)):
            results.append(worker.failure(task, "its update holds values that are not finite"))
            continue
        client._loss_sum, client._num_seen = loss_sum, float(seen)
        metrics = client.turn_metrics()
        if task.evaluate or task.probe:
            copy_into(client.model, row)
        if task.evaluate:
            metrics |= worker.own_score(client, task.client_id)
        preferences = worker.preferences(client) if task.probe else None
        num_examples = worker.data.num_examples(task.client_id)
        results.append(Update(task.client_id, num_examples, payload, memory, metrics, preferences))
    return results
