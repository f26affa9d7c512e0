"""What narrow clients of HeteroFL score after a fit and between turns, and what the server's part of them computes."""

import pytest
import torch
from float64_runs import steps_of
from torch.nn import functional
from width_rounds import Setting, federation_of, networks_of

from fedfeat.algorithms.static_norm import batch_norms
from fedfeat.clients.turns import become
from fedfeat.models.streams import WEIGHTED
from fedfeat.models.widths import axes_of, narrowed, part_of, places
from fedfeat.params import copy_into, snapshot
from fedfeat.rounds.own_models import own_scores


def divided(network, rate):
    """Divide weights and biases of all layers but the last, which stands for the Scaler."""
    for layer in network.modules():
        if isinstance(layer, WEIGHTED) and layer is not network.last_layer:
            for parameter in layer.parameters():
                parameter.data /= rate
    return network.eval()


def scored_by_hand(experiment, module, rate):
    """Accuracy and loss on client 1's test part by a network without a Scaler."""
    whole = experiment.executor.worker.networks.build().double()
    plain = narrowed(whole, axes_of(whole), rate, scaler=False)
    copy_into(plain, snapshot(module.model))
    data = experiment.data
    ((inputs, labels),) = data.test_batches(data.test_indices(1), 1000, 1)
    with torch.no_grad():
        logits = divided(plain, rate)(inputs)
    return float((logits.argmax(1) == labels).double().mean()), float(
        functional.cross_entropy(logits, labels)
    )


@pytest.mark.parametrize("half", ["heterofl", "fedprox"])
@pytest.mark.parametrize("norm", ["none", "bn", "gn"])
def test_after_its_fit_a_narrow_client_is_scored_by_the_function_that_it_has_trained(norm, half, tmp_path):
    words = ["algorithm=heterofl", f"algorithm/client={half}", "structure.levels=[1.0,0.25]"]
    words += [f"model.norm={norm}", "federation.num_rounds=1", *["model.norm_groups=1"] * (norm == "gn")]
    experiment, steps = steps_of(tmp_path, *words)
    worker, state = experiment.executor.worker, steps[-1][0].state
    task = experiment.plan.task(1, 1, 8, experiment.server.broadcast(state, 1), None, evaluate=True)
    metrics = worker.fit(task).metrics
    accuracy, loss = scored_by_hand(experiment, worker.module_of(1), 0.25)
    assert metrics["own/acc"] == accuracy
    assert metrics["own/loss"] == pytest.approx(loss, abs=1e-9)


def test_with_batch_norm_the_score_is_that_in_training_mode(tmp_path):
    """There a batch of the whole test part has nearly the statistics of the fit."""
    words = [
        "algorithm=heterofl",
        "structure.levels=[1.0,0.25]",
        "model.norm=bn",
        "model.width=32",
        "partition=iid",
    ]
    words += ["data.loader.num_train=1200", "data.loader.num_test=359", "federation.local_epochs=3"]
    experiment, steps = steps_of(tmp_path, *words, "federation.num_clients=2")
    worker, data = experiment.executor.worker, experiment.data
    payload = experiment.server.broadcast(steps[-1][0].state, 1)
    score = worker.fit(experiment.plan.task(3, 1, 225, payload, None, evaluate=True)).metrics["own/acc"]
    ((inputs, labels),) = data.test_batches(data.test_indices(1), 1000, 1)
    with torch.no_grad():
        trained = float((worker.module_of(1).model.train()(inputs).argmax(1) == labels).double().mean())
    assert trained > 0.7
    assert abs(score - trained) < 0.06


def test_between_turns_a_narrow_client_that_learns_alone_is_scored_so_too(tmp_path):
    words = ["algorithm=local", "structure=widths", "structure.levels=[1.0,0.25]", "federation.num_rounds=2"]
    experiment, steps = steps_of(tmp_path, *words)
    worker = experiment.executor.worker
    task = experiment.plan.task(
        2, 1, 8, experiment.server.broadcast(steps[-1][0].state, 1), experiment.store.get(1)
    )
    metrics = worker.evaluate_client(task)
    accuracy, loss = scored_by_hand(experiment, worker.module_of(1), 0.25)
    assert metrics["own/acc"] == accuracy
    assert metrics["own/loss"] == pytest.approx(loss, abs=1e-9)


def test_between_turns_static_batch_norm_has_the_statistics_of_the_part(tmp_path):
    """Its channels read fewer numbers than in the whole network, so it is not normalised by what that one sees."""
    words = ["algorithm=heterofl", "structure.levels=[1.0,0.25]", "model.norm=bn", "federation.num_rounds=1"]
    experiment, steps = steps_of(tmp_path, *words, "data.loader.num_train=150", "scenario.weak_fraction=0.5")
    worker, data, state = experiment.executor.worker, experiment.data, steps[-1][0].state
    whole = worker.networks.build().double()
    part = narrowed(whole, axes_of(whole), 0.25, scaler=False)
    copy_into(part, part_of(state.params, places(axes_of(whole), 0.25)))
    for norm in (module for module in part.modules() if isinstance(module, torch.nn.BatchNorm2d)):
        norm.reset_running_stats()
        norm.momentum = None
    ((inputs, labels),) = data.test_batches(data.test_indices(1), 1000, 1)
    with torch.no_grad():
        part.train()(torch.cat([data.plain(data.dataset.train.inputs[:150])]))
        logits = part.eval()(inputs)
    found = own_scores(experiment.server, experiment.executor, data, experiment.store, state, [1], 1)[1]
    assert found["own/acc"] == float((logits.argmax(1) == labels).double().mean())
    assert found["own/loss"] == pytest.approx(float(functional.cross_entropy(logits, labels)), abs=1e-9)


@pytest.mark.parametrize("norm", ["none", "bn"])
@pytest.mark.parametrize("half", ["heterofl", "fedrolex"])
def test_weak_clients_are_scored_at_the_level_that_they_would_have_in_the_next_round(half, norm, tmp_path):
    words = [
        f"algorithm={half}",
        "structure.levels=[1.0,0.5,0.25]",
        "structure.dynamic=true",
        f"model.norm={norm}",
    ]
    words += ["federation.num_rounds=2", "federation.final_epochs=1", "scenario.weak_fraction=0.5"]
    experiment, steps = steps_of(tmp_path, *words)
    networks = experiment.executor.worker.networks
    weak = experiment.plan.excluded
    assert any(networks.key(k, 0) != networks.key(k, 2) for k in weak)
    final = {row.client_id: row.final_acc for row in steps[-1][1].clients}
    assert all(0 <= final[k] <= 1 for k in weak)


def test_the_part_that_the_server_gives_has_no_scaler_until_it_is_trained(tmp_path):
    federation = federation_of(Setting((1.0, 0.5)), tmp_path)
    start = federation.start()
    module = federation.executor.worker.module_of(1).eval()
    task = federation.plan.task(0, 1, 1, federation.server.broadcast(start.state, 1), None)
    whole = networks_of(Setting((1.0, 0.5))).build().double()
    plain = narrowed(whole, axes_of(whole), 0.5, scaler=False).eval()
    inputs = torch.randn(4, 2, 1, 2, dtype=torch.float64)
    become(module, task, module.recall)
    torch.testing.assert_close(module(inputs), plain(inputs))
    become(module, task, module.receive)
    torch.testing.assert_close(module(inputs), divided(plain, 0.5)(inputs))


def test_who_trains_on_nothing_is_scored_with_nobodys_statistics(tmp_path):
    """A client without a batch, right after one with some: mean 0 and variance 1, as if it had been alone."""
    words = ["algorithm=heterofl", "structure.levels=[1.0]", "model.norm=bn", "federation.num_rounds=1"]
    experiment, steps = steps_of(tmp_path, *words)
    worker = experiment.executor.worker
    worker.fit(experiment.plan.task(1, 1, 8, experiment.server.broadcast(steps[-1][0].state, 1), None))
    assert any(norm.running_mean.any() for norm in batch_norms(worker.module_of(1).model))
    become(worker.module_of(0), experiment.plan.task(1, 0, 8, experiment.server.broadcast(steps[-1][0].state, 0), None),
           worker.module_of(0).receive)  # fmt: skip
    for norm in batch_norms(worker.module_of(0).model):
        assert not norm.running_mean.any()
        assert (norm.running_var == 1).all()
