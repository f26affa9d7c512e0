"""What schemes of one's own may give."""

import numpy as np
import pytest

from fedfeat.data.partition.checks import check_column, checked_parts, gaps
from fedfeat.data.partition.parts import ClassTestParts, ClientSplit, IndexTestParts, Parts, Population
from fedfeat.errors import DataError

POPULATION = Population(np.arange(6) % 2, np.arange(4) % 2, 2, 2, {}, {})
GOOD = Parts(np.array([0, 2, 1, 5]), np.array([0, 2, 4]))


def parts(indices, offsets):
    return Parts(np.array(indices), np.array(offsets))


def test_parts_of_all_kinds_pass():
    tests = IndexTestParts(parts([3, 0], [0, 0, 2]))
    for test in (None, tests, ClassTestParts(np.ones((2, 2), dtype=bool), POPULATION.test_labels)):
        checked_parts("Mine", (GOOD, test), POPULATION, merged=False)
    # Merged ones count on through the test set.
    merged = parts([9, 0], [0, 1, 2]), IndexTestParts(parts([8], [0, 0, 1]))
    assert checked_parts("Mine", merged, POPULATION, merged=True) == merged
    narrow = GOOD._replace(indices=GOOD.indices.astype(np.int32))
    checked_parts("Mine", [narrow, None], POPULATION, merged=False)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([np.arange(6)], "Parts, but it gives a list."),
        (parts([0.5, 1], [0, 1, 2]), "indices and offsets that are flat arrays of integers, but they are float64 of "
         "the shape (2,) and int64 of the shape (3,)."),
        (parts([[0, 1]], [0, 1, 2]), "indices and offsets that are flat arrays of integers, but they are int64 of "
         "the shape (1, 2) and int64 of the shape (3,)."),
        (parts([0, 1], [0, 2]), "3 offsets that rise from 0 to its 2 indices, one more than there are clients, but "
         "they are 0, 2."),
        (parts([0, 1], [1, 1, 2]), "3 offsets that rise from 0 to its 2 indices, one more than there are clients, but "
         "they are 1, 1, 2."),
        (parts([0, 1], [0, 1, 1]), "3 offsets that rise from 0 to its 2 indices, one more than there are clients, but "
         "they are 0, 1, 1."),
        (parts([0, 1, 2], [0, 4, 3]), "3 offsets that rise from 0 to its 3 indices, one more than there are clients, "
         "but they are 0, 4, 3."),
        (parts([0, 6], [0, 1, 2]), "indices from 0 to 5, but one is 6."),
        (parts([0, -1], [0, 1, 2]), "indices from 0 to 5, but one is -1."),
    ],
)  # fmt: skip
def test_what_is_no_split_is_refused(given, sentence):
    with pytest.raises(DataError) as caught:
        checked_parts("Mine", (given, None), POPULATION, merged=False)
    assert str(caught.value) == f"Mine.assign must give {sentence}"


@pytest.mark.parametrize(
    ("test", "sentence"),
    [
        (GOOD, "Mine.assign must give None or IndexTestParts for the test set, but it gives a Parts."),
        (IndexTestParts(GOOD), "Mine.assign for the test set must give indices from 0 to 3, but one is 5."),
    ],
)
def test_so_are_test_parts(test, sentence):
    with pytest.raises(DataError) as caught:
        checked_parts("Mine", (GOOD, test), POPULATION, merged=False)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("given", [None, GOOD, (GOOD,), (GOOD, None, None)])
def test_what_is_no_pair_is_refused(given):
    """Nothing at all, or the training set alone, whose parts are a pair of arrays."""
    with pytest.raises(DataError) as caught:
        checked_parts("Mine", given, POPULATION, merged=False)
    rule = "give a pair, Parts of the training set and those of the test set or None"
    assert str(caught.value) == f"Mine.assign must {rule}, but it gives {type(given).__name__}."


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (
            np.array([1.0, np.nan, 2.0]),
            r"must have a value for every example, but that of example 1 is nan\.$",
        ),
        (np.array(["x", "y", None], dtype=object), r"must have a value .*, but that of example 2 is None\.$"),
        (np.array([np.nan, "x"], dtype=object), r"must have a value .*, but that of example 0 is nan\.$"),
        (np.array([3, "x"], dtype=object), r"must have values of one kind, but it has a number and str\.$"),
    ],
)
def test_a_column_that_says_nothing_of_an_example_is_refused(column, sentence):
    with pytest.raises(DataError, match=f"^column ward {sentence}"):
        check_column("ward", column)


@pytest.mark.parametrize(
    "column", [None, np.arange(3), np.array(["a", "b"]), np.array([1, 2.5], dtype=object)]
)
def test_columns_whose_values_have_an_order_pass(column):
    check_column("ward", column)


def test_what_is_with_nobody_and_who_has_nothing_is_said():
    whole = ClientSplit(GOOD, parts([3, 4], [0, 1, 2]), IndexTestParts(GOOD))
    assert [*gaps(whole, 6)] == []
    # The example 5 is with both.
    few = ClientSplit(
        parts([5, 0, 5], [0, 1, 1, 1, 3]), parts(np.array([], dtype=np.int64), [0] * 5), IndexTestParts(GOOD)
    )
    assert [*gaps(few, 6)] == [
        "2 of 4 clients have no training example: 1, 2.",
        "4 of 6 training examples are with no client.",
    ]
