"""Class means, moments and what is made of them, against loops written out."""

from functools import partial

import pytest
import torch

from fedfeat.features.prototypes import (
    class_moments,
    covariances,
    distances_between,
    nearness,
    pooled,
    prototypes_of,
    pull,
    shared_covariance,
)

C, D = 4, 3


def examples(count, seed, classes=(0, 1, 3)):
    """Features far from 0, and labels of some classes; class 2 has no example."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (count,), generator=draw)]
    return torch.randn(count, D, generator=draw, dtype=torch.float64) * 3 + 100 + labels[:, None], labels


def test_means_by_hand():
    """Classes 0 and 3 of four; those without an example have no prototype."""
    features = torch.tensor([[1.0, 2.0, 3.0], [5.0, 0.0, 1.0], [3.0, 4.0, 5.0]])
    found = class_moments(features, torch.tensor([3, 0, 3]), C)
    assert found.counts.tolist() == [1, 0, 0, 2]
    assert found.means.tolist() == [[5, 0, 1], [0, 0, 0], [0, 0, 0], [2, 3, 4]]
    assert found.scatters is None
    sent = prototypes_of(found, torch.float32)
    assert sent.classes.tolist() == [0, 3]
    assert sent.means.dtype == torch.float32
    assert sent.means.tolist() == [[5, 0, 1], [2, 3, 4]]


@pytest.mark.parametrize("scatter", ["diagonal", "full"])
def test_moments_are_those_of_each_class_alone(scatter):
    features, labels = examples(40, 0)
    found = class_moments(features, labels, C, scatter)
    for c in range(C):
        own = features[labels == c]
        expected = own.T.cov() if len(own) else torch.zeros(D, D, dtype=torch.float64)
        assert found.counts[c] == len(own)
        if len(own):
            torch.testing.assert_close(found.means[c], own.mean(0), rtol=0, atol=1e-12)
        wanted = expected if scatter == "full" else expected.diagonal()
        torch.testing.assert_close(covariances(found)[c], wanted, rtol=0, atol=1e-11)


@pytest.mark.parametrize("scatter", ["none", "diagonal", "full"])
def test_pooled_moments_are_those_of_all_features_together(scatter):
    """Of unequal clients with unequal classes, one of them without an example, one with a single one."""
    parts = [examples(*client) for client in ((30, 1, (0, 1)), (1, 2), (0, 3), (17, 4, (3,)), (5, 5))]
    moments = [class_moments(*part, C, scatter) for part in parts]
    found = pooled(iter(moments))
    whole = class_moments(torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts]), C, scatter)
    assert torch.equal(found.counts, whole.counts)
    torch.testing.assert_close(found.means, whole.means, rtol=1e-14, atol=0)
    if scatter != "none":
        torch.testing.assert_close(found.scatters, whole.scatters, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(covariances(found), covariances(whole), rtol=1e-11, atol=1e-11)
    assert all(
        torch.equal(before.means, class_moments(*part, C).means)
        for before, part in zip(moments, parts, strict=True)
    )


def test_one_part_and_parts_of_different_classes_are_pooled_bit_for_bit():
    left, right = (class_moments(*examples(7, seed, (seed,)), C, "full") for seed in (0, 1))
    assert torch.equal(pooled([left]).means, left.means)
    both = pooled([left, right])
    assert torch.equal(both.means[0], left.means[0])
    assert torch.equal(both.means[1], right.means[1])
    assert torch.equal(both.scatters[0], left.scatters[0])


def test_a_shared_covariance_is_around_the_means_of_the_classes():
    features, labels = examples(50, 6)
    found = class_moments(features, labels, C, "full")
    around = features - found.means[labels]
    torch.testing.assert_close(shared_covariance(found), around.T @ around / (50 - 3))


def test_below_two_examples_there_is_no_spread():
    single = class_moments(torch.ones(1, D), torch.tensor([1]), C, "full")
    assert covariances(single).abs().max() == shared_covariance(single).abs().max() == 0


PROTOTYPES = torch.tensor([[1.0, 1.0], [9.0, 9.0], [0.0, 2.0]])
KNOWN = torch.tensor([True, False, True])


def test_the_pull_by_hand():
    """(1 + 4) / 2 to class 0, nothing to class 1, (9 + 0) / 2 to class 2, over three examples."""
    features = torch.tensor([[2.0, 3.0], [4.0, 4.0], [3.0, 2.0]], requires_grad=True)
    loss = pull(features, torch.tensor([0, 1, 2]), PROTOTYPES, KNOWN)
    assert loss.item() == pytest.approx((2.5 + 4.5) / 3)
    loss.backward()
    torch.testing.assert_close(features.grad, torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 0.0]]) / 3)


def test_padding_counts_for_nothing_in_the_pull():
    features = torch.tensor([[2.0, 3.0], [50.0, 50.0]], requires_grad=True)
    loss = pull(features, torch.tensor([0, -100]), PROTOTYPES, KNOWN)
    assert loss.item() == pytest.approx(2.5)
    loss.backward()
    assert features.grad[1].tolist() == [0, 0]
    assert pull(features, torch.tensor([-100, -100]), PROTOTYPES, KNOWN).item() == 0


def test_the_nearest_prototype_has_the_largest_logit_and_an_unknown_one_none():
    found = nearness(torch.tensor([[1.0, 1.0], [9.0, 9.0], [0.0, 3.0]]), PROTOTYPES, KNOWN)
    assert found.argmax(1).tolist() == [0, 0, 2]
    assert found[0].tolist() == pytest.approx([0, -torch.inf, -(2**0.5)])


def test_features_of_half_precision_are_compared_in_single():
    features = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)
    assert nearness(features, PROTOTYPES, KNOWN)[0, [0, 2]].tolist() == [-1, -1]
    assert pull(features, torch.tensor([0]), PROTOTYPES, KNOWN).item() == 0.5


def test_distances_are_exact_and_differentiable_where_they_are_0():
    """At 1e4 an expanded square of float32 is off by ten, or below zero."""
    one = torch.tensor([[1e4, 1e4], [1e4, 1e4 + 1]], requires_grad=True)
    found = distances_between(one, one.detach())
    assert found.tolist() == [[0, 1], [1, 0]]
    found.sum().backward()
    assert one.grad.isfinite().all()


def test_moments_are_summed_in_float64():
    """In float32 a sum of 1e8 and ones loses the ones."""
    features = torch.cat([torch.tensor([[1e8]]), torch.ones(1000, 1)])
    means = partial(class_moments, labels=torch.zeros(1001, dtype=torch.int64), num_classes=1)(features).means
    assert float(means) == (1e8 + 1000) / 1001
