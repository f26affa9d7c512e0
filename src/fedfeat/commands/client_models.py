"""The models that a checkpoint has, one after the other: the server's, and the clients' where it holds them."""

from collections.abc import Iterator, Sequence
from typing import Any

from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.clients.turns import become
from fedfeat.rounds.experiment import Experiment
from fedfeat.runs.checkpoint import Checkpoint


def holds_own_models(experiment: Experiment) -> bool:
    """Whether clients of a run keep a model, or a part of it, that is their own."""
    half = experiment.executor.worker.module
    return half.keeps_model or bool(half.personal_keys)


def become_server(experiment: Experiment, checkpoint: Checkpoint) -> bool:
    """Make the worker's module the server's model; False where the method has none."""
    payload = experiment.server.global_payload(checkpoint.server_state)
    if payload is None:
        return False
    module = experiment.executor.worker.module
    become(module, Task(0, checkpoint.round_idx, payload, None), module.receive)
    return True


def client_modules(
    experiment: Experiment, checkpoint: Checkpoint, clients: Sequence[int], refit: bool
) -> Iterator[tuple[int, ClientModule]]:
    """Give the module of each client, which is that client's own model until the next one is asked for.

    Args:
        experiment: The run, its store at the checkpoint.
        checkpoint: The checkpoint.
        clients: Ids of the clients.
        refit: Whether each trains first, as in the round that would follow; else it is as it is between its turns.

    Raises:
        ClientError: A fit failed.
    """
    worker = experiment.executor.worker
    for client_id in clients:
        task = _task(experiment, checkpoint, client_id)
        module = worker.module_of(client_id, task.round_idx)
        if refit:
            worker.fit(task)
        else:
            become(module, task, module.recall)
        worker.adapt(module, client_id)
        yield client_id, module


def _task(experiment: Experiment, checkpoint: Checkpoint, client_id: int) -> Any:
    payload = experiment.server.broadcast(checkpoint.server_state, client_id)
    num_steps = experiment.plan.full_steps(experiment.data.num_examples(client_id))
    memory = experiment.store.get(client_id)
    return experiment.plan.task(checkpoint.round_idx, client_id, num_steps, payload, memory)
