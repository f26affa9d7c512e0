"""Rank correlation over arms, by hand."""

import math

import pytest

from fedfeat.evidence.association import association


def test_it_goes_by_ranks_of_the_arms_that_have_both():
    one = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 1000.0, "only": 5.0}
    other = {"a": 0.1, "b": 0.3, "c": 0.2, "d": 0.9, "else": 0.0}
    # Ranks 1 2 3 4 and 1 3 2 4: 1 - 6 * 2 / (4 * 15).
    found = association(one, other)
    assert found.rho == pytest.approx(0.8)
    assert found.num_arms == 4
    # 1 of 24 orders has rho 1 and 3 have .8; both sides.
    assert found.p_value == pytest.approx(2 * 4 / 24)


def test_a_perfect_order_of_few_arms_is_no_proof_and_one_of_many_is():
    def perfect(number):
        values = {str(i): float(i) for i in range(number)}
        return association(values, {arm: -value for arm, value in values.items()})

    assert (perfect(3).rho, perfect(4).rho) == (-1.0, -1.0)
    assert perfect(3).p_value == pytest.approx(2 / 6)
    assert perfect(4).p_value == pytest.approx(2 / 24)
    assert perfect(6).p_value == pytest.approx(2 / 720)
    assert perfect(12).p_value == pytest.approx(2 / 10_000)
    assert perfect(12) == perfect(12)


def test_ties_share_their_rank():
    found = association({"a": 1.0, "b": 1.0, "c": 3.0}, {"a": 5.0, "b": 6.0, "c": 7.0})
    assert found.rho == pytest.approx(0.75**0.5)


def test_without_order_there_is_nothing_to_correlate():
    same = {"a": 1.0, "b": 1.0, "c": 1.0}
    assert math.isnan(association(same, {"a": 1.0, "b": 2.0, "c": 3.0}).rho)
    assert association({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}).num_arms == 2
    assert association({**same, "d": math.nan}, {**same, "d": 1.0}).num_arms == 3
