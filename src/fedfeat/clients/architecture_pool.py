"""Federations whose clients run networks of unequal architectures, drawn from a pool."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedfeat.config.conditions import Count
from fedfeat.errors import ConfigError
from fedfeat.models.common_head import with_common_head
from fedfeat.models.freezing import freeze
from fedfeat.models.network import Network
from fedfeat.seeding import numpy_generator


@dataclass(frozen=True)
class ArchitecturePool:
    """Which of several networks each client runs.

    Attributes:
        models: Name to builder, called with ``input_shape`` and ``num_classes``.
        shares: Share of the clients per name, such as that of weak devices; None draws uniformly, one by one.
        names: The name of every client's network instead.
        cyclic: Whether clients take the networks in turn instead: client i the one at place i mod their number.
        weak: The name of the network of weak clients (``scenario.weak_fraction``), whatever else they would run.
        head_width: What the last layer of all of them and of the server's network reads, see
            `models.common_head.with_common_head`; so they have a layer that can be averaged. None: each has its own.
        weights: Name to a file of its initial weights, under the names of the network before it gets the common head.
        fresh: Name to parts that keep their initial weights whatever the file has for them.
        freeze: Name to parts that do not train (`models.freezing.freeze`).
    """

    models: Mapping[str, Callable[..., Network]]
    shares: Mapping[str, float] | None = None
    names: Sequence[str] | None = None
    cyclic: bool = False
    weak: str | None = None
    head_width: Count | None = None
    weights: Mapping[str, str] | None = None
    fresh: Mapping[str, Sequence[str]] | None = None
    freeze: Mapping[str, Sequence[str]] | None = None

    def __post_init__(self) -> None:
        used = {key: getattr(self, key) or () for key in ("shares", "names", "weights", "fresh", "freeze")}
        for key, names in {**used, "weak": () if self.weak is None else (self.weak,)}.items():
            for unknown in (name for name in names if name not in self.models):
                rule = f"name networks of the pool ({', '.join(self.models)})"
                raise ConfigError.rule(f"pool.{key}", rule, unknown, self.models)
        if self.cyclic and (self.shares is not None or self.names is not None):
            raise ConfigError.rule("pool.cyclic", "be false beside pool.shares or pool.names", True)
        if self.shares is None:
            return
        if not math.isclose(sum(self.shares.values()), 1.0, abs_tol=1e-6):
            raise ConfigError.rule("pool.shares", "add up to 1", dict(self.shares))
        if min(self.shares.values()) < 0:
            raise ConfigError.rule("pool.shares", "not be negative", dict(self.shares))

    def assign(self, num_clients: int, seed: int, weak: Collection[int] = ()) -> tuple[str, ...]:
        """Give the name of every client's network, with the experiment's seed; ``weak`` are the weak clients."""
        names = self._assigned(num_clients, seed)
        return tuple(self.weak if self.weak and k in weak else name for k, name in enumerate(names))

    def _assigned(self, num_clients: int, seed: int) -> Sequence[str]:
        if self.names is not None:
            if len(self.names) != num_clients:
                rule = f"have one name for each of the {num_clients} clients"
                raise ConfigError.rule("pool.names", rule, f"{len(self.names)} names")
            return self.names
        if self.cyclic:
            return [list(self.models)[k % len(self.models)] for k in range(num_clients)]
        if self.shares is None:
            draws = (numpy_generator(seed, "architecture", k) for k in range(num_clients))
            return [list(self.models)[draw.integers(len(self.models))] for draw in draws]
        counts = _largest_remainders(self.shares, num_clients)
        ordered = list(Counter(counts).elements())
        return [ordered[i] for i in numpy_generator(seed, "architecture").permutation(num_clients)]


class PooledNetworks:
    """The networks of a federation with a pool; a key is the name of an architecture.

    Args:
        pool: The networks.
        base: Makes the server's network.
        seeded: Calls a function under the common initial randomness.
        input_shape: Shape of one example.
        num_classes: Number of classes.
        num_clients: See `ArchitecturePool.assign`.
        seed: See there.
        weak: See there.
        frozen: Parts of the server's network that do not train.
    """

    def __init__(
        self,
        pool: ArchitecturePool,
        base: Callable[[], Network],
        seeded: Callable[[Callable[[], Network]], Network],
        input_shape: Sequence[int],
        num_classes: int,
        num_clients: int,
        seed: int,
        weak: Collection[int] = (),
        frozen: Sequence[str] = (),
    ) -> None:
        self._pool, self._base, self._seeded, self._frozen = pool, base, seeded, frozen
        self._inputs = {"input_shape": input_shape, "num_classes": num_classes}
        self.names = pool.assign(num_clients, seed, weak)

    def key(self, client_id: int, round_idx: int = 0) -> str:
        """Give the name of a client's network."""
        return self.names[client_id]

    def kinds(self, num_clients: int) -> list[int]:
        """Name a client of each architecture."""
        return list({self.names[k]: k for k in range(num_clients)}.values())

    def build(self, key: Hashable = None) -> Network:
        """Build a client's network, or for None the server's, with the common initial weights."""
        own = self._base if key is None else partial(self._pool.models[str(key)], **self._inputs)
        width = self._pool.head_width
        network = self._seeded(own if width is None else lambda: with_common_head(own(), width))
        if key is None:
            freeze(network, self._frozen, "model.freeze")
        else:
            freeze(network, (self._pool.freeze or {}).get(str(key), ()), f"pool.freeze.{key}")
        return network

    def describe(self) -> str:
        """Count the clients of each architecture, in one line."""
        counts = Counter(self.names)
        return "pool: " + ", ".join(f"{counts[name]} x {name}" for name in self._pool.models if counts[name])


def _largest_remainders(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Round shares of a total to counts that add up to it."""
    exact = np.array(list(shares.values())) * total
    counts = np.floor(exact + 1e-9).astype(int)
    for i in np.argsort(-(exact - counts), kind="stable")[: total - counts.sum()]:
        counts[i] += 1
    return dict(zip(shares, counts.tolist(), strict=True))
