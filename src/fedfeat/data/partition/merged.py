"""Data sets whose test set is chosen by a split instead of being given."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedfeat.data.examples import Examples
from fedfeat.data.partition.parts import ClientSplit, IndexTestParts, Parts

if TYPE_CHECKING:
    from fedfeat.data.examples import Dataset


def cut_anew(dataset: "Dataset", split: ClientSplit) -> tuple["Dataset", ClientSplit]:
    """Make the clients' test parts of a merged split the test set, and all other examples the training set.

    Examples keep their order, and channel moments stay those of the data set as it was loaded.

    Args:
        dataset: The data set.
        split: A split; one that is not merged comes back as it is, with its data set.

    Returns:
        The data set, and the split with indices into its two sets.
    """
    if not split.merged:
        return dataset, split
    assert isinstance(split.test, IndexTestParts)  # classes alone would not say which examples are held out
    pool = _joined(dataset.train, dataset.test)
    held_out = np.zeros(len(pool), dtype=bool)
    held_out[split.test.parts.indices] = True
    # The place of every example in the set that it is in.
    places = np.where(held_out, held_out.cumsum(), (~held_out).cumsum()) - 1

    def moved(parts: Parts) -> Parts:
        return parts._replace(indices=places[parts.indices])

    train, test = (pool.rows(np.flatnonzero(chosen)) for chosen in (~held_out, held_out))
    tests = IndexTestParts(moved(split.test.parts))
    anew = split._replace(train=moved(split.train), val=moved(split.val), test=tests, merged=False)
    return replace(dataset, train=train, test=test), anew


def _joined(first: Examples, second: Examples) -> Examples:
    """Lay two sets end to end, with the columns that both have."""
    common = first.columns.keys() & second.columns.keys()
    return Examples(
        torch.cat([first.inputs, second.inputs]),
        torch.cat([first.labels, second.labels]),
        {name: np.concatenate([first.columns[name], second.columns[name]]) for name in sorted(common)},
    )
