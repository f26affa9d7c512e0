"""Clients that have lost a share of their training examples: `FederatedData.reduced`."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfeat.data.affected import reduced, reduced_clients
from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import Parts
from fedfeat.data.partition.schemes import NClasses, Shards
from fedfeat.data.transforms import Transform

NUM = 120
# Clients of 5, 1, 0 and 4 examples.
PARTS = Parts(np.array([9, 3, 7, 1, 5, 20, 30, 33, 31, 38]), np.array([0, 5, 6, 6, 10]))


def federated(scheme, num_clients=6):
    labels = torch.arange(NUM) % 3
    examples = Examples(torch.zeros(NUM, 1, 2, 2), labels)
    split = scheme.split(labels.numpy(), labels.numpy(), 3, num_clients, 0)
    return FederatedData(
        Dataset("zeros", examples, examples, tuple("abc"), (0.0,), (1.0,)), split, Transform()
    )


def test_sizes_by_hand():
    """Half of 5 is 2, of 1 and 0 what there is; client 3 is not chosen."""
    found = reduced(PARTS, {0, 1, 2}, 0.5, seed=0)
    assert np.diff(found.offsets).tolist() == [2, 1, 0, 4]
    assert found.of(1).tolist() == [20]
    assert found.of(3).tolist() == [30, 33, 31, 38]
    own = PARTS.of(0).tolist()
    places = [own.index(example) for example in found.of(0).tolist()]
    assert places == sorted(set(places))  # in the order of the part


def test_hundredths_are_not_lost_in_binary():
    parts = Parts(np.arange(100), np.array([0, 100]))
    assert reduced(parts, {0}, 0.29, 0).of(0).size == 29


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    share=st.floats(0.05, 1.0),
    seed=st.integers(0, 5),
    data=st.data(),
)
def test_a_client_keeps_part_of_its_own_whoever_else_is_chosen(sizes, share, seed, data):
    parts = Parts(np.arange(sum(sizes)) * 3, np.concatenate([[0], np.cumsum(sizes)]))
    chosen = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    found, everyone = reduced(parts, chosen, share, seed), reduced(parts, range(len(sizes)), share, seed)
    more = reduced(parts, chosen, 1.0, seed)
    for k in range(len(sizes)):
        assert more.of(k).tolist() == parts.of(k).tolist()
        assert found.of(k).tolist() == (everyone if k in chosen else parts).of(k).tolist()
        assert set(found.of(k)) <= set(parts.of(k))


def test_what_is_lost_is_random():
    parts = Parts(np.arange(40), np.array([0, 20, 40]))
    halves = [tuple(reduced(parts, {0, 1}, 0.5, seed).of(0)) for seed in range(5)]
    assert len(set(halves)) == 5
    one, other = (reduced(parts, {0, 1}, 0.5, 0).of(k) % 20 for k in range(2))
    assert one.tolist() != other.tolist()


@pytest.mark.parametrize(
    "scheme",
    [NClasses(classes_per_client=2, val_fraction=0.1), Shards(shards_per_client=2)],
    ids=["n_classes", "shards"],
)
def test_the_clients_of_the_draw_lose_half_and_no_test_part_changes(scheme):
    data = federated(scheme)
    before = [data.num_examples(k) for k in range(6)]
    found = data.reduced(0.5, 0.5, seed=7)
    chosen = reduced_clients(7, 6, 0.5)
    assert len(chosen) == 3
    after = [n // 2 if k in chosen else n for k, n in enumerate(before)]
    assert [found.num_examples(k) for k in range(6)] == after
    assert found.class_counts.sum(axis=1).tolist() == after
    for k in range(6):
        assert found.test_indices(k).tolist() == data.test_indices(k).tolist()
        assert set(found.split.train.of(k)) <= set(data.split.train.of(k))
    assert found.split.val is data.split.val
    assert found.split.test is data.split.test
    assert [data.num_examples(k) for k in range(6)] == before


def test_nobody_and_everybody():
    data = federated(Shards(shards_per_client=2))
    assert data.reduced(0.0, 0.5, 0) is data
    assert data.reduced(1.0, 0.5, 0).class_counts.sum() == 60
