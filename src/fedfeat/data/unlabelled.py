"""Examples that are drawn for everyone: inputs that a server shares, images of each class for measurements."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedfeat.errors import DataError
from fedfeat.seeding import numpy_generator

if TYPE_CHECKING:
    from fedfeat.data.federated import FederatedData
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


def images_by_class(
    data: "FederatedData", count: int, seed: int, client_id: int | None = None
) -> list[Tensor]:
    """Draw up to ``count`` training examples of each class, as the network reads them without augmentation.

    Where clients see the pixels each in an order of its own, they are in that of a client that is named; else each is
    in that of one who holds it.

    Returns:
        For each class float32 ``(count, C, H, W)``, the same at every call.
    """
    draw = numpy_generator(seed, "images by class")
    alike = not data.permuted or client_id is None
    # Of one client's view, each example once, however many hold it.
    mine = np.unique(data.entries.train if alike else data.examples_of(data.entries.train))
    examples = data.examples_of(mine) if alike else mine
    labels = data.dataset.train.labels.cpu().numpy()[examples]
    drawn = (draw.permutation(mine[labels == label])[:count] for label in range(data.dataset.num_classes))
    chosen = [torch.as_tensor(own, device=data.device) for own in drawn]
    if alike:
        return [data.plain_inputs(entries) for entries in chosen]
    # What clients see in orders of their own is never cached features, so these are the inputs.
    raw = data.dataset.train.inputs
    return [data.plain(raw[own.to(raw.device)].to(data.device), client_id) for own in chosen]
