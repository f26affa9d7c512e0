"""Partitions of the benchmarks: NIID-Bench's fixed labels, PFLlib's classes and test parts, Dirichlet per client."""

import numpy as np
import pytest

from fedfeat.data.partition.label_skew import (
    ClientDirichlet,
    FixedLabels,
    Pathological,
    cut_evenly,
    drawn_counts,
    unequal_pieces,
)
from fedfeat.data.partition.parts import class_counts
from fedfeat.data.partition.permuted import Copies, Permuted
from fedfeat.data.partition.resplit import Resplit
from fedfeat.data.partition.schemes import Dirichlet, Iid, Natural, NClasses, Shards, Subsets
from fedfeat.errors import ConfigError, DataError

TRAIN = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 120))
TEST = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 20))


def cut(scheme, num_clients=10, seed=0, columns=({}, {})):
    return scheme.split(TRAIN, TEST, 10, num_clients, seed, *columns)


def held(split):
    """Examples of every class at every client, (K, C)."""
    return class_counts(split.train, np.concatenate([TRAIN, TEST]), 10)


@pytest.mark.parametrize(("count", "num_clients"), [(1, 10), (2, 10), (3, 25), (10, 10)])
def test_fixed_labels_are_one_dealt_and_others_drawn(count, num_clients):
    for seed in range(5):
        counts = held(cut(FixedLabels(labels_per_client=count), num_clients, seed))
        assert ((counts > 0).sum(axis=1) == count).all()
        assert all(counts[k, k % 10] for k in range(num_clients))
        for column in counts.T:  # near-equal pieces, however many there are
            pieces = column[column > 0]
            assert column.sum() == 120
            assert pieces.max() - pieces.min() <= 1


def test_fixed_labels_give_unequal_sizes_and_other_labels_for_another_seed():
    first, other = (held(cut(FixedLabels(labels_per_client=2), seed=seed)) for seed in (0, 1))
    assert len(set(first.sum(axis=1))) > 1
    assert ((first > 0) != (other > 0)).any()


def test_a_single_fixed_label_is_a_class_each():
    assert np.array_equal(held(cut(FixedLabels(labels_per_client=1))), 120 * np.eye(10, dtype=int))


@pytest.mark.parametrize(("num_clients", "count", "groups"), [(20, 2, 5), (20, 1, 10), (10, 10, 1)])
def test_pathological_classes_go_to_groups_of_clients_in_order(num_clients, count, groups):
    counts = held(cut(Pathological(classes_per_client=count), num_clients))
    size = num_clients // groups
    for k in range(num_clients):
        expected = range(k // size * count, (k // size + 1) * count)
        assert np.flatnonzero(counts[k]).tolist() == list(expected)
    assert (counts.sum(axis=0) == 120).all()


def test_pathological_groups_are_rounded_up():
    """13 clients with 7 of 10 classes: ceil(9.1) = 10 take each class, so that the last three find three left."""
    counts = held(cut(Pathological(classes_per_client=7), 13))
    assert (counts > 0).sum(axis=1).tolist() == [7] * 10 + [3] * 3


def test_what_is_left_is_not_always_the_last_clients():
    """Who draws first finds 120 of its one class, and needs 100; who draws last has the rest of several."""
    first = [(held(cut(ClientDirichlet(alpha=0.001), 12, seed=seed))[0] > 0).sum() for seed in range(20)]
    assert min(first) == 1
    assert max(first) >= 3


@pytest.mark.parametrize("count", range(1, 60))
def test_of_as_many_examples_as_pieces_and_some_more_none_is_empty(count):
    for size in range(count, 2 * count + 2):
        pieces = unequal_pieces(size, count, np.random.default_rng(0))
        assert (len(pieces), pieces.sum(), pieces.min() >= 1) == (count, size, True)


def test_pathological_pieces_are_between_a_tenth_and_a_whole_equal_one_but_the_last():
    pieces = np.stack([unequal_pieces(4000, 4, np.random.default_rng(seed)) for seed in range(200)])
    assert (pieces.sum(axis=1) == 4000).all()
    assert pieces[:, :-1].min() >= 100
    assert pieces[:, :-1].max() < 1000
    assert pieces[:, -1].min() > 1000
    assert abs(pieces[:, :-1].mean() - 550) < 30
    assert unequal_pieces(7, 1, np.random.default_rng(0)).tolist() == [7]
    assert sorted(unequal_pieces(5, 4, np.random.default_rng(0)).tolist()) == [1, 1, 1, 2]


@pytest.mark.parametrize("alpha", [1e-9, 0.1, 100.0])
@pytest.mark.parametrize("num_clients", [7, 100])
def test_dirichlet_per_client_has_equal_sizes_and_everything_has_an_owner(alpha, num_clients):
    split = cut(ClientDirichlet(alpha=alpha), num_clients)
    sizes = np.diff(split.train.offsets)
    assert sizes.max() - sizes.min() <= 1
    assert np.array_equal(np.sort(split.train.indices), np.arange(1200))


def test_alpha_says_how_many_classes_a_client_has():
    few, many = (held(cut(ClientDirichlet(alpha=alpha), 40)) for alpha in (0.01, 100.0))
    assert np.median((few > 0).sum(axis=1)) <= 2
    assert np.median((many > 0).sum(axis=1)) >= 8


def test_drawn_counts_never_exceed_what_is_there():
    rng = np.random.default_rng(0)
    available = np.array([3, 0, 50])
    assert drawn_counts(available, np.array([1.0, 0.0, 0.0]), 10, rng).tolist() == [3, 0, 7]
    assert drawn_counts(available, np.array([0.0, 1.0, 0.0]), 53, rng).tolist() == [3, 0, 50]
    assert cut_evenly(7, np.array([True, False, True, True])).tolist() == [3, 0, 2, 2]


@pytest.mark.parametrize("inner", [Dirichlet(alpha=0.1), Iid(), NClasses(classes_per_client=2),
                                   Shards(shards_per_client=2), FixedLabels(labels_per_client=3)])  # fmt: skip
def test_each_client_is_tested_on_a_quarter_of_its_own(inner):
    split = cut(Resplit(inner=inner))
    assert split.merged
    both = np.concatenate([split.train.indices, split.test.parts.indices])
    assert np.array_equal(np.sort(both), np.arange(1400))
    labels = np.concatenate([TRAIN, TEST])
    for k in range(10):
        train, test = len(split.train.of(k)), len(split.test.of(k))
        assert test == (train + test) // 4
        if inner != Dirichlet(alpha=0.1):
            assert set(labels[split.test.of(k)]) <= set(labels[split.train.of(k)])
    assert np.array_equal(split.train.indices, cut(Resplit(inner=inner)).train.indices)


def test_the_share_is_a_key_and_both_sets_are_cut():
    split = cut(Resplit(inner=Iid(), test_share=0.5))
    assert len(split.test.parts.indices) == 700
    assert (split.train.indices >= 1200).any()
    assert (split.test.parts.indices < 1200).any()


def test_a_column_cuts_both_sets():
    columns = {"writer": np.arange(1200) % 4, "more": np.zeros(1200)}, {"writer": np.arange(200) % 4}
    split = cut(Resplit(inner=Natural(column="writer")), 4, columns=columns)
    of = np.concatenate([columns[0]["writer"], columns[1]["writer"]])
    for k in range(4):
        assert set(of[split.train.of(k)]) == set(of[split.test.of(k)]) == {k}


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: cut(FixedLabels(labels_per_client=11)), ConfigError, "labels_per_client must be between 1 and"),
        (lambda: cut(FixedLabels(labels_per_client=2), 9), ConfigError, "num_clients must be at least the number"),
        (lambda: cut(FixedLabels(labels_per_client=10), 130), DataError, "cut a class into more pieces than"),
        (lambda: cut(Pathological(classes_per_client=11)), ConfigError, "classes_per_client must be between 1"),
        (lambda: cut(Pathological(classes_per_client=1), 5), ConfigError, "classes_per_client must give every"),
        (lambda: cut(Pathological(classes_per_client=10), 130), DataError, "cut a class into more pieces than"),
        (lambda: cut(ClientDirichlet(alpha=1.0), 1201), ConfigError, "num_clients must be between 1 and the 1200"),
        (lambda: Resplit(inner=Permuted()), ConfigError, "partition.inner must be who holds which examples"),
        (lambda: cut(Resplit(inner=Copies())), DataError, "must give no example to several clients"),
        (lambda: Resplit(inner=Subsets(classes=[[0]])), ConfigError, "but it is 'Subsets'"),
        (lambda: Resplit(inner=Shards(shards_per_client=2, merged=True)), ConfigError, "partition.inner must"),
        (lambda: Resplit(inner=Iid(val_fraction=0.1)), ConfigError, "partition.inner.val_fraction must be 0"),
        (
            lambda: cut(Resplit(inner=FixedLabels(labels_per_client=11))),
            ConfigError,
            "partition.inner.labels_per_client must be between",
        ),
    ],
)  # fmt: skip
def test_refusals(make, error, text):
    with pytest.raises(error) as caught:
        make()
    assert text in str(caught.value)
