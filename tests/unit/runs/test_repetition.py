"""Where the numbers of a repeated run part from those that are kept."""

import math

import pytest

from fedfeat.runs.repetition import Parting, altered, partings


def rows(**columns):
    """Rows of metrics.csv for rounds 0, 1, ..., of the texts that each column has."""
    return [
        {"round": str(at)} | dict(zip(columns, values, strict=True))
        for at, values in enumerate(zip(*columns.values(), strict=True))
    ]


def test_numbers_are_the_same_to_six_digits():
    kept = rows(loss=["2.0", "1.0", "0.5"], bytes=["0", "4e9", "8e9"])
    again = rows(loss=["2.0", "1.0000001", "0.5"], bytes=["0", "4e9", "8e9"])
    assert partings(kept, again) == [
        Parting("loss", 0.5, 0.5, None, 0.0), Parting("bytes", 8e9, 8e9, None, 0.0)
    ]  # fmt: skip


def test_six_digits_are_those_of_the_larger_number_and_of_one():
    assert partings(rows(q=["1.0"]), rows(q=["1.000002"]))[0].since == 0
    assert partings(rows(q=["0.0"]), rows(q=["1e-9"]))[0].since is None


def test_the_first_round_apart_and_the_largest_distance_are_said():
    (one,) = partings(rows(acc=["0.1", "0.5", "0.75", "0.8"]), rows(acc=["0.1", "0.25", "0.25", "0.8"]))
    assert one == Parting("acc", 0.8, 0.8, 1, 0.5)


def test_rounds_that_both_have_are_compared():
    kept, again = rows(acc=["0.1", "0.5", "0.75"]), rows(acc=["0.1", "0.5"])
    assert partings(kept, again) == [Parting("acc", 0.5, 0.5, None, 0.0)]
    # Evaluated every second round, and every round.
    assert partings(kept[::2], rows(acc=["0.1", "0.9", "0.7"])) == [
        Parting("acc", 0.75, 0.7, 2, pytest.approx(0.05))
    ]
    assert partings(kept, []) == []
    assert partings([], again) == []


def test_clocks_mended_rows_and_columns_of_one_table_are_left_out():
    kept = rows(acc=["0.5", "0.6"], old=["1", "1"], **{"time/fit_s": ["3.0", "3.0"], "repaired": ["", ""]})
    again = rows(acc=["0.5", ""], new=["1", "1"], **{"time/fit_s": ["9.0", "9.0"], "repaired": ["", "1"]})
    for one, other in ((kept, again), (again, kept)):
        (found,) = partings(one, other)
        assert (found.quantity, found.since, found.kept) == ("acc", None, 0.5)


def test_what_is_not_finite_is_apart_from_what_is():
    kept = rows(loss=["1.0", "nan", "inf"], val=["", "", ""])
    (same, nothing) = partings(kept, kept)
    assert (same.since, same.largest) == (None, 0.0)
    assert nothing.since is None
    (apart, _) = partings(kept, rows(loss=["1.0", "2.0", "inf"], val=["", "", ""]))
    assert (apart.since, apart.largest) == (1, math.inf)
    (_, found) = partings(kept, rows(loss=["1.0", "nan", "inf"], val=["", "0.5", ""]))
    assert (found.since, found.largest) == (1, math.inf)


def test_a_configuration_is_altered_by_what_it_had_and_fixes_numbers():
    stored = {"seed": 0, "optimizer": {"lr": 0.1}, "logger": {"csv": {}}, "executor": {"_target_": "one"}}
    today = {"seed": 0, "optimizer": {"lr": 0.1, "new": 1}, "logger": {}, "executor": {"_target_": "two"}}
    assert altered(stored, today) == {}
    assert altered(stored, today | {"optimizer": {"lr": 0.2}}) == {"optimizer.lr": (0.1, 0.2)}
    assert altered(stored, {"seed": 0}) == {"optimizer.lr": (0.1, None)}
