"""The fewest columns that tell rows apart are those that a search through all choices would find first."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfeat.runs.fewest import MOST, fewest


@st.composite
def tables(draw):
    number, width = draw(st.integers(0, 12)), draw(st.integers(0, 8))
    cells = st.lists(st.integers(0, 2), min_size=number, max_size=number)
    return draw(cells), [draw(cells) for _ in range(width)]


def by_search(base, columns):
    """The definition: the first of the smallest choices, in the order of the columns."""
    most = len({*zip(base, *columns, strict=True)})
    for size in range(MOST + 1):
        for chosen in combinations(range(len(columns)), size):
            told = {(known, *(columns[one][row] for one in chosen)) for row, known in enumerate(base)}
            if len(told) == most:
                return chosen
    return None


@given(tables())
def test_it_is_the_first_of_the_smallest_choices_and_of_more_than_three_none_is_needless(table):
    base, columns = table
    chosen, best = fewest(base, columns), by_search(base, columns)
    if best is not None:
        assert chosen == best
        return

    def told(numbers):
        return len({(known, *(columns[one][row] for one in numbers)) for row, known in enumerate(base)})

    assert told(chosen) == told(range(len(columns)))
    assert all(told({*chosen} - {one}) < told(chosen) for one in chosen)


HALVES = [f"{row:016b}" for row in (0x00FF, 0x0F0F, 0x3333, 0x5555)]


@pytest.mark.parametrize(
    ("base", "columns", "expected"),
    [
        ("abc", [], ()),
        ("aab", ["xyz"], (0,)),
        ("aab", ["xxy", "xyy"], (1,)),  # what tells others apart is not asked for
        ("aaaa", ["xxyy", "xyxy", "wxyz"], (2,)),  # one rather than two
        ("aaaa", ["xxyy", "xxyy", "xyxy", "xyyx"], (0, 2)),
        ("aa", ["xx"], ()),  # nothing does
        ("aaa", ["xxx", "xxy"], (1,)),  # two are equal in all
        ("a" * 16, ["x" * 16, *HALVES], (1, 2, 3, 4)),
        ("a" * 16, [*HALVES, "ab" * 8], (0, 1, 2, 3)),  # the first of equal ones
    ],
)
def test_by_hand(base, columns, expected):
    assert fewest(base, columns) == expected


def test_of_many_columns_none_is_missed_and_not_all_choices_are_gone_through():
    """Three in 300 are four and a half million choices."""
    number = 64
    columns = [[row // 7 % 2 if column % 2 else 0 for row in range(number)] for column in range(300)]
    for place, step in ((270, 1), (150, 4), (299, 16)):
        columns[place] = [row // step % 4 for row in range(number)]
    assert fewest([0] * number, columns) == (150, 270, 299)
