"""How many clients a round asks, and how much of their work they finish; pure functions of (seed, round)."""

from fedfeat.data.partition.parts import share_of
from fedfeat.errors import ConfigError
from fedfeat.seeding import numpy_generator


def cohort_size(num_clients: int, size: int | None, fraction: float | None) -> int:
    """Number of participants: ``size``, or max(floor(fraction * num_clients), 1) (FedRep's public code).

    Raises:
        ConfigError: The size exceeds the number of clients.
    """
    if size is None:
        return max(int(share_of(1.0 if fraction is None else fraction, num_clients)), 1)
    if size > num_clients:
        rule = f"be at most the number of clients that take part ({num_clients})"
        raise ConfigError.rule("federation.cohort_size", rule, size)
    return size


def sample_stragglers(seed: int, round_idx: int, cohort: tuple[int, ...], fraction: float) -> frozenset[int]:
    """Draw the round's stragglers: round(fraction * cohort) clients (FedProx, section 5.2 of its paper)."""
    generator = numpy_generator(seed, "stragglers", round_idx)
    chosen = generator.choice(len(cohort), round(fraction * len(cohort)), replace=False)
    return frozenset(cohort[int(position)] for position in chosen)


def straggler_steps(
    seed: int, round_idx: int, client_id: int, num_steps: int, steps_per_epoch: int, least: int = 1
) -> int:
    """Steps a straggler finishes: uniform whole epochs in [least, E), or steps in [1, num_steps) if there are none."""
    generator = numpy_generator(seed, "work", round_idx, client_id)
    epochs = -(-num_steps // steps_per_epoch)
    if epochs > least:
        return int(generator.integers(least, epochs)) * steps_per_epoch
    return int(generator.integers(1, num_steps)) if num_steps > 1 else 1
