"""Who takes part in a round: samplers of the cohort, pure functions of (seed, round)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from fedfeat.errors import ConfigError
from fedfeat.seeding import numpy_generator


class Sampler(ABC):
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

        Raises:
            ConfigError: A sampler of one's own gives places that are none, or one of them twice.
        """
        if size == len(able):
            return tuple(able)
        places = [int(place) for place in self.places(seed, round_idx, size, num_examples[list(able)])]
        within = bool(places) and 0 <= min(places) <= max(places) < len(able)
        if not within or len({*places}) < len(places):
            rule = f"give distinct places from 0 to {len(able) - 1}"
            raise ConfigError.rule(f"the sampler {type(self).__name__}", rule, places)
        return tuple(sorted(able[place] for place in places))

    @abstractmethod
    def places(self, seed: int, round_idx: int, size: int, num_examples: np.ndarray) -> np.ndarray:
        """Give the places (size,) of the participants among those that can take part, whose examples are given."""


class Uniform(Sampler):
    """Distinct clients, each as likely as any other: what nearly all papers do."""

    def places(self, seed: int, round_idx: int, size: int, num_examples: np.ndarray) -> np.ndarray:
        """Draw without replacement."""
        return numpy_generator(seed, "cohort", round_idx).choice(len(num_examples), size, replace=False)


class BySize(Sampler):
    """Distinct clients, drawn one after the other with probabilities in proportion to their training examples.

    The mean over such a cohort is already weighted by size once: ``algorithm.server.weighting=uniform`` goes with it
    (Li et al., "On the Convergence of FedAvg on Non-IID Data", 2020, scheme I, which draws with replacement).
    """

    def places(self, seed: int, round_idx: int, size: int, num_examples: np.ndarray) -> np.ndarray:
        """Draw without replacement; clients without examples only where no others are left."""
        weights = np.maximum(num_examples, 1e-9)
        draw = numpy_generator(seed, "cohort", round_idx)
        return draw.choice(len(weights), size, replace=False, p=weights / weights.sum())


class RoundRobin(Sampler):
    """Clients in turn, in an order that is shuffled once: after a pass over them all, each has had its turn."""

    def places(self, seed: int, round_idx: int, size: int, num_examples: np.ndarray) -> np.ndarray:
        """Take the next ones in the order, which begins again after its end."""
        order = numpy_generator(seed, "cohort").permutation(len(num_examples))
        return order[np.arange(round_idx * size, (round_idx + 1) * size) % len(order)]
