import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.data.partition import index_sets as partition
from fedfeat.data.partition.parts import class_counts
from fedfeat.data.partition.tables import (
    shard_rows,
)
from fedfeat.errors import ConfigError, DataError

QUICK = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32)


def rng(seed=0):
    return np.random.default_rng(seed)


def balanced(num_classes, per_class, seed=0):
    return rng(seed).permutation(np.repeat(np.arange(num_classes), per_class))


def sizes(parts):
    return np.diff(parts.offsets)


def assert_cover(parts, num_examples):
    """Disjoint and complete: the indices are a permutation of all examples, ascending within each client."""
    assert parts.offsets[0] == 0
    assert sizes(parts).min() >= 0
    assert parts.indices.dtype == parts.offsets.dtype == np.int64
    assert np.array_equal(np.sort(parts.indices), np.arange(num_examples))
    assert all((np.diff(parts.of(k)) > 0).all() for k in range(parts.num_clients))


@QUICK
@given(st.integers(1, 300), st.data(), seeds)
def test_iid_covers_with_near_equal_sizes(num_examples, data, seed):
    num_clients = data.draw(st.integers(1, num_examples))
    parts = partition.iid(num_examples, num_clients, rng(seed))
    assert_cover(parts, num_examples)
    assert parts.num_clients == num_clients
    assert np.ptp(sizes(parts)) <= 1


@QUICK
@given(st.integers(2, 8), st.integers(2, 15), st.data(), seeds)
def test_n_classes_gives_exactly_s_classes_and_near_equal_sizes(num_classes, num_clients, data, seed):
    per_client = data.draw(st.integers(-(-num_classes // num_clients), num_classes))
    labels = balanced(num_classes, 30, seed)
    parts = partition.n_classes(labels, num_classes, num_clients, per_client, rng(seed))
    counts = class_counts(parts, labels, num_classes)
    assert_cover(parts, len(labels))
    assert ((counts > 0).sum(axis=1) == per_client).all()
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1
    if (num_clients * per_client) % num_classes == 0:
        assert np.ptp(sizes(parts)) <= per_client


def test_n_classes_by_hand():
    # 4 clients with 1 of 2 classes: each class has 2 holders, 5 examples go 3 + 2, and 4 go 2 + 2.
    labels = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1])
    parts = partition.n_classes(labels, 2, 4, 1, rng())
    counts = class_counts(parts, labels, 2)
    assert sorted(map(tuple, counts.tolist())) == [(0, 2), (0, 2), (2, 0), (3, 0)]


def test_n_classes_with_all_classes_is_stratified():
    labels = balanced(3, 8)
    counts = class_counts(partition.n_classes(labels, 3, 4, 3, rng()), labels, 3)
    assert (counts == 2).all()


def test_n_classes_leftovers_go_to_the_smallest():
    # Both classes have 3 examples for 2 clients: whoever gets 2 of class 0 gets 1 of class 1.
    labels = np.array([0, 0, 0, 1, 1, 1])
    assert class_counts(partition.n_classes(labels, 2, 2, 2, rng()), labels, 2).tolist() == [[2, 1], [1, 2]]


@QUICK
@given(seeds, st.booleans())
def test_shards_cut_train_and_test_alike(seed, distinct):
    train, test = balanced(5, 23, seed), balanced(5, 9, seed + 1)
    rows = shard_rows(5, 10, 2, rng(seed), distinct)
    assert (np.bincount(rows.ravel()) == 4).all()
    assert not distinct or (rows[:, 0] != rows[:, 1]).all()
    parts, test_parts = (partition.shards(labels, rows, rng(seed)) for labels in (train, test))
    assert_cover(parts, len(train))
    assert_cover(test_parts, len(test))
    for k, row in enumerate(rows):
        assert set(train[parts.of(k)]) == set(test[test_parts.of(k)]) == set(row)
    assert set(sizes(parts)) <= {10, 11, 12}  # 23 examples in 4 shards: 6, 6, 6, 5


def test_shards_are_runs_in_data_order_with_leftovers_in_front():
    labels = np.zeros(7, dtype=np.int64)
    parts = partition.shards(labels, np.zeros((3, 1), dtype=np.int64), rng(1))
    found = sorted(parts.of(k).tolist() for k in range(3))
    assert found == [[0, 1, 6], [2, 3], [4, 5]]


def test_shards_of_a_small_test_set_may_be_empty():
    rows = shard_rows(2, 4, 1, rng())
    parts = partition.shards(np.array([0, 1]), rows, rng(), allow_empty=True)
    assert sorted(sizes(parts)) == [0, 0, 1, 1]
    with pytest.raises(DataError, match=r"class number 0 has 1 for 2 pieces; fewer clients"):
        partition.shards(np.array([0, 1]), rows, rng())


@QUICK
@given(st.floats(1e-3, 100), st.integers(1, 30), st.integers(1, 5), st.integers(0, 80), seeds, st.booleans())
def test_dirichlet_covers_and_respects_its_minimum(alpha, num_clients, min_size, more, seed, cap):
    labels = rng(seed).integers(0, 4, num_clients * min_size + more)
    parts = partition.dirichlet(labels, 4, num_clients, alpha, rng(seed), min_size, cap)
    assert_cover(parts, len(labels))
    assert parts.num_clients == num_clients
    assert sizes(parts).min() >= min_size


@pytest.mark.parametrize("cap", [True, False])
@pytest.mark.parametrize("num_examples", [1001, 10_000])
def test_dirichlet_ends_at_tiny_alpha_with_a_thousand_clients(num_examples, cap):
    labels = rng().integers(0, 10, num_examples)
    smallest = num_examples // 1000
    parts = partition.dirichlet(labels, 10, 1000, 0.01, rng(), smallest, cap)
    assert_cover(parts, num_examples)
    assert sizes(parts).min() == smallest


def test_dirichlet_skew_falls_with_alpha():
    labels = balanced(10, 500)
    share = {}
    for alpha in (0.05, 1.0, 1000.0):
        counts = class_counts(partition.dirichlet(labels, 10, 10, alpha, rng(3)), labels, 10)
        share[alpha] = (counts.max(axis=1) / counts.sum(axis=1)).mean()
    assert share[0.05] > share[1.0] > share[1000.0]
    assert share[1000.0] < 0.13  # a tenth of each class, within a few per cent


@QUICK
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 50), st.booleans(), seeds)
def test_quantity_skew_covers_and_respects_its_minimum(num_clients, min_size, more, by_power, seed):
    num_examples = num_clients * min_size + more
    how = {"power": 1.5} if by_power else {"alpha": 0.1}
    parts = partition.quantity_skew(num_examples, num_clients, rng(seed), min_size=min_size, **how)
    assert_cover(parts, num_examples)
    assert sizes(parts).min() >= min_size


def test_quantity_skew_power_law_by_hand():
    # Shares 1, 1/2, 1/3 of 110 examples are 60, 30, 20, up to the rounding of the cuts.
    parts = partition.quantity_skew(110, 3, rng(), power=1.0)
    assert np.abs(np.sort(sizes(parts)) - [20, 30, 60]).max() <= 1


def test_subsets_may_overlap_and_leave_classes_out():
    labels = np.array([0, 1, 2, 3, 0, 1])
    parts = partition.subsets(labels, 4, [[0, 1], [1, 2]])
    assert [parts.of(k).tolist() for k in range(2)] == [[0, 1, 4, 5], [1, 2, 5]]


def test_natural_one_value_per_client():
    column = np.array(["b", "a", "b", "c"])
    groups = partition.natural_groups(column, 3, rng())
    assert groups == {"a": 0, "b": 1, "c": 2}
    parts = partition.natural(column, groups, 3)
    assert [parts.of(k).tolist() for k in range(3)] == [[1], [0, 2], [3]]
    unknown = partition.natural(np.array(["z", "c"]), groups, 3)
    assert [unknown.of(k).tolist() for k in range(3)] == [[], [], [1]]


@QUICK
@given(st.integers(1, 30), st.data(), seeds)
def test_natural_groups_lose_nothing_and_cut_no_value(num_values, data, seed):
    num_clients = data.draw(st.integers(1, num_values))
    column = np.concatenate([np.arange(num_values), rng(seed).integers(0, num_values, 50)])
    parts = partition.natural(column, partition.natural_groups(column, num_clients, rng(seed)), num_clients)
    assert_cover(parts, len(column))
    held = [set(column[parts.of(k)]) for k in range(num_clients)]
    assert sum(map(len, held)) == num_values
    assert max(map(len, held)) - min(map(len, held)) <= 1


def owners(parts):
    """The client of every example."""
    found = np.empty(len(parts.indices), dtype=np.int64)
    found[parts.indices] = np.repeat(np.arange(parts.num_clients), sizes(parts))
    return found.tolist()


@pytest.mark.parametrize(
    "split",
    [
        lambda draw: partition.n_classes(np.zeros(8, dtype=np.int64), 1, 4, 1, draw),
        lambda draw: partition.shards(np.zeros(8, dtype=np.int64), np.zeros((4, 1), dtype=np.int64), draw),
        lambda draw: partition.natural(np.arange(8), partition.natural_groups(np.arange(8), 4, draw), 4),
        lambda draw: partition.quantity_skew(8, 4, draw, power=2.0, min_size=1),
    ],
)
def test_who_gets_what_is_drawn_and_not_the_order_of_the_data(split):
    """Over seeds, each of the four clients has the first example."""
    found = [split(rng(seed)) for seed in range(40)]
    assert {owners(parts)[0] for parts in found} == {0, 1, 2, 3}
    assert len({tuple(owners(parts)) for parts in found}) > 4


def test_a_power_law_makes_no_client_the_largest_for_good():
    largest = {int(sizes(partition.quantity_skew(110, 3, rng(s), power=1.0)).argmax()) for s in range(20)}
    assert largest == {0, 1, 2}


def test_the_examples_of_a_class_are_dealt_out_shuffled():
    """Data sorted by date, say: the first half of a class is not one client's."""
    labels = np.zeros(40, dtype=np.int64)
    dealt = owners(partition.deal(labels, np.array([[20, 20]]), rng()))
    assert sorted(dealt) == [0] * 20 + [1] * 20
    assert 4 < sum(dealt[:20]) < 16


LABELS = balanced(10, 3)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: partition.iid(5, 6, rng()),
            "federation.num_clients must .* 5 training examples, but it is 6",
        ),
        (lambda: partition.iid(0, 1, rng()), "federation.num_clients must .* but it is 1"),
        (
            lambda: partition.n_classes(LABELS, 10, 10, 11, rng()),
            "partition.classes_per_client must be between 1 and the 10 classes, but it is 11",
        ),
        (lambda: partition.n_classes(LABELS, 10, 10, 0, rng()), "classes_per_client must .* but it is 0"),
        (
            lambda: partition.n_classes(LABELS, 10, 4, 2, rng()),
            "classes_per_client must be at least 3 so that 4",
        ),
        (lambda: partition.n_classes(LABELS, 10, 10, 4, rng()), "class number 0 has 3 for 4 pieces"),
        (lambda: shard_rows(10, 3, 2, rng()), "partition.shards_per_client must make .* but it is 2"),
        (
            lambda: partition.dirichlet(LABELS, 10, 3, 1.0, rng(), 11),
            "partition.min_size must .* 10 .* is 11",
        ),
        (lambda: partition.dirichlet(LABELS, 10, 31, 1.0, rng(), 1), "federation.num_clients must .* is 31"),
        (lambda: partition.quantity_skew(30, 3, rng()), "partition.alpha must be null exactly when"),
        (lambda: partition.subsets(LABELS, 10, [[0, 10]]), r"class numbers below 10, but it is \[0, 10\]"),
        (lambda: partition.subsets(LABELS, 10, [[0], []]), r"must give client 1 an example, but it is \[\]"),
        (lambda: partition.natural_groups(np.arange(3), 4, rng()), "1 and the 3 values .* but it is 4"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(call, sentence):
    with pytest.raises((ConfigError, DataError), match=sentence) as caught:
        call()
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
