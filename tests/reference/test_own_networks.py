"""What is looked at as a client's own model computes what the method calls its own model."""

import pytest
import torch
from float64_runs import steps_of

from fedfeat.clients.turns import become
from fedfeat.commands.client_models import client_modules

METHODS = (
    "local",
    "fedrep",
    "lg_fedavg",
    "fedbabu",
    "ditto",
    "apfl",
    "pfedme",
    "per_fedavg",
    "fedrod",
    "fedpac",
    "fedala",
    "fedhenn",
)


@pytest.mark.parametrize("method", METHODS)
def test_its_network_gives_the_logits_by_which_it_is_scored(method, tmp_path):
    words = ["federation.num_rounds=2", "partition=dirichlet", "partition.alpha=0.5"]
    experiment, steps = steps_of(tmp_path, f"algorithm={method}", *words)
    progress, worker, data = steps[-1][0], experiment.executor.worker, experiment.data
    inputs = data.plain(data.dataset.test.inputs[:20])
    for client_id, module in client_modules(experiment, progress):
        with torch.no_grad():
            found = module.eval().model(inputs)
        task = experiment.plan.task(
            progress.round_idx, client_id, 1,
            experiment.server.own_payload(progress.state, client_id), experiment.store.get(client_id),
        )  # fmt: skip
        become(module, task, module.recall)
        worker.adapt(module, client_id)
        with torch.no_grad(), worker.evaluating(module):
            torch.testing.assert_close(found, module.predict(inputs), rtol=0, atol=1e-12)


def test_heads_do_not_add_up_where_the_last_layer_is_frozen(tmp_path):
    experiment, steps = steps_of(
        tmp_path, "algorithm=fedrod", "model.freeze=[head]", "federation.num_rounds=2"
    )
    start = experiment.executor.worker.networks.build().last_layer.weight.detach().double()
    for client_id, module in client_modules(experiment, steps[-1][0]):
        own = experiment.store.get(client_id).memory.params["weight"]
        torch.testing.assert_close(module.model.last_layer.weight.detach(), start + own, rtol=0, atol=1e-12)
