"""The fewest columns that tell the rows of a table apart."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations

MOST = 3
"""Up to so many the choice is the best there is; a larger one takes what tells most apart, again and again."""


def fewest(base: Sequence[Hashable], columns: Sequence[Sequence[Hashable]]) -> tuple[int, ...]:
    """Choose the fewest columns that tell apart those rows which are equal in `base`, as far as any do.

    Every pair of such rows asks for one of the columns in which it differs; the fewest columns that meet all of these
    sets are found by going through the columns of the smallest set that is not met yet, instead of through all choices
    of columns, of which there are a hundred thousand of three in a hundred.

    Args:
        base: What is known of every row.
        columns: Columns with as many rows, the best first.

    Returns:
        Their numbers, ascending; of choices of one size the first in the order of the columns.
    """
    alike: dict[Hashable, set[tuple[Hashable, ...]]] = {}
    for row, known in enumerate(base):
        alike.setdefault(known, set()).add(tuple(column[row] for column in columns))
    pairs = {_differing(one, other) for group in alike.values() for one, other in combinations(group, 2)}
    asked = sorted(pairs, key=int.bit_count)
    for size in range(MOST + 1):
        if found := [_numbers(bits) for bits in _meeting(asked, size)]:
            return min(found)
    return _many(asked, len(columns))


def _many(asked: Sequence[int], width: int) -> tuple[int, ...]:
    """Choose the column that meets most sets until all are met, then leave out what the later ones made needless."""
    chosen, left = list[int](), asked
    while left:
        chosen.append(max(range(width), key=lambda number: sum(one >> number & 1 for one in left)))
        left = [one for one in left if not one >> chosen[-1] & 1]
    for number in [*chosen]:
        bits = sum(1 << other for other in chosen if other != number)
        if all(one & bits for one in asked):
            chosen.remove(number)
    return tuple(sorted(chosen))


def _differing(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Give the columns in which two rows differ, as bits."""
    return sum(1 << number for number, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])


def _numbers(bits: int) -> tuple[int, ...]:
    return tuple(number for number in range(bits.bit_length()) if bits >> number & 1)


def _meeting(asked: Sequence[int], size: int) -> Iterator[int]:
    """Go through choices of at most `size` columns that meet every set, the smallest set first."""
    if not asked:
        yield 0
    elif size:
        for bit in (1 << number for number in _numbers(asked[0])):
            for others in _meeting([one for one in asked if not one & bit], size - 1):
                yield bit | others
