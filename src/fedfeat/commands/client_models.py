"""The models that a run has at a round, one after the other: the server's, and the clients' where it holds them."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.clients.turns import become
from fedfeat.features.alignment import PART, represented
from fedfeat.features.capture import eval_mode
from fedfeat.params import copy_into, snapshot
from fedfeat.rounds.experiment import Experiment
from fedfeat.rounds.loop import Progress
from fedfeat.rounds.survey import surveyed
from fedfeat.rounds.tally import Tally
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
    experiment: Experiment,
    at: Checkpoint | Progress,
    clients: Sequence[int] | None = None,
    refit: bool = False,
) -> Iterator[tuple[int, ClientModule]]:
    """Give the module of each client, whose ``model`` is that client's until the next one is asked for.

    Args:
        experiment: The run, its store at the checkpoint.
        at: The checkpoint; or how far `Experiment.rounds` has come.
        clients: Ids of the clients; None is all of them.
        refit: Whether each trains first, as in the round that would follow with everyone in it, and it is what was
            trained; else the client's own model, as it is between its turns.

    Raises:
        ClientError: A fit failed.
    """
    worker, state = experiment.executor.worker, _state(experiment, at, refit)
    for client_id in range(experiment.plan.num_clients) if clients is None else clients:
        task = _task(experiment, at.round_idx, state, client_id, refit)
        module = worker.module_of(client_id, task.round_idx)
        if refit:
            worker.fit(task)
        else:
            become(module, task, module.recall)
        worker.adapt(module, client_id)
        own = {} if refit else module.own_tensors()
        shared = snapshot(module.model, list(own))
        copy_into(module.model, own)
        try:
            yield client_id, module
        finally:
            # The next client need not receive what is frozen.
            copy_into(module.model, shared)


def representations(experiment: Experiment, at: Checkpoint | Progress, inputs: Tensor) -> list[Tensor]:
    """Represent inputs by the own model of every client: what its last layer reads, each (m, d_k), on the CPU.

    Args:
        experiment: As in `client_modules`.
        at: As there.
        inputs: As the data set stores them, (m, ...).
    """
    found = []
    for _, module in client_modules(experiment, at):
        network: Any = module.to(experiment.data.device).model
        with eval_mode(network), torch.no_grad():
            found.append(_represented(module, network, inputs).cpu())
    return found


def _represented(module: ClientModule, network: Any, inputs: Tensor) -> Tensor:
    return represented(lambda raw: network.representation(module.laid_out(module.plain(raw))), inputs, PART)


def _state(experiment: Experiment, at: Checkpoint | Progress, refit: bool) -> Any:
    """Give the server's state, before fits with what it hears of the clients first."""
    round_idx, state = at[:2]
    if not refit:
        return state
    plan, server = experiment.plan, experiment.server
    where = experiment.executor, experiment.data, experiment.store
    return surveyed(plan, server, *where, state, round_idx, plan.able, Tally())


def _task(experiment: Experiment, round_idx: int, state: Any, client_id: int, refit: bool) -> Any:
    server = experiment.server
    payload = (server.broadcast if refit else server.own_payload)(state, client_id)
    num_steps = experiment.plan.full_steps(experiment.data.num_examples(client_id))
    return experiment.plan.task(round_idx, client_id, num_steps, payload, experiment.store.get(client_id))
