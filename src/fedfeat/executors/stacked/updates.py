"""What comes of clients that were fitted together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.clients.turns import left_out, turn_of
from fedfeat.clients.worker import Worker
from fedfeat.errors import ClientError
from fedfeat.executors.stacked.batches import StackedBatches
from fedfeat.executors.stacked.fit import StackedClients
from fedfeat.params import copy_into, rows, snapshot
from fedfeat.tree import is_finite
from fedfeat.types import Turn, Update, Weights

if TYPE_CHECKING:
    from fedfeat.types import Params


def made_updates(
    worker: Worker,
    client: ClientModule,
    tasks: Sequence[Task],
    stacked: StackedClients,
    batches: StackedBatches,
) -> list[Update | ClientError]:
    """Give the updates of tasks after their fit, in their order."""
    plain = _sends_weights_alone(client) and not any(task.evaluate or task.probe for task in tasks)
    make = _views if plain and stacked.states is None else _concluded
    fitted = stacked.fitted()
    # Only what is nothing but the weights is known to be finite by them.
    healthy = make is _views and is_finite(fitted)
    results = make(worker, client, tasks, stacked, batches, fitted)
    if healthy:
        return list(results)
    return [worker.divergence(task, one) or one for task, one in zip(tasks, results, strict=True)]


def _sends_weights_alone(client: ClientModule) -> bool:
    """Whether all that comes of a turn are shared weights and what every half says of its fit."""
    own = type(client)
    methods = ("upload", "note", "turn_metrics", "metrics_of")
    as_given = all(getattr(own, name) is getattr(ClientModule, name) for name in methods)
    return as_given and not client.runs_at_upload and not client.personal_keys


def _views(
    worker: Worker,
    client: ClientModule,
    tasks: Sequence[Task],
    stacked: StackedClients,
    batches: StackedBatches,
    fitted: Params,
) -> list[Update]:
    """Give updates whose tensors are views of one stack; what all have in common has no rows of its own in it."""
    state, keys = client.state_dict(), client.shared_keys
    names = {key: f"model.{key}" for key in keys}
    common = {key: state[name].detach() for key, name in names.items() if name not in fitted}
    stack = {
        # One copy from a GPU for all clients.
        key: common[key].cpu().expand(len(tasks), *common[key].shape)
        if key in common
        else fitted[names[key]].cpu()
        for key in keys
    }
    counts = [worker.data.num_examples(task.client_id) for task in tasks]
    each = zip(tasks, counts, rows(stack), stacked.loss_sums(), batches.sizes.sum(0).tolist(), strict=True)
    return [
        Update(task.client_id, count, Weights(row), None, client.metrics_of(loss, float(seen)))
        for task, count, row, loss, seen in each
    ]


def _concluded(
    worker: Worker,
    client: ClientModule,
    tasks: Sequence[Task],
    stacked: StackedClients,
    batches: StackedBatches,
    fitted: Params,
) -> list[Update]:
    """Have the half make every client's update."""
    fitted = {key: stack.cpu() for key, stack in fitted.items()}
    skipped = left_out(client)
    rest = [key for key in client.state_dict() if key not in {*fitted, *skipped}]
    common = _by_part(snapshot(client, rest))
    sent = {key: stack for key, stack in fitted.items() if key not in skipped}
    own = {part: rows(stack) for part, stack in _by_part(sent).items()}
    seen, losses = batches.seen(), stacked.loss_sums()
    states = stacked.states.read() if stacked.states is not None else [{}] * len(tasks)
    results = []
    for index, task in enumerate(tasks):
        client.note(losses[index], seen[index])
        if client.runs_at_upload or task.evaluate or task.probe:
            copy_into(client, {key: stack[index] for key, stack in fitted.items()})
        mine = {part: found[index] for part, found in own.items()}
        tensors = common | {p: common[p] | row if p in common else row for p, row in mine.items()}
        turn = _ended(worker, client, task, int((batches.sizes[:, index] > 0).sum()))
        results.append(worker.conclude(client, task, turn, tensors, states[index]))
    return results


def _ended(worker: Worker, client: ClientModule, task: Task, num_steps: int) -> Turn:
    memory = task.kept.memory if task.kept else None
    turn = turn_of(client, task, memory, worker.data, worker.settings.seed)
    return turn._replace(num_steps=num_steps)


def _by_part(tensors: Params) -> dict[str, Params]:
    """Sort a client half's tensors by the module that they belong to; its own buffers belong to none."""
    parts: dict[str, Params] = {}
    for key, tensor in tensors.items():
        part, dot, name = key.partition(".")
        if dot:
            parts.setdefault(part, {})[name] = tensor
    return parts
