"""Runs of one setting whose data lay in several folders: which of them had the same examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedfeat.runs.finished import Run


def parts_by_examples(runs: Iterable[Run]) -> list[list[Run]]:
    """Part runs that differ in nothing but the seed by the examples that they had.

    What one seed has in two digests is two data sets. Folders without a seed in common are one where a digest is, for
    data may have been moved, or where digests follow the seed, as those of generated examples do. Where a digest is not
    known, runs are those of their folder, else of the first one.
    """
    folders: list[list[Run]] = []
    for run in runs:
        _put(folders, [run], lambda part, new: part[0].data_root == new[0].data_root)
    # Those that say nothing come last, so that they join what is told apart without them.
    folders.sort(key=lambda part: not _digests(part))
    parts: list[list[Run]] = []
    for folder in folders:
        _put(parts, folder, _are_one)
    return parts


def _put(
    parts: list[list[Run]], new: list[Run], are_one: Callable[[Sequence[Run], Sequence[Run]], bool]
) -> None:
    """Add runs to the first part with which they are one and nothing contradicts it, else as a part of their own."""
    part = next((part for part in parts if are_one(part, new) and not _contradict(part, new)), None)
    if part is None:
        parts.append(new)
    else:
        part.extend(new)


def _contradict(part: Sequence[Run], new: Sequence[Run]) -> bool:
    known = {(run.summary["seed"], run.examples) for run in part if run.examples}
    others = {(run.summary["seed"], run.examples) for run in new if run.examples}
    return any(seed == its and examples != digest for seed, examples in known for its, digest in others)


def _are_one(part: Sequence[Run], new: Sequence[Run]) -> bool:
    mine, its = _digests(part), _digests(new)
    return not its or bool(mine & its) or max(len(mine), len(its)) > 1


def _digests(runs: Sequence[Run]) -> set[str]:
    return {run.examples for run in runs if run.examples}
