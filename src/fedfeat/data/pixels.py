"""Pixel orders of clients that see images each in its own way (`partition=permuted`).

A training example as a client sees it is an *entry*. The number of an entry says both, ``example * K + client``, so
that one example may be with several clients, and entries in ascending order are examples in ascending order. Where all
clients see alike, an entry is the number of its example.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfeat.data.partition.parts import ClientSplit, owners_of
from fedfeat.errors import ConfigError
from fedfeat.seeding import numpy_generator

if TYPE_CHECKING:
    from fedfeat.data.examples import Dataset


class Entries(NamedTuple):
    """Numbers of entries, in the places of the split's indices.

    Attributes:
        train: Those that are trained on.
        val: Those that are validated on.
    """

    train: np.ndarray
    val: np.ndarray

    def pooled(self) -> "Entries":
        """Give each entry once; one that some client trains on is no validation entry."""
        train = np.unique(self.train)
        return Entries(train, np.setdiff1d(self.val, train))


def in_order(x: Tensor, order: Tensor) -> Tensor:
    """Put the pixels of images (B, C, H, W) into an order (H * W,)."""
    return x.flatten(2)[:, :, order].view_as(x)


class SamePixels:
    """Pixels as they are, for everyone."""

    def entries(self, split: ClientSplit) -> Entries:
        """Give the entries of a split, each as the client that holds it sees it."""
        return Entries(split.train.indices, split.val.indices)

    def examples(self, entries: Any) -> Any:
        """Give the examples of entries, an array or a tensor."""
        return entries

    def of_client(self, x: Tensor, client_id: int | None) -> Tensor:
        """Permute a batch (B, C, H, W) as one client sees it, or as the server does."""
        return x

    def of_entries(self, x: Tensor, entries: Tensor) -> Tensor:
        """Permute the examples of entries (B,), each as its client sees it; pooled data mix clients."""
        return x


class ClientPixels(SamePixels):
    """The pixel permutation of every client."""

    def __init__(self, dataset: "Dataset", split: ClientSplit, seed: int, device: torch.device) -> None:
        if len(dataset.input_shape) != 3:
            rule = f"not be permuted where the inputs of {dataset.name} are no images"
            raise ConfigError.rule("partition", rule, dataset.input_shape)
        num_pixels = math.prod(dataset.input_shape[1:])
        self._num_clients = split.train.num_clients
        tables = [pixel_permutation(seed, client_id, num_pixels) for client_id in range(self._num_clients)]
        self._tables = torch.from_numpy(np.stack(tables)).to(device)
        server = pixel_permutation(seed, None, num_pixels) if split.server_order else np.arange(num_pixels)
        self._server = torch.from_numpy(server).to(device)

    def entries(self, split: ClientSplit) -> Entries:
        """See `SamePixels.entries`."""
        of = (parts.indices * self._num_clients + owners_of(parts) for parts in (split.train, split.val))
        return Entries(*of)

    def examples(self, entries: Any) -> Any:
        """See `SamePixels.examples`."""
        return entries // self._num_clients

    def of_client(self, x: Tensor, client_id: int | None) -> Tensor:
        """See `SamePixels.of_client`."""
        return in_order(x, self._server if client_id is None else self._tables[client_id])

    def of_entries(self, x: Tensor, entries: Tensor) -> Tensor:
        """See `SamePixels.of_entries`."""
        tables = self._tables[entries % self._num_clients].unsqueeze(1).expand(-1, x.shape[1], -1)
        return x.flatten(2).gather(2, tables).view_as(x)


def pixel_permutation(seed: int, client_id: int | None, num_pixels: int) -> np.ndarray:
    """Give the fixed order in which one client sees the pixels, int64 (num_pixels,), after FedFusion.

    None is the server, whose order is that of no client.
    """
    if client_id is None:
        return numpy_generator(seed, "pixels of the server").permutation(num_pixels)
    return numpy_generator(seed, "pixels", client_id).permutation(num_pixels)


def pixels_of(dataset: "Dataset", split: ClientSplit, seed: int, device: torch.device) -> SamePixels:
    """Give how the clients of a split see images."""
    return ClientPixels(dataset, split, seed, device) if split.permuted else SamePixels()
