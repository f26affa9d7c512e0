"""The fewest columns that tell the rows of a table apart."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations

MOST = 3
"""Of more columns than that no name is made: it would be longer than all that differ are worth."""


def fewest(base: Sequence[Hashable], columns: Sequence[Sequence[Hashable]]) -> tuple[int, ...] | None:
    """Choose the fewest columns that tell apart those rows which are equal in `base`.

    Every pair of such rows asks for one of the columns in which it differs; the fewest columns that meet all of these
    sets are found by going through the columns of the smallest set that is not met yet, instead of through all choices
    of columns, of which there are a hundred thousand of three in a hundred.

    Args:
        base: What is known of every row.
        columns: Columns with as many rows, the best first.

    Returns:
        Their numbers, ascending; of choices of one size the first in the order of the columns. None where more than
        `MOST` are needed, or all do not do.
    """
    alike: dict[Hashable, set[tuple[Hashable, ...]]] = {}
    for row, known in enumerate(base):
        group, values = alike.setdefault(known, set()), tuple(column[row] for column in columns)
        if values in group:
            return None
        group.add(values)
    asked = {_differing(one, other) for group in alike.values() for one, other in combinations(group, 2)}
    for size in range(MOST + 1):
        if found := [*_meeting(sorted(asked, key=int.bit_count), size)]:
            return min(
                tuple(number for number in range(len(columns)) if bits >> number & 1) for bits in found
            )
    return None


def _differing(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Give the columns in which two rows differ, as bits."""
    return sum(1 << number for number, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])


def _meeting(asked: Sequence[int], size: int) -> Iterator[int]:
    """Go through choices of at most `size` columns that meet every set, the smallest set first."""
    if not asked:
        yield 0
    elif size:
        smallest = asked[0]
        for bit in (1 << number for number in range(smallest.bit_length()) if smallest >> number & 1):
            for others in _meeting([one for one in asked if not one & bit], size - 1):
                yield bit | others
