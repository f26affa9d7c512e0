"""Clients that are left out of a federation: `FederatedData.without`."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import ClassTestParts, ClientSplit, IndexTestParts, Parts
from fedfeat.data.partition.permuted import Permuted
from fedfeat.data.partition.schemes import Dirichlet, Iid, NClasses, Shards
from fedfeat.data.transforms import Transform

NUM = 60
SCHEMES = {
    "iid": Iid(val_fraction=0.3),
    "permuted": Permuted(val_fraction=0.3),
    "n_classes": NClasses(classes_per_client=2),
    "shards": Shards(shards_per_client=3),  # cuts the test set itself
    "dirichlet": Dirichlet(alpha=0.5, min_size=1, val_fraction=0.2),
}


def numbered():
    """Images of four pixels, all of different values; the test images are others."""
    pixels = torch.arange(4 * NUM, dtype=torch.float32).view(NUM, 1, 2, 2)
    labels = torch.arange(NUM) % 3
    return Dataset(
        "numbered", Examples(pixels, labels), Examples(pixels + 1000, labels), tuple("abc"), (0.0,), (1.0,)
    )


def federated(scheme, num_clients, seed=0):
    dataset = numbered()
    labels = dataset.train.labels.numpy()
    split = SCHEMES[scheme].split(labels, labels, 3, num_clients, seed)
    return FederatedData(dataset, split, Transform(), seed=seed)


def by_hand():
    """Three clients of 2, 1 and 3 training examples; those of the last are 7, 8, 9."""
    train = Parts(np.array([4, 1, 2, 7, 8, 9]), np.array([0, 2, 3, 6]))
    val = Parts(np.array([10, 11, 12]), np.array([0, 0, 2, 3]))
    test = IndexTestParts(Parts(np.array([0, 5, 3, 6, 6]), np.array([0, 1, 3, 5])))
    return FederatedData(numbered(), ClientSplit(train, val, test), Transform())


def stacked(batches):
    inputs, labels = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(labels)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(stacked(one), stacked(other), strict=True))


def test_what_is_left_by_hand():
    data = by_hand()
    assert data.class_counts.shape == (3, 3)  # counted before: the view must count anew
    left = data.without(1)
    assert (left.num_clients, len(left.test_sizes()), left.num_val) == (2, 2, 2)
    assert left.split.train.indices.tolist() == [4, 1, 2]
    assert left.split.train.offsets.tolist() == [0, 2, 3]
    assert left.split.val.indices.tolist() == [10, 11]
    assert left.split.val.offsets.tolist() == [0, 0, 2]
    assert [left.test_indices(k).tolist() for k in range(2)] == [[0], [5, 3]]
    assert left.class_counts.tolist() == [[0, 2, 0], [0, 0, 1]]  # classes 1, 1 and 2
    assert left.largest_batch(None) == 2
    assert left.num_test == NUM  # the common test set is everyone's


def test_means_over_test_parts_are_those_of_the_clients_that_are_left():
    values = np.arange(NUM, dtype=np.float64)
    assert by_hand().without(1).test_means(values).tolist() == [0.0, 4.0]
    mask = np.array([[True, False, False], [False, True, True], [True, True, True]])
    labels = np.array([0, 0, 1, 2])
    split = by_hand().split._replace(test=ClassTestParts(mask, labels))
    left = FederatedData(numbered(), split, Transform()).without(1)
    assert left.test_means(np.array([1.0, 2.0, 4.0, 8.0])).tolist() == [1.5, 6.0]
    assert left.test_sizes().tolist() == [2, 2]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_whole_is_kept(count):
    data = by_hand()
    left = data.without(count)
    assert left.whole is data
    assert data.whole is data
    assert data.num_clients == 3
    assert (left is data) == (count == 0)


def test_pooled_data_hold_those_that_are_left():
    data = by_hand()
    pooled = data.without(1).pooled()
    assert sorted(pooled.split.train.indices) == [1, 2, 4]
    assert (pooled.num_clients, len(pooled.test_sizes())) == (1, 2)
    assert pooled.class_counts.tolist() == [[0, 2, 1]]
    assert pooled.whole is data


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(SCHEMES)), st.integers(3, 6), st.data(), st.integers(0, 3))
def test_clients_that_are_left_see_what_they_saw_and_nothing_of_the_others(scheme, num_clients, draw, seed):
    count = draw.draw(st.integers(1, num_clients - 1))
    data = federated(scheme, num_clients, seed)
    left = data.without(count)
    kept = num_clients - count
    assert left.num_clients == len(left.test_sizes()) == kept
    assert left.class_counts.tolist() == data.class_counts[:kept].tolist()
    assert left.test_sizes().tolist() == data.test_sizes()[:kept].tolist()
    for k in range(kept):
        assert left.num_examples(k) == data.num_examples(k)
        if left.num_examples(k):
            assert same(left.train_batches(k, 0, 0, 4), data.train_batches(k, 0, 0, 4))
        indices = data.test_indices(k)
        assert left.test_indices(k).tolist() == indices.tolist()
        if len(indices):
            assert same(left.test_batches(indices, 7, k), data.test_batches(indices, 7, k))
    mine = {*left.split.train.indices, *left.split.val.indices}
    others = [part.of(k) for part in (data.split.train, data.split.val) for k in range(kept, num_clients)]
    assert not mine & set(np.concatenate(others))


def test_pixel_orders_are_those_of_the_whole_split():
    """Every client's order is its own, so an order of a wrong client would be seen."""
    data = federated("permuted", 4)
    left = data.without(2)
    chosen = torch.from_numpy(left.split.train.of(1))
    assert torch.equal(left.plain_inputs(chosen), data.plain_inputs(chosen))
    plain = data.dataset.train.inputs[chosen]
    assert not torch.equal(left.plain_inputs(chosen), plain)
    views = [stacked(left.test_batches(np.arange(5), 5, k))[0] for k in range(2)]
    assert not torch.equal(*views)
