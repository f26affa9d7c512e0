"""Who takes part in a round: samplers of the cohort, pure functions of (seed, round)."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fedfeat.seeding import numpy_generator


class Sampler(Protocol):
    """Chooses the participants of a round."""

    def cohort(
        self, seed: int, round_idx: int, able: Sequence[int], size: int, num_examples: np.ndarray
    ) -> tuple[int, ...]:
        """Give the participants in increasing order of id.

        Args:
            seed: The experiment's seed.
            round_idx: The round, from 0.
            able: Clients that can take part.
            size: How many do.
            num_examples: Training examples of every client, (K,).
        """


class Uniform:
    """Distinct clients, each as likely as any other: what nearly all papers do."""

    def cohort(
        self, seed: int, round_idx: int, able: Sequence[int], size: int, num_examples: np.ndarray
    ) -> tuple[int, ...]:
        """Draw without replacement."""
        if size == len(able):
            return tuple(able)
        chosen = numpy_generator(seed, "cohort", round_idx).choice(len(able), size, replace=False)
        return tuple(sorted(able[int(i)] for i in chosen))


class BySize:
    """Distinct clients, drawn one after the other with probabilities in proportion to their training examples.

    The mean over such a cohort is already weighted by size once: ``algorithm.server.weighting=uniform`` goes with it
    (Li et al., "On the Convergence of FedAvg on Non-IID Data", 2020, scheme I, which draws with replacement).
    """

    def cohort(
        self, seed: int, round_idx: int, able: Sequence[int], size: int, num_examples: np.ndarray
    ) -> tuple[int, ...]:
        """Draw without replacement; clients without examples only where no others are left."""
        if size == len(able):
            return tuple(able)
        weights = np.maximum(num_examples[list(able)], 1e-9)
        draw = numpy_generator(seed, "cohort", round_idx)
        chosen = draw.choice(len(able), size, replace=False, p=weights / weights.sum())
        return tuple(sorted(able[int(i)] for i in chosen))


class RoundRobin:
    """Clients in turn, in an order that is shuffled once: after a pass over them all, each has had its turn."""

    def cohort(
        self, seed: int, round_idx: int, able: Sequence[int], size: int, num_examples: np.ndarray
    ) -> tuple[int, ...]:
        """Take the next ones in the order, which begins again after its end."""
        order = numpy_generator(seed, "cohort").permutation(len(able))
        places = np.arange(round_idx * size, (round_idx + 1) * size) % len(able)
        return tuple(sorted(able[int(i)] for i in order[places]))
