"""Clients of a run that are not like the others: those without the full network, those with fewer examples."""

from collections.abc import Collection

import numpy as np

from fedfeat.data.partition.parts import Parts, parts_of, share_of
from fedfeat.seeding import numpy_generator


def weak_clients(seed: int, num_clients: int, fraction: float) -> frozenset[int]:
    """Draw the clients of a run that cannot run the full network; at least one can."""
    return _share(numpy_generator(seed, "weak clients"), num_clients, min(fraction, 1 - 1 / num_clients))


def reduced_clients(seed: int, num_clients: int, fraction: float) -> frozenset[int]:
    """Draw the clients of a run that have lost training examples."""
    return _share(numpy_generator(seed, "reduced clients"), num_clients, fraction)


def reduced(parts: Parts, chosen: Collection[int], share: float, seed: int) -> Parts:
    """Leave chosen clients a random share of their examples, rounded down, and at least one of those they have.

    What is left to a client depends on share, seed and its number alone, and a larger share holds every smaller one.
    """
    kept = []
    for k in range(parts.num_clients):
        own = parts.of(k)
        if k in chosen:
            count = max(int(share_of(share, len(own))), 1)
            order = numpy_generator(seed, "reduced examples", k).permutation(len(own))
            own = own[np.sort(order[:count])]
        kept.append(own)
    return parts_of(np.concatenate(kept), np.array([len(own) for own in kept]))


def _share(generator: np.random.Generator, num_clients: int, fraction: float) -> frozenset[int]:
    """Draw round(fraction * num_clients) clients; a larger share holds every smaller one."""
    order = generator.permutation(num_clients)
    return frozenset(int(k) for k in order[: round(fraction * num_clients)])
