"""CCVR beside public codes, where docs/deviations.md says that the two differ."""

import numpy as np
import pytest
import torch
from deviating import STEPS, gap, pair_of, rounds_of
from harness import make_data
from linear_rounds import ZERO, Steps, mean
from torch import nn

from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.features.calibration import Retraining, retrained, virtual_counts, virtual_features
from fedfeat.features.prototypes import Moments, class_moments, covariances, pooled


def features_of(sizes=(3, 5, 8), width=3):
    """Features and labels of unequal clients, two classes, of which each has some of every client."""
    draw = np.random.default_rng(0)
    for size in sizes:
        y = np.arange(size) % 2
        yield draw.normal(size=(size, width)) @ draw.normal(size=(width, width)) + 2 * y[:, None], y


def by_paper(parts, c, *, unbiased, product=np.outer):
    """The pooled covariance of one class from clients' counts, means and covariances, by the paper's equation."""
    own = [z[y == c] for z, y in parts]
    total = sum(map(len, own))
    mean = sum(len(z) / total * z.mean(0) for z in own)
    found = -total / (total - 1) * product(mean, mean)
    for z in own:
        spread = np.cov(z.T, ddof=1 if unbiased and len(z) > 1 else 0)
        found = (
            found + (len(z) - 1) / (total - 1) * spread + len(z) / (total - 1) * product(z.mean(0), z.mean(0))
        )
    return found


def pooled_of(parts):
    return pooled(class_moments(torch.from_numpy(z), torch.from_numpy(y), 2, "full") for z, y in parts)


def test_covariances_over_n_with_weights_for_those_over_n_less_1():
    parts = list(features_of())
    traces = []
    for c, matrix in enumerate(covariances(pooled_of(parts)).numpy()):
        np.testing.assert_allclose(by_paper(parts, c, unbiased=True), matrix, rtol=0, atol=1e-12)
        traces.append(np.trace(by_paper(parts, c, unbiased=False)) / np.trace(matrix))
    assert traces == pytest.approx([0.801, 0.761], abs=1e-3)


def test_features_of_the_classes_before_and_products_that_are_numbers():
    """A list that no class starts anew; inner products of means where the equation has outer ones."""
    parts = list(features_of())
    found = pooled_of(parts)
    own = covariances(found)[1].numpy()
    gathered = [(z[np.argsort(y, kind="stable")], np.ones(len(y), int)) for z, y in parts]
    counts = [int((y == 1).sum()) for _, y in parts]
    mean = sum(n / sum(counts) * z.mean(0) for (z, _), n in zip(gathered, counts, strict=True))
    assert float(np.abs(mean - found.means[1].numpy()).max()) == pytest.approx(1.355, abs=1e-3)
    numbers = by_paper(parts, 1, unbiased=True, product=np.dot)
    outside = np.abs(numbers - own).max()
    assert outside == pytest.approx(0.812, abs=1e-3)


def test_as_many_features_of_each_class_are_another_prior():
    """Of two classes with the same features, 10 and 90 examples, a layer learns the odds of what is drawn."""
    spread = torch.eye(2, dtype=torch.float64).repeat(2, 1, 1)
    moments = Moments(torch.tensor([10, 90]), torch.zeros(2, 2, dtype=torch.float64), spread)
    odds = []
    for share, numbers in (("examples", [40, 360]), ("uniform", [200, 200])):
        assert virtual_counts(moments.counts, 200, share) == numbers
        x, y = virtual_features(moments, numbers, "full", 0)
        layer = nn.Linear(2, 2)
        nn.init.zeros_(layer.bias)
        bias = retrained(layer, x, y, Retraining(epochs=200, lr=0.1, batch_size=400), 0).bias
        odds.append(float((bias[1] - bias[0]).detach()))
    assert odds == pytest.approx([np.log(9), 0], abs=0.1)


def test_clients_that_train_one_model_one_after_another(tmp_path):
    """Each starts where the one before it ended, and their ends are averaged without weights."""
    states = rounds_of(tmp_path, num_rounds=1, server=FedAvgServer("uniform"))[1]
    apart = [Steps(make_data(), k, ZERO, STEPS).end for k in range(3)]
    chain = [ZERO]
    for k in range(3):
        chain.append(Steps(make_data(), k, chain[-1], STEPS).end)
    w = pair_of(states[-1].params)
    assert gap(w, mean(apart, [1, 1, 1])) < 1e-12
    assert gap(w, mean(chain[1:], [1, 1, 1])) == pytest.approx(0.242, abs=1e-3)
