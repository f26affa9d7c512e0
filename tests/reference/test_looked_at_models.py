"""Clients' models that are looked at: those after one more fit, and preferences on images as each client sees them."""

import pytest
import torch
from float64_runs import SMALL, experiment_of

from fedfeat.clients.worker import Worker
from fedfeat.commands.client_models import client_modules
from fedfeat.data.pixels import pixel_permutation
from fedfeat.params import snapshot

SHARING = {
    "fedavg": (),
    "fedhenn": ("algorithm.server.rad_size=32", "algorithm.server.eta0=1"),
    "fedmd": ("algorithm.server.public_size=16",),
    "moon": (),
    "ditto": (),
}


def after(experiment, num_rounds):
    """Where it stands after so many rounds, and the rounds that are left."""
    rounds = experiment.rounds(experiment.begin()[0])
    return next(step for step, record in rounds if record.round_idx == num_rounds), rounds


@pytest.mark.parametrize("method", SHARING)
def test_a_refit_is_the_fit_of_the_round_that_follows(method, tmp_path, monkeypatch):
    """With everyone in it; before its fits, a server that shares inputs has heard the clients about them."""
    words = ["partition=dirichlet", "partition.alpha=0.5", "partition.min_size=5"]
    experiment = experiment_of(tmp_path, f"algorithm={method}", *SHARING[method], *words)
    step, rounds = after(experiment, 2)
    refit = {k: snapshot(module.model) for k, module in client_modules(experiment, step, refit=True)}
    fitted, fit = {}, Worker.fit

    def noted(self, task):
        update = fit(self, task)
        fitted[task.client_id] = snapshot(self.module_of(task.client_id, task.round_idx).model)
        return update

    monkeypatch.setattr(Worker, "fit", noted)
    next(rounds)
    assert list(fitted) == list(refit) == [0, 1, 2, 3]
    for client_id, tensors in fitted.items():
        assert all(torch.equal(refit[client_id][name], own) for name, own in tensors.items())


def test_networks_that_read_their_own_orders_alike_have_the_same_preferences(tmp_path):
    """The first layer of one, its columns in each client's order, gives all the same numbers of the same images."""
    words = ["partition=permuted", "model=mlp", "diagnostics=alignment"]
    small = [word for word in SMALL if not word.startswith("model.")]
    worker = experiment_of(tmp_path, *words, small=small).executor.worker
    weight = worker.networks.build().encoder.fc1.linear.weight.detach()
    found = []
    for client_id in range(4):
        module = worker.module_of(client_id, 0)
        order = torch.from_numpy(pixel_permutation(0, client_id, weight.shape[1]))
        with torch.no_grad():
            module.model.encoder.fc1.linear.weight.copy_(weight[:, order])
        found.append(worker.preferences(module, client_id))
    first, *others = found
    for other in others:
        for mine, its in zip(first.vectors, other.vectors, strict=True):
            torch.testing.assert_close(mine, its)
    unlike = worker.preferences(module, 0).vectors[0]
    assert not torch.allclose(unlike, first.vectors[0])
