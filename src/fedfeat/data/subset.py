"""A part of a data set with all classes alike, for runs in minutes."""

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch

from fedfeat.config.conditions import Condition, integer
from fedfeat.data.examples import Dataset, Examples
from fedfeat.errors import ConfigError
from fedfeat.seeding import numpy_generator

SUBSET_SEED = 0
"""Fixes the order in which examples are taken: it belongs to the data set, not to the experiment."""
LIMIT = Condition(integer(1).holds, "be an integer of at least 1 or null")
Limit = Annotated[int, LIMIT] | None
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
    train = _first(dataset.train, num_train, "num_train", 0)
    return replace(dataset, train=train, test=_first(dataset.test, num_test, "num_test", 1))


def _first(examples: Examples, size: int | None, key: str, split: int) -> Examples:
    if size is not None and not LIMIT.holds(size):
        raise ConfigError.rule(f"data.loader.{key}", LIMIT.text, size)
    if size is None or size >= len(examples):
        return examples
    labels = examples.labels.numpy()
    turns = np.empty(len(labels), dtype=np.int64)  # each example's place in the order of its class
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        turns[numpy_generator(SUBSET_SEED, "subset", split, int(label)).permutation(members)] = np.arange(
            len(members)
        )
    chosen = np.sort(np.lexsort((labels, turns))[:size])
    index = torch.from_numpy(chosen)
    columns = {name: column[chosen] for name, column in examples.columns.items()}
    return Examples(examples.inputs[index], examples.labels[index], columns)
