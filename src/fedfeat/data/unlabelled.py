"""Inputs without labels that a server shares with all clients."""

from typing import TYPE_CHECKING

import numpy as np

from fedfeat.errors import DataError
from fedfeat.seeding import numpy_generator

if TYPE_CHECKING:
    from fedfeat.data.partition.parts import ClientSplit
    from fedfeat.types import Source


def draw_unlabelled(
    split: "ClientSplit", source: "Source", size: int, seed: int, round_idx: int, num_public: int = 0
) -> np.ndarray:
    """Draw examples that a server shares in a round, at the address of the round: the same for everyone.

    Args:
        split: Who holds what.
        source: From where, see `types.Source`.
        size: How many; all there are where these are fewer.
        seed: The experiment's seed.
        round_idx: The round.
        num_public: Examples of the public data set.

    Returns:
        Indices into the test set for ``test_unlabelled``, the public data set for ``public``, else into the training
        set, (m,).

    Raises:
        DataError: The source is empty.
    """
    if source == "public":
        pool = np.arange(num_public)
    elif source == "test_unlabelled":
        clients = range(len(split.test.sizes()))
        pool = np.unique(np.concatenate([split.test.of(k) for k in clients]))
    else:
        part = {"train_pool": split.train, "heldout": split.val}[source]
        pool = np.unique(part.indices)
    if not len(pool):
        raise DataError(
            f"The source {source!r} of inputs that are shared must hold examples, but it is empty."
        )
    return numpy_generator(seed, "unlabelled", round_idx).permutation(pool)[:size]
