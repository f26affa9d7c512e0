from itertools import pairwise

import numpy as np
import pytest
from harness import sample_cohort

from fedfeat.data.affected import reduced_clients, weak_clients
from fedfeat.errors import ConfigError
from fedfeat.rounds.sampling import cohort_size, sample_stragglers, straggler_steps
from fedfeat.seeding import derive_seed, numpy_generator


@pytest.mark.parametrize(
    ("clients", "size", "fraction", "expected"),
    [
        (10, None, None, 10),
        (10, 3, None, 3),
        (10, None, 0.25, 2),
        (10, None, 0.01, 1),
        (100, None, 0.29, 29),
        (7, None, 1, 7),
    ],
)
def test_cohort_size_is_the_size_or_the_floor_of_the_share(clients, size, fraction, expected):
    assert cohort_size(clients, size, fraction) == expected


def test_a_cohort_larger_than_the_federation_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"federation.cohort_size must be at most the number of clients that take part \(10\), but it is 11.",
    ):
        cohort_size(10, 11, None)


def test_a_cohort_depends_on_seed_and_round_alone():
    first = sample_cohort(3, 5, 100, 10)
    assert first == sample_cohort(3, 5, 100, 10)
    assert first != sample_cohort(3, 6, 100, 10)
    assert first != sample_cohort(4, 5, 100, 10)
    assert len(set(first)) == 10
    assert list(first) == sorted(first)


def test_every_client_is_drawn_equally_often():
    counts = np.zeros(20)
    for round_idx in range(2000):
        counts[list(sample_cohort(0, round_idx, 20, 5))] += 1
    # Binomial(2000, 1/4): standard deviation 19.4; five of them.
    assert np.abs(counts - 500).max() < 97


def test_full_participation_is_everyone_in_order():
    assert sample_cohort(0, 9, 4, 4) == (0, 1, 2, 3)


def test_stragglers_are_the_stated_share_of_the_cohort():
    cohort = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)
    chosen = sample_stragglers(0, 1, cohort, 0.9)
    assert len(chosen) == 9
    assert chosen < set(cohort)
    assert sample_stragglers(0, 1, cohort, 0.0) == frozenset()


def test_stragglers_finish_whole_epochs_below_all_of_them():
    done = {straggler_steps(0, round_idx, 4, 15, 3) for round_idx in range(200)}
    assert done == {3, 6, 9, 12}
    assert {straggler_steps(0, round_idx, 4, 3, 3) for round_idx in range(200)} == {1, 2}
    assert straggler_steps(0, 0, 4, 1, 1) == 1
    assert {straggler_steps(0, round_idx, 4, 15, 3, 2) for round_idx in range(200)} == {6, 9, 12}
    assert {straggler_steps(0, round_idx, 4, 6, 3, 2) for round_idx in range(200)} == {1, 2, 3, 4, 5}
    assert {straggler_steps(0, round_idx, 4, 25, 10) for round_idx in range(200)} == {
        10,
        20,
    }  # two epochs and a half
    assert {straggler_steps(0, round_idx, 4, 15, 10) for round_idx in range(200)} == {10}


def test_seeds_differ_with_every_part_of_the_address():
    addresses = [
        (0, "a"),
        (1, "a"),
        (0, "b"),
        (0, "a", 0),
        (0, "a", 1),
        (0, "a", 0, 0),
        (0, "a", 1, 0),
        (0, "a", 10),
    ]
    seeds = [derive_seed(*address) for address in addresses]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    # A fixed value: a change of the derivation would silently change every published number.
    assert derive_seed(0, "cohort", 1) == 1858723903447637163
    assert numpy_generator(1, "x").integers(1000) == numpy_generator(1, "x").integers(1000)


def test_excluded_clients_are_never_drawn_and_the_others_uniformly():
    excluded = frozenset({0, 3, 4})
    cohorts = [sample_cohort(1, round_idx, 8, 2, excluded) for round_idx in range(1000)]
    counts = np.bincount([k for cohort in cohorts for k in cohort], minlength=8)
    assert set(np.flatnonzero(counts == 0)) == excluded
    # 400 expected each; five standard deviations of a binomial are 77.
    assert abs(counts[[1, 2, 5, 6, 7]] - 400).max() < 77
    assert all(list(cohort) == sorted(set(cohort)) for cohort in cohorts)
    assert sample_cohort(1, 0, 8, 5, excluded) == (1, 2, 5, 6, 7)
    assert sample_cohort(1, 4, 8, 2) == sample_cohort(1, 4, 8, 2, frozenset())


@pytest.mark.parametrize("draw", [weak_clients, reduced_clients])
def test_shares_of_the_clients_are_nested(draw):
    shares = [draw(5, 40, fraction) for fraction in (0.0, 0.2, 0.5, 0.9)]
    assert [len(share) for share in shares] == [0, 8, 20, 36]
    assert all(small <= large for small, large in pairwise(shares))
    assert shares[2] != draw(6, 40, 0.5)


def test_weak_clients_and_those_that_lost_data_are_drawn_apart():
    assert weak_clients(5, 40, 0.5) != reduced_clients(5, 40, 0.5)


def test_someone_can_always_run_the_full_network_and_everyone_can_lose_data():
    assert len(weak_clients(5, 10, 0.99)) == 9
    assert weak_clients(5, 1, 0.99) == frozenset()
    assert reduced_clients(5, 10, 1.0) == set(range(10))
