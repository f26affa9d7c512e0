"""Turns of clients of one architecture in one fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.clients.worker import Worker
from fedfeat.data.batches import cut
from fedfeat.errors import ClientError
from fedfeat.executors.stacked.batches import StackedBatches
from fedfeat.executors.stacked.clipping import Clip
from fedfeat.executors.stacked.fit import StackedClients, trainable
from fedfeat.executors.stacked.stacking import Objective, gradients, repeated, write_row
from fedfeat.executors.stacked.updates import made_updates
from fedfeat.tree import identical
from fedfeat.types import Update

if TYPE_CHECKING:
    from fedfeat.types import Params


def has_phases(client: ClientModule) -> bool:
    """Whether what trains changes in the course of a fit."""
    return type(client).phases is not ClientModule.phases


def phases_of(worker: Worker, client: ClientModule, task: Task) -> tuple[int, ...]:
    """Give the steps of each phase of a client's fit."""
    if not has_phases(client):
        return (client.local_steps(task.num_steps),)
    settings = worker.settings
    num_examples = worker.data.num_examples(task.client_id)
    size, used = cut(num_examples, settings.batch_size, worker.drop_singleton)
    return client.phases(client.local_steps(task.num_steps), max(-(-used // size), 1))


def chains(phases: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Sort positions into fits in whose every phase the numbers of steps fall."""
    found: list[list[int]] = []
    for position in _longest_first(phases):
        for chain in found:
            if all(mine <= its for mine, its in zip(phases[position], phases[chain[-1]], strict=True)):
                chain.append(position)
                break
        else:
            found.append([position])
    return found


def _longest_first(phases: Sequence[tuple[int, ...]]) -> list[int]:
    """Sort positions by the steps of their first phase, then of the next; the sort is stable."""
    return sorted(range(len(phases)), key=lambda place: [-steps for steps in phases[place]])


def fit_stacked(
    worker: Worker,
    tasks: Sequence[Task],
    objective: Objective,
    differentiate: Callable[..., tuple[Params, Tensor, Params]] = gradients,
) -> list[Update | ClientError]:
    """Fit clients of one architecture, each with at least one example, and give their results in their order.

    Their tasks are of one round. ``differentiate`` is `stacking.gradients`, or a compiled one, which is made again
    for every shape of its inputs.
    """
    client: ClientModule = objective.client
    phases = [phases_of(worker, client, task) for task in tasks]
    places = _longest_first(phases)
    tasks = [tasks[place] for place in places]
    batches = StackedBatches(
        worker.data,
        [task.client_id for task in tasks],
        [phases[place] for place in places],
        (worker.settings.seed, tasks[0].round_idx),
        worker.settings.batch_size,
        worker.drop_singleton,
        one_shape=differentiate is not gradients,
    )
    objective.to(worker.data.device).train()
    stack = _begun(worker, objective, tasks)
    seeds = [worker.fit_seed(task) for task in tasks] if objective.calls else []
    bound, algorithm = worker.trainer.gradient_clip_val, worker.trainer.gradient_clip_algorithm
    clip = Clip(bound, algorithm) if bound else None
    # Optimizers are made for one client, without a state, and get those of all when they are stacked.
    client.optimizer_state = {}
    states = [task.kept.optimizer if task.kept else {} for task in tasks]
    kept = states if worker.settings.keep_optimizer else None
    sizes = batches.sizes.tolist()
    stacked = StackedClients(objective, stack, sizes, batches.ends, seeds, kept, clip, differentiate)
    stacked.fit(batches, worker.lightning.precision_plugin.train_step_context)
    results = made_updates(worker, client, tasks, stacked, batches)
    by_place = dict(zip(places, results, strict=True))
    return [by_place[place] for place in range(len(places))]


def _begun(worker: Worker, objective: Objective, tasks: Sequence[Task]) -> Params:
    """Stack what clients are before their first step, and leave in the module what they have in common."""
    client = objective.client
    worker.begin(client, tasks[0])
    state = objective.state_dict()
    if _alike(client, tasks):
        own = (*trainable(client), *objective.moving)
        return repeated({name: state[name] for name in own}, len(tasks))
    stack = repeated(state, len(tasks))
    for index, task in enumerate(tasks[1:], start=1):
        worker.begin(client, task)
        found = objective.state_dict()
        if found.keys() != stack.keys():
            names = ", ".join(sorted(found.keys() ^ stack.keys()))
            raise ValueError(f"{names} must be there for all clients or for none")
        write_row(stack, index, found)
    return stack


def _alike(client: ClientModule, tasks: Sequence[Task]) -> bool:
    """Whether all clients start from the same and differ in nothing but their examples."""
    if client.softmax_scope != "all" or type(client).begin_turn is not ClientModule.begin_turn:
        return False
    first = tasks[0].payload
    return all(task.kept is None and identical(task.payload, first) for task in tasks)
