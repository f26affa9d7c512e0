"""Pixel orders of clients that see the same images each in its own way (`partition=permuted`)."""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedfeat.data.partition.parts import ClientSplit, owners_of, pixel_permutation
from fedfeat.errors import ConfigError

if TYPE_CHECKING:
    from fedfeat.data.examples import Dataset


def in_order(x: Tensor, order: Tensor) -> Tensor:
    """Put the pixels of images (B, C, H, W) into an order (H * W,)."""
    return x.flatten(2)[:, :, order].view_as(x)


class ClientPixels:
    """The pixel permutations of all clients, and which client an example belongs to."""

    def __init__(self, dataset: "Dataset", split: ClientSplit, seed: int, device: torch.device) -> None:
        if len(dataset.input_shape) != 3:
            rule = f"not be permuted where the inputs of {dataset.name} are no images"
            raise ConfigError.rule("partition", rule, dataset.input_shape)
        num_pixels = math.prod(dataset.input_shape[1:])
        clients = range(split.train.num_clients)
        tables = np.stack([pixel_permutation(seed, client_id, num_pixels) for client_id in clients])
        owners = np.zeros(len(dataset.train), dtype=np.int64)
        for parts in (split.train, split.val):
            owners[parts.indices] = owners_of(parts)
        self._tables = torch.from_numpy(tables).to(device)
        self._owners = torch.from_numpy(owners).to(device)

    def of_client(self, x: Tensor, client_id: int) -> Tensor:
        """Permute a batch (B, C, H, W) as one client sees it."""
        return in_order(x, self._tables[client_id])

    def of_examples(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Permute training examples ``chosen``, (B,), each as its owner sees it; pooled data mix owners."""
        tables = self._tables[self._owners[chosen]].unsqueeze(1).expand(-1, x.shape[1], -1)
        return x.flatten(2).gather(2, tables).view_as(x)
