"""A part of a data set with all classes alike, for runs in minutes."""

from dataclasses import replace
from typing import Annotated

import numpy as np

from fedfeat.config.conditions import integer
from fedfeat.data.examples import Dataset, Examples
from fedfeat.seeding import numpy_generator

SUBSET_SEED = 0
"""Fixes the order in which examples are taken: it belongs to the data set, not to the experiment."""
Limit = Annotated[int, integer(1)._replace(text="be an integer of at least 1 or null")] | None
"""At most so many examples."""


def limited(dataset: Dataset, num_train: Limit = None, num_test: Limit = None) -> Dataset:
    """Keep at most so many examples; channel moments stay those of the whole data set.

    Of every class equally many are kept, give or take one, until a class has no more. A smaller part lies within
    every larger one.

    Args:
        dataset: The data set.
        num_train: Training examples to keep; None keeps all.
        num_test: Test examples to keep; None keeps all.
    """
    train, test = _first(dataset.train, num_train, 0), _first(dataset.test, num_test, 1)
    return replace(dataset, train=train, test=test)


def _first(examples: Examples, size: int | None, split: int) -> Examples:
    if size is None or size >= len(examples):
        return examples
    labels = examples.labels.numpy()
    turns = np.empty(len(labels), dtype=np.int64)  # each example's place in the order of its class
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        order = numpy_generator(SUBSET_SEED, "subset", split, int(label)).permutation(members)
        turns[order] = np.arange(len(members))
    return examples.rows(np.sort(np.lexsort((labels, turns))[:size]))
