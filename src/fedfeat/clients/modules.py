"""Client halves by architecture: one of each, in which the clients that have it take turns."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch

from fedfeat.client import ClientModule
from fedfeat.clients.local_trainer import LocalTrainer
from fedfeat.seeding import derive_seed
from fedfeat.types import Networks

MAX_ARCHITECTURES = 32
"""With more the least recently used are built again at their next turn."""


def make_module(
    build_client: Callable[..., ClientModule],
    networks: Networks,
    key: Hashable,
    trainer: LocalTrainer,
    seed: int,
) -> ClientModule:
    """Make a client half around the network of a key.

    Args:
        build_client: Makes a client half.
        networks: Which network each client runs.
        key: The architecture.
        trainer: The Trainer of local fits.
        seed: The experiment's seed.
    """
    with torch.random.fork_rng(devices=[]):
        # What a method adds to the network has the same first weights in every process and architecture.
        torch.manual_seed(derive_seed(seed, "method init"))
        module = build_client(model=networks.build(key), channels_last=trainer.channels_last)
    if trainer.compile:
        module.model.compile()
    return module


class ModuleCache:
    """The client halves that were used last.

    Args:
        make: Makes the one of a key.
    """

    def __init__(self, make: Callable[[Hashable], ClientModule]) -> None:
        self._make = make
        self._kept: OrderedDict[Hashable, ClientModule] = OrderedDict()

    def get(self, key: Hashable) -> ClientModule:
        """Give the client half of a key."""
        if key not in self._kept:
            self._kept[key] = self._make(key)
        self._kept.move_to_end(key)
        if len(self._kept) > MAX_ARCHITECTURES:
            self._kept.popitem(last=False)
        return self._kept[key]

    def keys(self) -> list[Hashable]:
        """List the keys, the least recently used first."""
        return list(self._kept)
