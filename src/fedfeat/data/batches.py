"""The batches of one local fit."""

import math
from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedfeat.errors import ConfigError
from fedfeat.seeding import derive_seed

if TYPE_CHECKING:
    from fedfeat.data.federated import FederatedData

PADDED = -100
"""Label of an example that is none; the mean cross-entropy of PyTorch leaves it out (its ``ignore_index``)."""


def cut(
    num_examples: int, batch_size: int | None, drop_singleton: bool = False, world_size: int = 1
) -> tuple[int, int]:
    """Give the size of a client's batches and how many of its examples an epoch uses.

    Args:
        num_examples: Training examples of the client.
        batch_size: See `federated.FederatedData.train_batches`.
        drop_singleton: Likewise.
        world_size: Likewise.
    """
    # A full batch of one example counts as a smaller last batch, so that drop_singleton sees it.
    size = max(num_examples, 2) if batch_size is None else batch_size
    tail = num_examples % size
    return size, num_examples - (tail if drop_singleton and tail < 2 * world_size else 0)


def epoch_orders(
    num_examples: int, kept: int, address: tuple[int, int, int], generator: torch.Generator | None = None
) -> Iterator[Tensor]:
    """Yield the order of a client's examples, epoch after epoch and without end: int64 (kept,), on the CPU.

    Args:
        num_examples: Training examples of the client.
        kept: How many of them an epoch uses.
        address: Seed, round and client.
        generator: What draws them, from the first one on; None: one of its own.
    """
    seed, round_idx, client_id = address
    generator = generator or torch.Generator()
    generator.manual_seed(derive_seed(seed, "batches", round_idx, client_id))
    while True:
        order = torch.randperm(num_examples, generator=generator)
        yield order if kept == num_examples else order[:kept]


class ClientBatches:
    """The batches of one local fit; every ``iter()`` is the next local epoch.

    The order comes from a CPU generator at the address (round, client), the augmentation from one on the
    device, so that drawing more augmentation numbers never changes which examples meet in a batch. The last
    batch may be smaller. Yields float32 ``(B, C, H, W)`` and int64 ``(B,)``.
    """

    def __init__(
        self,
        data: "FederatedData",
        indices: Tensor,
        address: tuple[int, int, int],
        batch_size: int | None,
        drop_singleton: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._data, self._address, self._rank, self._world_size = data, address, rank, world_size
        self._size, self._kept = cut(len(indices), batch_size, drop_singleton, world_size)
        self._indices = indices
        self._orders = epoch_orders(len(indices), self._kept, address)
        self._beside: Tensor | None = None

    @cached_property
    def augmentation(self) -> torch.Generator:
        """Source of the randomness of crops and flips."""
        seed, *turn = self._address
        # Ranks augment different examples, hence need different numbers; rank 0 is what one process draws.
        place = (*turn, self._rank) if self._rank else turn
        return torch.Generator(self._data.device).manual_seed(derive_seed(seed, "augmentation", *place))

    def __len__(self) -> int:
        """Give the number of batches per epoch."""
        return math.ceil(self._kept / self._size)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        """Yield the batches of the next epoch; its order is drawn when the first batch is."""
        data = self._data
        order = next(self._orders).to(data.device)
        if not len(order):
            return
        for batch in order.split(self._size):
            places = batch if self._world_size == 1 else self._part(batch)
            chosen = self._indices[places]
            x: Any = data.train_inputs(chosen, self.augmentation)
            yield (x if self._beside is None else (x, self._beside[places])), data.train_labels(chosen)

    def inputs(self) -> Iterator[Tensor]:
        """Yield all examples of the client once, without augmentation and in their own order."""
        for chosen in self._indices.split(self._size):
            yield self._data.plain_inputs(chosen)

    def beside(self, values: Tensor) -> "ClientBatches":
        """Give the same batches with a value beside each input: ``((inputs, values), labels)``.

        Args:
            values: One entry for each example of the client, (n_k, ...), in the order of `inputs`.
        """
        with_values = copy(self)
        with_values._beside = values
        return with_values

    def share(self, batch_idx: int) -> tuple[float, float]:
        """Say how many examples of a batch are this rank's, and what its mean loss weighs in the mean over all ranks.

        An example that several ranks take is shared by them.
        """
        size = min(self._size, self._kept - batch_idx * self._size)
        own: float = len(range(self._rank, size, self._world_size))
        if size < self._world_size:
            own = 1 / len(range(self._rank % size, self._world_size, size))
        return own, self._world_size * own / size

    def _part(self, batch: Tensor) -> Tensor:
        """Give this rank's part; where a batch has fewer examples than ranks, some are taken twice.

        A rank without an example would wait for the others forever.
        """
        share = batch[self._rank :: self._world_size]
        return share if len(share) else batch[self._rank % len(batch)].unsqueeze(0)


def too_few(least: int, num_clients: int, largest: int) -> ConfigError:
    """Make the refusal of clients none of which has a batch that a network with batch norm can train on.

    Args:
        least: Examples that one would need.
        num_clients: The clients.
        largest: Examples of the one with most.
    """
    return ConfigError(
        f"partition must give some client at least {least} training examples, for a network with batch norm cannot "
        f"train on fewer, but none of the {num_clients} clients has more than {largest}; a network with group norm can."
    )
