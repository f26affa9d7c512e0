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


def test_without_order_there_is_nothing_to_correlate():
    same = {"a": 1.0, "b": 1.0, "c": 1.0}
    assert math.isnan(association(same, {"a": 1.0, "b": 2.0, "c": 3.0}).rho)
    assert association({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}).num_arms == 2
    assert association({**same, "d": math.nan}, {**same, "d": 1.0}).num_arms == 3
