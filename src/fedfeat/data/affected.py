"""Clients of a run that are not like the others: those without the full network, those with fewer examples."""

import numpy as np

from fedfeat.seeding import numpy_generator


def weak_clients(seed: int, num_clients: int, fraction: float) -> frozenset[int]:
    """Draw the clients of a run that cannot run the full network; at least one can."""
    return _share(numpy_generator(seed, "weak clients"), num_clients, min(fraction, 1 - 1 / num_clients))


def reduced_clients(seed: int, num_clients: int, fraction: float) -> frozenset[int]:
    """Draw the clients of a run that have lost training examples."""
    return _share(numpy_generator(seed, "reduced clients"), num_clients, fraction)


def _share(generator: np.random.Generator, num_clients: int, fraction: float) -> frozenset[int]:
    """Draw round(fraction * num_clients) clients; a larger share holds every smaller one."""
    order = generator.permutation(num_clients)
    return frozenset(int(k) for k in order[: round(fraction * num_clients)])
