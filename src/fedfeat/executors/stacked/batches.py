"""The batches of many local fits side by side, step by step."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from fedfeat.data.batches import PADDED, cut, epoch_orders
from fedfeat.data.federated import FederatedData


class StackedBatches:
    """For every step the batches of all clients that still have one: exactly those of `ClientBatches`.

    In every phase clients have falling numbers of steps, so that those of a step are the first ones. Yields float32
    ``(K, B, C, H, W)`` and int64 ``(K, B)``; where a client's batch is smaller than another's, rows labelled `PADDED`
    follow.

    Args:
        data: The federation's data.
        clients: The clients.
        phases: Optimizer steps of each in each phase of its fit, (K, P), falling.
        address: Seed and round.
        batch_size: Examples per batch; None is the full data of the client.
        drop_singleton: See `FederatedData.train_batches`.
        one_shape: Whether every step has all clients and as many rows as the largest batch of all, for a program that
            is made for one shape: a client without a batch has rows labelled `PADDED` only.

    Attributes:
        sizes: Examples of each client's batches, (steps, K), 0 after its last one of a phase.
        ends: The step with which each phase ends.
    """

    def __init__(
        self,
        data: FederatedData,
        clients: Sequence[int],
        phases: Sequence[Sequence[int]],
        address: tuple[int, int],
        batch_size: int | None,
        drop_singleton: bool = False,
        one_shape: bool = False,
    ) -> None:
        self._data = data
        chosen = _examples(data, clients, np.asarray(phases), address, batch_size, drop_singleton)
        self.sizes = (chosen >= 0).sum(2)
        self.ends = np.asarray(phases).max(0).cumsum().tolist()
        num_batches, count, width = chosen.shape
        own = zip((self.sizes > 0).sum(1).tolist(), self.sizes.max(1).tolist(), strict=True)
        self._shapes = [(count, width)] * num_batches if one_shape else list(own)
        # One for all steps, and each step's numbers side by side.
        self._chosen = torch.from_numpy(chosen).to(data.device)
        self._whole = bool((chosen >= 0).all())
        batches = [data.train_batches(k, *address, batch_size) for k in clients] if data.augmented else []
        self._augmentations = [one.augmentation for one in batches]

    def __len__(self) -> int:
        """Give the number of steps."""
        return len(self._shapes)

    def seen(self) -> list[list[int]]:
        """Give the examples that each client sees in each phase, (K, P)."""
        parts = np.split(self.sizes, self.ends[:-1])
        return np.stack([part.sum(0) for part in parts], 1).tolist()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of every step."""
        for step, (count, width) in enumerate(self._shapes):
            sizes, chosen = self.sizes[step, :count], self._chosen[step, :count, :width]
            if self._whole:
                yield self._inputs(chosen, sizes), self._data.train_labels(chosen)
            else:
                filled = chosen.clamp(min=0)
                labels = self._data.train_labels(filled).masked_fill(chosen < 0, PADDED)
                yield self._inputs(filled, sizes), labels

    def _inputs(self, chosen: Tensor, sizes: np.ndarray) -> Tensor:
        if not self._augmentations:
            return self._data.plain_inputs(chosen.flatten()).unflatten(0, chosen.shape)
        parts = [
            self._data.train_inputs(mine[:size], generator)
            for mine, size, generator in zip(chosen, sizes.tolist(), self._augmentations, strict=False)
        ]
        inputs = parts[0].new_zeros(*chosen.shape, *parts[0].shape[1:])
        for row, part in zip(inputs, parts, strict=True):
            row[: len(part)] = part
        return inputs


def _examples(
    data: FederatedData,
    clients: Sequence[int],
    phases: np.ndarray,
    address: tuple[int, int],
    batch_size: int | None,
    drop_singleton: bool,
) -> np.ndarray:
    """Give the entry (`data.pixels`) at each place of each batch, int64 (steps, K, B), and -1 where there is none."""
    seed, round_idx = address
    offsets, entries = data.split.train.offsets, data.entries.train
    counts = [data.num_examples(k) for k in clients]
    size, kept = np.array([cut(count, batch_size, drop_singleton) for count in counts]).T
    num_steps, per_epoch = phases.sum(1), -(-kept // size)
    epochs = -(-num_steps // per_epoch)
    generator = torch.Generator()  # one for all, for making one takes as long as an order
    orders = [
        order
        for k, count, used, num in zip(clients, counts, kept.tolist(), epochs.tolist(), strict=True)
        for order in islice(epoch_orders(count, used, (seed, round_idx, k), generator), num)
    ]
    # One row for each client's epoch, then one for each example in it.
    who = np.repeat(np.arange(len(clients)), epochs)
    epoch = _count_up(epochs)
    lengths = kept[who]
    who, epoch, place = np.repeat(who, lengths), np.repeat(epoch, lengths), _count_up(lengths)
    step = epoch * per_epoch[who] + place // size[who]
    entry = entries[offsets[np.asarray(clients)][who] + torch.cat(orders).numpy()]
    done = step < num_steps[who]
    who, step, place, entry = who[done], step[done], (place % size[who])[done], entry[done]
    table = np.full((phases.max(0).sum(), len(clients), min(size.max(), kept.max())), -1, dtype=np.int64)
    table[_columns(phases, who, step), who, place] = entry
    return table


def _columns(phases: np.ndarray, who: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Give the column of each client's step: those of a phase begin after everyone's of the phase before."""
    ends = phases.cumsum(1)
    phase = (step[:, None] >= ends[who]).sum(1)
    begin_own, begin_all = ends - phases, phases.max(0).cumsum() - phases.max(0)
    return step - begin_own[who, phase] + begin_all[phase]


def _count_up(lengths: np.ndarray) -> np.ndarray:
    """Give 0, 1, ... for each of the lengths, one after the other: (2, 3) gives 0 1 0 1 2."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
