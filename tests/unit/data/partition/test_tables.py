import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.data.partition.tables import class_rows, cut_sizes, dirichlet_counts, raise_to_minimum

QUICK = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32)


def rng(seed=0):
    return np.random.default_rng(seed)


@QUICK
@given(st.integers(1, 12), st.integers(1, 40), st.data(), seeds)
def test_class_rows_are_distinct_and_balanced(num_classes, num_clients, data, seed):
    least = -(-num_classes // num_clients)
    if least > num_classes:
        return
    per_client = data.draw(st.integers(least, num_classes))
    rows = class_rows(num_classes, num_clients, per_client, rng(seed))
    assert rows.shape == (num_clients, per_client)
    assert all(len(set(row)) == per_client for row in rows.tolist())
    held = np.bincount(rows.ravel(), minlength=num_classes)
    assert np.ptp(held) <= 1
    assert held.sum() == num_clients * per_client


def test_dirichlet_cap_closes_full_clients():
    # 10 classes of 10 examples on 2 clients: with the cap nobody exceeds N / K by more than one class.
    class_sizes = np.full(10, 10)
    for seed in range(20):
        capped = dirichlet_counts(class_sizes, 2, 0.05, rng(seed), 1, cap=True).sum(axis=0)
        assert capped.max() < 50 + 10
    free = [dirichlet_counts(class_sizes, 2, 0.05, rng(s), 1, cap=False) for s in range(20)]
    assert max(counts.sum(axis=0).max() for counts in free) >= 60


def test_cut_sizes_by_hand():
    # floor(10 * (0.25, 0.5)) = 2, 5: pieces 2, 3 and the remainder 5.
    assert cut_sizes(10, np.array([0.25, 0.25, 0.5])).tolist() == [2, 3, 5]
    # floor(10 * (0.26, 0.52)) = 2, 5: 2.6 is not rounded up.
    assert cut_sizes(10, np.array([0.26, 0.26, 0.48])).tolist() == [2, 3, 5]
    assert cut_sizes(0, np.array([0.5, 0.5])).tolist() == [0, 0]


def test_raise_to_minimum_moves_the_commonest_class_of_the_largest():
    counts = np.array([[9, 0, 2], [1, 1, 2]])
    assert raise_to_minimum(counts, 3).tolist() == [[7, 2, 2], [1, 1, 2]]
    assert counts.tolist() == [[9, 0, 2], [1, 1, 2]]


def test_raise_to_minimum_takes_from_nobody_what_is_needed_there():
    # The second client can give 3 of its 8 and keeps 5; the third gives the other 2.
    counts = np.array([[0, 8, 0], [0, 0, 7]])
    assert raise_to_minimum(counts, 5).tolist() == [[3, 5, 0], [2, 0, 5]]


def test_a_draw_that_just_meets_the_minimum_is_taken():
    class_sizes = np.full(10, 50)
    first = dirichlet_counts(class_sizes, 3, 0.5, rng(), 0, cap=True)
    smallest = int(first.sum(axis=0).min())
    assert smallest > 0
    assert (dirichlet_counts(class_sizes, 3, 0.5, rng(), smallest, cap=True) == first).all()
    assert (dirichlet_counts(class_sizes, 3, 0.5, rng(), smallest + 1, cap=True) != first).any()


def test_alpha_is_that_of_each_client():
    """Symmetric Dirichlet, K = 4 and alpha = 1: a share has the variance 1/4 * 3/4 / (4 * 1 + 1) = 0.0375."""
    counts = dirichlet_counts(np.full(4000, 1000), 4, 1.0, rng(), 0, cap=False)
    np.testing.assert_allclose((counts / 1000).var(axis=0), 0.0375, rtol=0.1)


@QUICK
@given(st.integers(1, 5), st.integers(1, 12), st.integers(1, 4), st.data())
def test_raise_to_minimum_keeps_classes_and_meets_the_minimum(num_classes, num_clients, min_size, data):
    total = min_size * num_clients + data.draw(st.integers(0, 5))
    draw = rng(data.draw(seeds))
    counts = np.zeros((num_classes, num_clients), dtype=np.int64)
    np.add.at(counts, (draw.integers(0, num_classes, total), draw.integers(0, num_clients, total) // 2), 1)
    raised = raise_to_minimum(counts, min_size)
    assert raised.min() >= 0
    assert raised.sum(axis=0).min() >= min_size
    assert (raised.sum(axis=1) == counts.sum(axis=1)).all()
