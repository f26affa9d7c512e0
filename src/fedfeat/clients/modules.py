"""Client modules, one per architecture, in which the clients take turns."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from fedfeat.clients.turns import adapt, evaluating, make_module

if TYPE_CHECKING:
    from fedfeat.client import ClientModule
    from fedfeat.clients.local_trainer import LocalTrainer
    from fedfeat.data.federated import FederatedData
    from fedfeat.types import Networks

MAX_ARCHITECTURES = 32
"""With more the least recently used are built again at their next turn."""


class ModulesOfClients:
    """The module of every architecture that clients run.

    Args:
        data: The federation's data.
        networks: Which network each client runs.
        build_client: Makes the client half around a network.
        trainer: The Trainer of local fits.
        seed: The experiment's seed.

    Attributes:
        module: That of the server's network.
    """

    def __init__(
        self,
        data: FederatedData,
        networks: Networks,
        build_client: Callable[..., ClientModule],
        trainer: LocalTrainer,
        seed: int,
    ) -> None:
        self.data, self.networks, self.trainer = data, networks, trainer
        self._build_client, self._seed = build_client, seed
        self._made = lru_cache(MAX_ARCHITECTURES)(self._make)
        self.module = self._make(None)

    def _make(self, key: Hashable) -> ClientModule:
        module = make_module(self._build_client, self.networks, key, self.trainer, self._seed)
        module.plain = self.data.plain
        return module

    def module_of(self, client_id: int, round_idx: int = 0) -> ClientModule:
        """Give the module of a client's architecture in a round, which reads inputs as this client does."""
        key = self.networks.key(client_id, round_idx)
        module = self.module if key is None else self._made(key)
        module.plain = partial(self.data.plain, client_id=client_id)
        return module

    def kinds(self) -> list[ClientModule]:
        """Modules of all kinds of networks; what one of them refuses is then refused at the start."""
        clients = self.networks.kinds(self.data.num_clients)
        return [self.module_of(client_id) for client_id in clients] or [self.module]

    def evaluating(self, module: ClientModule) -> AbstractContextManager[None]:
        """Have a module on the device in eval mode, in the precision of the fits."""
        return evaluating(module, self.data.device, self.trainer)

    def adapt(self, module: ClientModule, client_id: int) -> None:
        """Have a module make the client's own model by its data, where the method does so."""
        adapt(module, client_id, lambda: self.data, self.trainer, self._seed)
