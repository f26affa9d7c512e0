"""Intervals against SciPy's own, and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from fedfeat.evidence.intervals import LEVEL, Needed, difference, mean_interval


def test_three_seeds_by_hand():
    # Mean 2, variance 1, t(2) = 4.302652730: half = 4.302652730 / sqrt(3).
    found = mean_interval([1.0, 2.0, 3.0])
    assert found.mean == 2
    assert found.high - found.mean == pytest.approx(4.302652729749464 / math.sqrt(3), rel=1e-12)
    assert found.mean - found.low == pytest.approx(found.high - found.mean, rel=1e-12)


@pytest.mark.parametrize("number", [2, 3, 7, 30])
def test_it_is_scipys(number):
    values = np.random.default_rng(number).normal(size=number)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = mean_interval(values.tolist())
    np.testing.assert_allclose([found.low, found.high], [expected.low, expected.high], rtol=1e-12)


def test_a_difference_pairs_seeds_and_leaves_out_those_of_one_alone():
    one, other = {0: 0.5, 1: 0.7, 2: 0.9, 9: 0.0}, {0: 0.4, 1: 0.5, 2: 0.85, 7: 1.0}
    expected = stats.ttest_rel([0.5, 0.7, 0.9], [0.4, 0.5, 0.85]).confidence_interval(0.95)
    found = difference(one, other)
    assert found.num_seeds == 3
    assert found.mean == pytest.approx(0.35 / 3)
    np.testing.assert_allclose([found.low, found.high], [expected.low, expected.high], rtol=1e-12)
    assert difference({0: 1.0}, {1: 1.0}) is None


def test_one_seed_has_a_mean_and_no_interval():
    assert mean_interval([0.3]) == (0.3, -math.inf, math.inf, 1)
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])


def test_what_was_never_reached():
    inf = math.inf
    assert difference({0: inf, 1: inf, 2: 40.0}, {0: 50.0, 1: 60.0, 2: 60.0}) == (inf, -20.0, inf, 3)
    assert difference({0: inf}, {0: inf}) is None
    assert difference({0: inf, 1: 2.0}, {0: inf, 1: 1.0}) == difference({1: 2.0}, {1: 1.0})
    assert math.isnan(difference({0: inf, 1: 1.0}, {0: 1.0, 1: inf}).mean)


def never(value, step):
    return Needed(value, step, never=True)


def test_who_never_came_there_is_ahead_of_nobody():
    # 16 MB a round and never there after 30 rounds, against 280 MB a round and there after 20.
    small, big = dict.fromkeys(range(3), never(496.0, 16.0)), dict.fromkeys(range(3), Needed(5600.0, 280.0))
    found = difference(small, big)
    assert found.mean == 0
    assert found.low < 0 < found.high
    assert difference(big, small).mean == 0
    late = dict.fromkeys(range(3), never(6000.0, 280.0))
    assert difference(late, big).mean == 400  # at least so much later
    assert difference(late, big).high == pytest.approx(
        400 + 4.302652729749464 * math.sqrt(2 * 280**2 / 12 / 3)
    )
    # Nobody came there: of who is sooner nothing is known.
    assert difference(small, late) == difference(late, small) == (0.0, -math.inf, math.inf, 3)
    one_came = late | {1: Needed(5600.0, 280.0)}
    assert difference(small, one_came) == pytest.approx(mean_interval([0.0, 0.0, 0.0], (16**2 + 280**2) / 12))


@pytest.mark.parametrize(("gap", "is_decided"), [(1, False), (2, False), (4, True)])
def test_rounds_are_known_to_the_step_between_two_evaluations(gap, is_decided):
    one, other = ({seed: Needed(at, 2.0) for seed in range(3)} for at in (20 - gap, 20))
    found = difference(one, other)
    assert found.mean == -gap
    assert (found.high < 0) == is_decided
    # By hand: variance 2 ** 2 / 6, t(2) = 4.302652730.
    assert found.high + gap == pytest.approx(4.302652729749464 * math.sqrt(4 / 6 / 3), rel=1e-12)


def test_each_number_is_uniform_in_its_own_step():
    one, other = dict.fromkeys(range(3), Needed(10.0, 2.0)), dict.fromkeys(range(3), Needed(50.0, 6.0))
    # By hand: variance (2 ** 2 + 6 ** 2) / 12, t(2) = 4.302652730.
    half = 4.302652729749464 * math.sqrt(40 / 12 / 3)
    assert difference(one, other) == pytest.approx((-40.0, -40.0 - half, -40.0 + half, 3), rel=1e-12)
    known = dict.fromkeys(range(3), 50.0)
    assert difference(one, known).high == pytest.approx(-40.0 + half * math.sqrt(4 / 40), rel=1e-12)


@pytest.mark.parametrize("far", [never(30.0, 2.0), Needed(30.0, 2.0), math.inf, 1.0])
def test_what_diverged_is_no_difference_to_anything(far):
    assert math.isnan(difference({0: math.nan}, {0: far}).mean)
    assert math.isnan(difference({0: far}, {0: math.nan}).mean)


def test_what_differs_by_more_than_steps_keeps_its_own_interval():
    plain = difference({0: 10.0, 1: 30.0, 2: 20.0}, {0: 50.0, 1: 60.0, 2: 90.0})
    stepped = difference(
        {0: Needed(10.0, 2.0), 1: Needed(30.0, 2.0), 2: Needed(20.0, 2.0)}, {0: 50.0, 1: 60.0, 2: 90.0}
    )
    assert stepped == plain


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_number_that_is_none_leaves_no_interval(lost):
    found = difference({0: 0.3, 1: 0.4, 2: 0.5} | {lost: math.nan}, {0: 0.2, 1: 0.2, 2: 0.3})
    assert all(map(math.isnan, found[:3]))
    assert found.num_seeds == 3


def test_two_who_were_each_there_alone_have_no_mean_and_no_end(tmp_path):
    found = difference({0: 3.0, 1: math.inf, 2: 4.0}, {0: math.inf, 1: 5.0, 2: 4.0})
    assert math.isnan(found.mean)
    assert (found.low, found.high, found.num_seeds) == (-math.inf, math.inf, 3)


@pytest.mark.parametrize("bound", [0.0, 0.3, 0.55, 2.0])
def test_the_p_of_a_bound_is_that_of_a_t_test(bound):
    values = [0.2, 0.5, 0.9, 0.6]
    expected = stats.ttest_1samp(values, bound).pvalue
    assert mean_interval(values).p_value(bound) == pytest.approx(expected, rel=1e-12)


def test_a_bound_at_the_end_of_an_interval_has_the_p_of_its_level():
    found = mean_interval([0.2, 0.5, 0.9])
    assert found.p_value(found.low) == pytest.approx(1 - LEVEL)
    assert found.p_value(found.high) == pytest.approx(1 - LEVEL)


def test_the_p_without_spread_or_without_an_interval():
    alike = mean_interval([0.5, 0.5])
    assert (alike.p_value(0.5), alike.p_value(0.4)) == (1, 0)
    assert math.isnan(mean_interval([0.5]).p_value(0.4))
    assert math.isnan(mean_interval([0.5, math.nan]).p_value(0.4))
