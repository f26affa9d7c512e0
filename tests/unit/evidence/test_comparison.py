"""Methods beside each other: differences by hand, ranks by hand, and where nothing may be said."""

import math

import pytest
from scipy import stats

from fedfeat.evidence.comparison import complete, holm, pairs, ranks, smallest_p

NAN = float("nan")


def test_pairs_are_seed_by_seed_and_count_who_is_ahead():
    """Differences 0.1, 0.3 and -0.1: mean 0.1, deviation 0.2, t of two degrees 4.3027. Seed 9 has no partner."""
    numbers = {"iid": {"fed2": {0: 0.6, 1: 0.9, 2: 0.4, 9: 0.0}, "fedavg": {0: 0.5, 1: 0.6, 2: 0.5}}}
    (pair,) = pairs(numbers, "fedavg")
    half = stats.t.ppf(0.975, 2) * 0.2 / math.sqrt(3)
    assert (pair.setting, pair.method, pair.ahead) == ("iid", "fed2", 2)
    assert pair.interval == pytest.approx((0.1, 0.1 - half, 0.1 + half, 3))
    (lower,) = pairs(numbers, "fedavg", high=False)
    assert (lower.ahead, lower.interval.mean) == (1, pytest.approx(0.1))


def test_two_common_seeds_have_a_difference_and_no_interval():
    (pair,) = pairs({"": {"a": {0: 0.5, 1: 0.7}, "b": {0: 0.4, 1: 0.4, 2: 0.4}}}, "b")
    assert pair.interval == pytest.approx((0.2, -math.inf, math.inf, 2))


def test_who_shares_no_seed_or_setting_with_the_other_has_no_difference():
    assert pairs({"x": {"a": {0: 1.0}, "b": {1: 1.0}}, "y": {"a": {0: 1.0}}}, "b") == []


def test_a_run_that_has_diverged_makes_the_difference_nan_and_the_rank_last():
    numbers = {"x": {"a": {0: NAN, 1: 1.0, 2: 1.0}, "b": {0: 0.1, 1: 0.1, 2: 0.1}}}
    (pair,) = pairs(numbers, "b")
    assert math.isnan(pair.interval.mean)
    (of_two,) = pairs({"x": {"a": {0: NAN, 1: 1.0}, "b": {0: 0.1, 1: 0.1}}}, "b")
    assert math.isnan(of_two.interval.low)
    for high in (True, False):
        means = complete(numbers) | {"y": {"a": NAN, "b": 0.2}}
        assert [(rank.method, rank.mean) for rank in ranks(means, "b", high)] == [("b", 1.0), ("a", 2.0)]


def test_complete_takes_common_seeds_where_all_methods_ran():
    numbers = {"x": {"a": {0: 1.0, 1: 3.0}, "b": {1: 5.0, 2: 9.0}}, "y": {"a": {0: 1.0}}}
    assert complete(numbers) == {"x": {"a": 3.0, "b": 5.0}}


def test_mean_ranks_share_equal_places_and_turn_with_the_direction():
    means = {"x": {"a": 0.9, "b": 0.5, "c": 0.5}, "y": {"a": 0.1, "b": 0.3, "c": 0.2}}
    found = {rank.method: rank.mean for rank in ranks(means, "a")}
    assert found == {"a": 2.0, "b": 1.75, "c": 2.25}
    lower = {rank.method: rank.mean for rank in ranks(means, "a", high=False)}
    assert lower == {"a": 2.0, "b": 2.25, "c": 1.75}


def test_significance_begins_where_the_test_can_have_it():
    """Two methods: 5 settings give 0.0625 at best, 6 give 0.03125. Three methods: 6 give twice as much."""
    assert (smallest_p(5, 1), smallest_p(6, 1), smallest_p(6, 2)) == (0.0625, 0.03125, 0.0625)

    def found(settings, methods):
        names = "abcd"[:methods]
        table = {str(s): {m: -at + s / 100 * at for at, m in enumerate(names)} for s in range(settings)}
        return {rank.method: rank.p_value for rank in ranks(table, "a")}

    assert found(5, 2) == {"a": None, "b": None}
    assert found(6, 2) == {"a": None, "b": pytest.approx(0.03125)}
    assert found(6, 3) == {"a": None, "b": None, "c": None}
    assert found(7, 3) == {"a": None, "b": pytest.approx(0.03125), "c": pytest.approx(0.03125)}


def test_equal_methods_have_p_one_and_an_infinite_gap_counts_as_the_largest():
    same = {str(s): {"a": 0.5, "b": 0.5} for s in range(6)}
    assert {rank.p_value for rank in ranks(same, "a")} == {None, 1.0}
    diverged = {str(s): {"a": 0.5, "b": NAN} for s in range(6)}
    assert ranks(diverged, "a")[1].p_value == pytest.approx(0.03125)


def test_holm_is_as_worked_by_hand():
    """Sorted 0.01, 0.03, 0.04: 3 x 0.01, 2 x 0.03, then no less than the one before."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
