"""Inputs without labels that a server shares with all clients."""

from typing import TYPE_CHECKING

import numpy as np

from fedfeat.errors import ConfigError
from fedfeat.seeding import numpy_generator

if TYPE_CHECKING:
    from fedfeat.data.partition.parts import ClientSplit
    from fedfeat.types import Survey


def draw_unlabelled(split: "ClientSplit", survey: "Survey", seed: int, round_idx: int) -> np.ndarray:
    """Draw the examples of a round's survey, at the address of the round: the same for everyone.

    Args:
        split: Who holds what.
        survey: How many, and from where: ``train_pool``, all clients' training examples; ``heldout``, their validation
            examples; or ``test_unlabelled``, their test parts. All there are where these are fewer.
        seed: The experiment's seed.
        round_idx: The round.

    Returns:
        Indices into the test set for ``test_unlabelled``, else into the training set, (m,).

    Raises:
        ConfigError: The source is empty.
    """
    if survey.source == "test_unlabelled":
        clients = range(len(split.test.sizes()))
        pool = np.unique(np.concatenate([split.test.of(k) for k in clients]))
    else:
        part = {"train_pool": split.train, "heldout": split.val}[survey.source]
        pool = np.unique(part.indices)
    if not len(pool):
        rule = "name examples that exist; heldout needs partition.val_fraction > 0"
        raise ConfigError.rule("algorithm.server.rad_source", rule, survey.source)
    return numpy_generator(seed, "unlabelled", round_idx).permutation(pool)[: survey.size]
