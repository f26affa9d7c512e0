"""Virtual features and last layers trained on them: moments, addresses, and the training by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from fedfeat.features.calibration import (
    Retraining,
    numbers_sent,
    retrained,
    virtual_counts,
    virtual_features,
)
from fedfeat.features.prototypes import Moments, class_moments, covariances, pooled

COVARIANCES = ("full", "diagonal", "shared")


def features_of(sizes=(40, 1, 7, 25), num_classes=4, width=3):
    """Features of unequal clients, of which one has a single example and nobody has the last class."""
    draw = np.random.default_rng(0)
    found = []
    for size in sizes:
        labels = draw.integers(num_classes - 1, size=size)
        features = draw.normal(size=(size, width)) @ draw.normal(size=(width, width)) + labels[:, None]
        found.append((torch.from_numpy(features), torch.from_numpy(labels)))
    return found


def moments_of(parts):
    return pooled(class_moments(z, y, 4, "full") for z, y in parts)


def test_the_papers_pooling_is_ours_and_that_of_all_features_together():
    """Its equation, from each client's counts, means and unbiased covariances."""
    parts = features_of()
    found = moments_of(parts)
    z, y = (torch.cat(halves).numpy() for halves in zip(*parts, strict=True))
    for c in range(3):
        together = z[y == c]
        total, mean = len(together), together.mean(0)
        expected = -total / (total - 1) * np.outer(mean, mean)
        for own in (part.numpy()[labels.numpy() == c] for part, labels in parts):
            if len(own):
                center = own.mean(0)
                spread = (own - center).T @ (own - center) / max(len(own) - 1, 1)
                expected += (len(own) - 1) / (total - 1) * spread
                expected += len(own) / (total - 1) * np.outer(center, center)
        np.testing.assert_allclose(expected, np.cov(together.T), rtol=0, atol=1e-12)
        np.testing.assert_allclose(covariances(found)[c].numpy(), expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.means[c].numpy(), mean, rtol=0, atol=1e-13)
    assert found.counts.tolist() == [int((y == c).sum()) for c in range(4)]


def test_one_client_is_its_own():
    one = features_of((30,))
    own = class_moments(*one[0], 4, "full")
    for left, right in zip(moments_of(one), own, strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_features_have_the_moments_that_they_are_drawn_from(covariance):
    parts = features_of((300, 200))
    moments = moments_of(parts)
    z, y = virtual_features(moments, [60000, 50000, 40000, 0], covariance, 3)
    assert torch.bincount(y, minlength=4).tolist() == [60000, 50000, 40000, 0]
    within = [np.cov(torch.cat([f[own == c] for f, own in parts]).numpy().T) for c in range(3)]
    freedom = [int(n) - 1 for n in moments.counts[:3]]
    shared = sum(n * part for n, part in zip(freedom, within, strict=True)) / sum(freedom)
    for c in range(3):
        drawn = z[y == c].numpy()
        expected = {"full": within[c], "diagonal": np.diag(np.diag(within[c])), "shared": shared}[covariance]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(drawn.mean(0), moments.means[c].numpy(), rtol=0, atol=0.03 * scale**0.5)
        np.testing.assert_allclose(np.cov(drawn.T), expected, rtol=0, atol=0.03 * scale)


def test_a_covariance_without_full_rank_and_a_single_example():
    """Two examples span a line; one has no covariance at all."""
    z = torch.tensor([[0.0, 0, 0], [1, 2, 2], [5, 5, 5]], dtype=torch.float64)
    moments = class_moments(z, torch.tensor([0, 0, 1]), 2, "full")
    drawn, labels = virtual_features(moments, [50, 4], "full", 0)
    line = torch.tensor([1.0, 2, 2], dtype=torch.float64) / 3
    offsets = drawn[labels == 0] - moments.means[0]
    torch.testing.assert_close(offsets, (offsets @ line)[:, None] * line, rtol=0, atol=1e-7)
    assert float(offsets.norm()) > 1
    torch.testing.assert_close(drawn[labels == 1], z[2].expand(4, 3), rtol=0, atol=0)
    assert float(virtual_features(moments, [50, 4], "full", 0)[0].min()) < 0
    assert float(virtual_features(moments, [50, 4], "full", 0, clamp=True)[0].min()) == 0


def test_a_class_is_drawn_at_its_own_address():
    moments = moments_of(features_of())
    z, y = virtual_features(moments, [5, 6, 7, 0], "full", 1)
    other, labels = virtual_features(moments, [9, 6, 2, 0], "full", 1)
    assert torch.equal(z[y == 1], other[labels == 1])
    assert not torch.equal(z[y == 1], virtual_features(moments, [5, 6, 7, 0], "full", 2)[0][y == 1])
    noise = [
        virtual_features(Moments(*moments_of(features_of())), [0, 0, 5, 0], "full", s)[0] for s in (1, 1)
    ]
    assert torch.equal(*noise)
    z, y = virtual_features(moments, [5, 5, 0, 0], "shared", 1)
    offsets = [z[y == c] - moments.means[c] for c in range(2)]
    assert float((offsets[0] - offsets[1]).abs().max()) > 0.1


def test_how_many_are_drawn_and_sent():
    counts = torch.tensor([30, 10, 0, 1])
    assert virtual_counts(counts, 100, "examples") == [220, 73, 0, 7]
    assert virtual_counts(counts, 1, "examples") == [2, 1, 0, 1]
    assert virtual_counts(counts, 100, "uniform") == [100, 100, 0, 100]
    assert [numbers_sent(10, 5, kind) for kind in COVARIANCES] == [310, 110, 85]


def layer_and_features():
    torch.manual_seed(0)
    layer = nn.Linear(3, 4).double()
    return layer, *virtual_features(moments_of(features_of()), [8, 5, 6, 0], "full", 1)


def test_the_training_by_hand():
    """Whole batches with momentum; the class without features is in no softmax."""
    layer, z, y = layer_and_features()
    found = retrained(layer, z, y, Retraining(5, 0.1, 100), 0)
    weight, bias = (p.detach().numpy().copy() for p in layer.parameters())
    x, hot, push = z.numpy(), np.eye(4)[y.numpy()], [0.0, 0.0]
    for _ in range(5):
        shares = np.exp(x @ weight.T + bias) * [1, 1, 1, 0]
        gap = (shares / shares.sum(1, keepdims=True) - hot) / len(x)
        push = [0.9 * push[0] + gap.T @ x, 0.9 * push[1] + gap.sum(0)]
        weight, bias = weight - 0.1 * push[0], bias - 0.1 * push[1]
    np.testing.assert_allclose(found.weight.detach().numpy(), weight, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.bias.detach().numpy(), bias, rtol=0, atol=1e-12)
    assert torch.equal(found.weight[3], layer.weight[3])


def test_no_epoch_leaves_the_layer_and_batches_have_an_order_of_their_seed():
    layer, z, y = layer_and_features()
    before = layer.weight.detach().clone()
    none = retrained(layer, z, y, Retraining(0), 0)
    assert torch.equal(none.weight, layer.weight)
    found = [retrained(layer, z, y, Retraining(2, 0.1, 4), seed).weight for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(layer.weight, before)
