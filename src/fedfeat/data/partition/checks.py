"""What a scheme gives, held to what a split is: schemes may be anyone's own."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedfeat.data.partition.parts import (
    ClassTestParts,
    ClientSplit,
    IndexTestParts,
    Parts,
    Population,
    TestParts,
    has_overlaps,
    owners_of,
)
from fedfeat.errors import DataError


def checked_parts(
    name: str, given: Any, population: Population, merged: bool
) -> tuple[Parts, TestParts | None]:
    """Give the parts of the training set and of the test set, and refuse what no split can be made of.

    Args:
        name: The scheme's.
        given: What the scheme has given.
        population: What it was to hand out.
        merged: Whether indices count through the training set and on through the test set.

    Raises:
        DataError: They are no parts, or not of these clients and examples.
    """
    if isinstance(given, Parts) or not isinstance(given, tuple | list) or len(given) != 2:
        rule = "give a pair, Parts of the training set and those of the test set or None"
        raise DataError(f"{name}.assign must {rule}, but it gives {type(given).__qualname__}.")
    parts, test = given
    train, tests = len(population.train_labels), len(population.test_labels)
    if merged:
        train = tests = train + tests
    _check(f"{name}.assign", parts, population.num_clients, train)
    if isinstance(test, IndexTestParts):
        _check(f"{name}.assign for the test set", test.parts, population.num_clients, tests)
    elif test is not None and not isinstance(test, ClassTestParts):
        kind = type(test).__qualname__
        raise DataError(
            f"{name}.assign must give None or IndexTestParts for the test set, but it gives a {kind}."
        )
    return parts, test


def _check(what: str, parts: Any, num_clients: int, num_examples: int) -> None:
    if not isinstance(parts, Parts):
        raise DataError(f"{what} must give Parts, but it gives a {type(parts).__qualname__}.")
    indices, offsets = map(np.asarray, parts)
    if not all(array.ndim == 1 and np.issubdtype(array.dtype, np.integer) for array in (indices, offsets)):
        kinds = " and ".join(f"{array.dtype} of the shape {array.shape}" for array in (indices, offsets))
        raise DataError(
            f"{what} must give indices and offsets that are flat arrays of integers, but they are {kinds}."
        )
    ends = [*offsets[:1], *offsets[-1:], len(offsets)]
    if ends != [0, len(indices), num_clients + 1] or (np.diff(offsets) < 0).any():
        raise DataError(
            f"{what} must give {num_clients + 1} offsets that rise from 0 to its {len(indices)} indices, one more than "
            f"there are clients, but they are {_shown(offsets)}."
        )
    outside = indices[(indices < 0) | (indices >= num_examples)]
    if len(outside):
        raise DataError(f"{what} must give indices from 0 to {num_examples - 1}, but one is {outside[0]}.")


def _shown(values: np.ndarray) -> str:
    return ", ".join(map(str, values[:8])) + (", ..." if len(values) > 8 else "")


def check_column(name: str, column: np.ndarray | None) -> None:
    """Refuse a column that says nothing of an example, or whose values cannot be put in order.

    Raises:
        DataError: Names the column, and the example or the kinds.
    """
    values = [] if column is None else np.asarray(column).tolist()
    # Not a number is unequal to itself.
    missing = next((i for i, value in enumerate(values) if value is None or value != value), None)
    if missing is not None:
        raise DataError(
            f"column {name} must have a value for every example, but that of example {missing} is {values[missing]}."
        )
    kinds = {"a number" if isinstance(value, int | float) else type(value).__name__ for value in values}
    if len(kinds) > 1:
        raise DataError(
            f"column {name} must have values of one kind, but it has {' and '.join(sorted(kinds))}."
        )


def gaps(split: ClientSplit, num_examples: int) -> Iterator[str]:
    """Say in a sentence each how many clients of a split have nothing to train on, and how many examples nobody has.

    Args:
        split: The split.
        num_examples: Number of training examples.
    """
    empty = np.flatnonzero(np.diff(split.train.offsets) == 0)
    if len(empty):
        yield f"{len(empty)} of {split.train.num_clients} clients have no training example: {_shown(empty)}."
    free = np.ones(num_examples, dtype=bool)
    free[split.train.indices] = free[split.val.indices] = False
    if free.any():
        yield f"{free.sum()} of {num_examples} training examples are with no client."


def check_owners(parts: Parts) -> None:
    """Refuse parts that give an example to several clients, or to one twice.

    Raises:
        DataError: Names the first such example.
    """
    if has_overlaps(parts):
        shared = np.flatnonzero(np.bincount(parts.indices) > 1)
        owners = sorted({int(k) for k in owners_of(parts)[parts.indices == shared[0]]})
        raise DataError(
            "partition must give no example to several clients where they see it alike, "
            f"but example {shared[0]} is with the clients {owners}."
        )
