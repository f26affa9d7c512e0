"""FedAvg and FedProx against arithmetic that is written out in NumPy."""

from functools import partial

import numpy as np
import pytest
import torch
from harness import (
    LR,
    SIZES,
    assert_close,
    averaged,
    examples_of,
    gradient,
    make_data,
    network_of,
    params_of,
    parties,
    sample_cohort,
    zeros,
)
from torch import nn

from fedfeat.algorithms.fedavg import FedAvgServer, FedAvgState
from fedfeat.algorithms.fedprox import FedProxClient
from fedfeat.client import ClientModule
from fedfeat.models.network import Network
from fedfeat.params import WeightedMean
from fedfeat.types import Update, Weights


def update(client_id, num_examples, **tensors):
    return Update(
        client_id, num_examples, Weights({key: torch.tensor(v) for key, v in tensors.items()}), None, {}
    )


def check_sample_weights():
    """(1 * 3 + 2 * 5 + 4 * 8) / 16 = 45 / 16."""
    state = FedAvgState({"w": torch.zeros(1)}, complete=True)
    updates = [update(k, n, w=[w]) for k, (n, w) in enumerate(zip(SIZES, (1.0, 2.0, 4.0), strict=True))]
    assert FedAvgServer().aggregate(state, updates).params["w"].item() == 45 / 16


def test_the_mean_weighs_clients_by_their_examples():
    check_sample_weights()


def test_the_uniform_mean_does_not():
    state = FedAvgState({"w": torch.zeros(1)}, complete=True)
    updates = [update(k, n, w=[w]) for k, (n, w) in enumerate(zip(SIZES, (1.0, 2.0, 6.0), strict=True))]
    assert FedAvgServer("uniform").aggregate(state, updates).params["w"].item() == 3.0


def test_batch_norm_statistics_are_averaged_and_counters_take_the_maximum():
    state = FedAvgState(
        {"running_mean": torch.zeros(1), "num_batches_tracked": torch.tensor(0)}, complete=True
    )
    updates = [
        update(0, 1, running_mean=[1.0], num_batches_tracked=9),
        update(1, 3, running_mean=[3.0], num_batches_tracked=4),
    ]
    found = FedAvgServer().aggregate(state, updates).params
    assert found["running_mean"].item() == (1 + 3 * 3) / 4
    assert found["num_batches_tracked"].item() == 9


def test_batch_norm_statistics_of_real_fits_are_averaged(tmp_path):
    """Full batches: running mean = 0.1 * mean of the client's inputs, so the average is 0.1 * the pooled mean."""

    def model():
        return network_of(nn.BatchNorm1d(4), nn.Linear(4, 3))

    federation = parties(tmp_path, build_model=model, num_rounds=1)
    params = federation.run()[0][-1].state.params
    pooled = np.concatenate([examples_of(federation.data, k)[0] for k in range(3)])
    np.testing.assert_allclose(params["head.all.0.running_mean"].numpy(), 0.1 * pooled.mean(0), atol=1e-6)
    assert params["head.all.0.num_batches_tracked"].item() == 1


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_two_rounds_of_fedavg_by_hand(weighting, tmp_path):
    federation = parties(tmp_path, server=FedAvgServer(weighting), local_epochs=3)
    progress, _ = federation.run()
    expected = zeros()
    for round_idx in (1, 2):
        weights = SIZES if weighting == "samples" else None
        expected = averaged(expected, federation.data, range(3), weights, num_steps=3)
        assert_close(params_of(progress[round_idx]), expected)


def test_a_sampled_cohort_is_all_that_is_averaged(tmp_path):
    federation = parties(tmp_path, cohort_size=2, num_rounds=4)
    progress, records = federation.run()
    expected, cohorts = zeros(), set()
    for round_idx in range(4):
        cohort = sample_cohort(0, round_idx, 3, 2)
        assert records[round_idx + 1].cohort == cohort
        expected = averaged(expected, federation.data, cohort, [SIZES[k] for k in cohort], num_steps=1)
        assert_close(params_of(progress[round_idx + 1]), expected)
        cohorts.add(cohort)
    assert len(cohorts) > 1


def check_pooled_descent(tmp_path):
    federation = parties(tmp_path, num_rounds=5)
    progress, _ = federation.run()
    pooled = [
        np.concatenate(parts)
        for parts in zip(*(examples_of(federation.data, k) for k in range(3)), strict=True)
    ]
    weight, bias = zeros()
    for round_idx in range(1, 6):
        to_weight, to_bias = gradient(weight, bias, *pooled)
        weight, bias = weight - LR * to_weight, bias - LR * to_bias
        assert_close(params_of(progress[round_idx]), (weight, bias))


def test_one_full_batch_step_is_gradient_descent_on_the_pooled_data(tmp_path):
    check_pooled_descent(tmp_path)


def test_a_mean_without_weights_would_be_noticed(tmp_path, monkeypatch):
    add = WeightedMean.add
    monkeypatch.setattr(WeightedMean, "add", lambda self, params, weight: add(self, params, 1))
    with pytest.raises(AssertionError):
        check_sample_weights()
    with pytest.raises(AssertionError):
        check_pooled_descent(tmp_path)


def prox(mu, cls=FedProxClient):
    return lambda **arguments: cls(mu=mu, **arguments)


def check_proximal_rounds(store_dir, cls=FedProxClient):
    federation = parties(store_dir, client=prox(0.3, cls), local_epochs=3)
    progress, _ = federation.run()
    expected = zeros()
    for round_idx in (1, 2):
        expected = averaged(expected, federation.data, range(3), SIZES, num_steps=3, mu=0.3)
        assert_close(params_of(progress[round_idx]), expected)


def test_two_rounds_of_fedprox_by_hand(tmp_path):
    check_proximal_rounds(tmp_path)


def test_a_proximal_term_without_the_half_would_be_noticed(tmp_path):
    class Doubled(FedProxClient):
        def loss(self, batch):
            return 2 * super().loss(batch) - ClientModule.loss(self, batch)

    with pytest.raises(AssertionError):
        check_proximal_rounds(tmp_path, Doubled)


def test_the_gradients_differ_by_mu_times_the_distance_on_the_second_step(tmp_path):
    gradients = {}

    def recording(cls, name):
        class Recording(cls):
            def on_before_optimizer_step(self, optimizer):
                flat = [torch.cat([p.grad.flatten(), p.detach().flatten()]) for p in self.model.parameters()]
                gradients.setdefault(name, []).append([part.clone() for part in flat])

        return Recording

    data = make_data((7,))
    plain = parties(
        tmp_path / "a", data=data, client=recording(ClientModule, "plain"), local_epochs=2, num_rounds=1
    )
    proximal = parties(
        tmp_path / "b",
        data=data,
        client=prox(0.4, recording(FedProxClient, "prox")),
        local_epochs=2,
        num_rounds=1,
    )
    plain.run(), proximal.run()
    for first_plain, first_prox in zip(gradients["plain"][0], gradients["prox"][0], strict=True):
        torch.testing.assert_close(first_plain, first_prox, rtol=0, atol=0)
    for second_plain, second_prox in zip(gradients["plain"][1], gradients["prox"][1], strict=True):
        half = len(second_plain) // 2
        distance = second_prox[half:]  # the received weights are zero
        assert distance.abs().max() > 0.01
        torch.testing.assert_close(
            second_prox[:half] - second_plain[:half], 0.4 * distance, rtol=0, atol=1e-6
        )


@pytest.mark.parametrize(("personal", "expected"), [([], 0.2 * 6), (["last"], 0.0), (["last", "body"], 0.0)])
def test_the_term_is_of_what_is_sent(personal, expected):
    """A personal layer has moved since the turn began, by 1 in each of its 12 numbers."""
    model = Network(
        *([(name, nn.Sequential(nn.Linear(width, 3)))] for name, width in (("body", 5), ("last", 3))), (5,), 3
    )
    client = FedProxClient(mu=0.2, model=model, optimizer=partial(torch.optim.SGD, lr=0.1), personal=personal)
    sent = {key: tensor.clone() for key, tensor in model.state_dict().items() if key in client.shared_keys}
    client.receive(Weights(sent), None)
    with torch.no_grad():
        for parameter in model.last_layer.parameters():
            parameter += 1
    batch = torch.ones(2, 5), torch.tensor([0, 2])
    term = client.loss(batch) - ClientModule.loss(client, batch)
    torch.testing.assert_close(float(term.detach()), expected, rtol=1e-5, atol=1e-6)


def test_fedprox_without_its_term_is_fedavg_bit_for_bit(tmp_path):
    runs = [parties(tmp_path, client=client, batch_size=2, local_epochs=2).run()[0][-1].state.params
            for client in (ClientModule, prox(0.0))]  # fmt: skip
    assert all(torch.equal(runs[0][key], runs[1][key]) for key in runs[0])
