"""Clients that see images each with the pixels in an order of its own, whoever holds what (FedFusion)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedfeat.data.partition.inner import assign_inner, refuse_validation
from fedfeat.data.partition.parts import Parts, Population, TestParts
from fedfeat.data.partition.schemes import Iid, Scheme
from fedfeat.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Copies(Scheme):
    """Every client holds all examples; only within `Permuted`, without which all clients would be the same."""

    def assign(self, population: Population, rng: np.random.Generator) -> tuple[Parts, None]:
        """See `Scheme.assign`."""
        num_examples, num_clients = len(population.train_labels), population.num_clients
        indices = np.tile(np.arange(num_examples, dtype=np.int64), num_clients)
        return Parts(indices, np.arange(num_clients + 1, dtype=np.int64) * num_examples), None


@dataclass(frozen=True, kw_only=True)
class Permuted(Scheme):
    """Every client sees the pixels in a fixed order of its own, so an example may belong to several clients.

    Attributes:
        inner: Who holds which examples.
        global_order: What ``global/acc`` and ``global/loss`` are of: ``clients``, the mean over all clients' test
            examples, each in its client's order; or ``server``, the whole test set in a further order that no client
            has, as in thu-media/FedFusion.
    """

    inner: Scheme = Iid()  # noqa: RUF009 - a value
    global_order: Literal["clients", "server"] = "clients"
    permuted = True
    may_overlap = True

    def __post_init__(self) -> None:
        if self.inner.permuted:
            rule = "be who holds which examples, of which no client has an order of its own yet"
            raise ConfigError.rule("partition.inner", rule, type(self.inner).__name__)
        refuse_validation(self.inner)

    @property
    def merged(self) -> bool:
        """See `Scheme.merged`."""
        return self.inner.merged

    @property
    def server_order(self) -> bool:
        """See `Scheme.server_order`."""
        return self.global_order == "server"

    def assign(self, population: Population, rng: np.random.Generator) -> tuple[Parts, TestParts | None]:
        """See `Scheme.assign`."""
        return assign_inner(self.inner, population, rng)
