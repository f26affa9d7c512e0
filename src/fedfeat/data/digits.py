"""scikit-learn's bundled handwritten digits: 1,797 real images of 1x8x8, without a download."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedfeat.data.examples import Dataset, Examples, channel_moments
from fedfeat.data.subset import Limit, limited
from fedfeat.seeding import numpy_generator

SPLIT_SEED = 0
"""Fixes the train/test split for good: it belongs to the data set, not to the experiment."""

TEST_FRACTION = 0.2

MAX_GREY = 16
"""Grey values of the UCI file run from 0 to 16."""


def digits(num_train: Limit = None, num_test: Limit = None) -> Dataset:
    """Load the digits with a fixed split that holds a fifth of every class for testing.

    Args:
        num_train: At most so many training examples, see `subset.limited`.
        num_test: At most so many test examples.
    """
    table = _table()
    labels = table[:, -1].astype(np.int64)
    images = table[:, :-1].reshape(-1, 8, 8)
    # The channel's stride is 1 so, and oneDNN takes the images as channels-last: other bits than with a stride of 64.
    grey = np.rint(images * (255 / MAX_GREY)).astype(np.uint8)[:, None]  # (N, 1, 8, 8)
    test = _stratified_mask(labels, TEST_FRACTION)
    splits = [
        Examples(torch.from_numpy(grey[mask]), torch.from_numpy(labels[mask])) for mask in (~test, test)
    ]
    mean, std = channel_moments(splits[0].inputs)
    classes = tuple(map(str, range(10)))
    return limited(Dataset("digits", splits[0], splits[1], classes, mean, std), num_train, num_test)


def _table() -> np.ndarray:
    """Give the rows of the file, 64 grey values and the digit.

    `sklearn.datasets.load_digits` reads it as well, but its module imports pandas and more for a third of a second.
    """
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    return np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")


def _stratified_mask(labels: np.ndarray, fraction: float) -> np.ndarray:
    """Mark a fixed random fraction of every class, ``(N,)`` bool."""
    mask = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        order = numpy_generator(SPLIT_SEED, "digits/test", int(label)).permutation(members)
        mask[order[: round(len(members) * fraction)]] = True
    return mask
