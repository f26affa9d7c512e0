"""What is counted in the course of a run."""

from dataclasses import dataclass, field

from fedfeat.features.preference import Preferences
from fedfeat.server import alone
from fedfeat.types import Update

COUNTERS = (
    *("comm/up_bytes", "comm/down_bytes", "comm/total_bytes", "compute/examples", "compute/flops"),
    *("time/fit_s", "time/aggregate_s", "time/evaluate_s", "time/total_s"),
)
"""Cumulative bytes, examples, FLOPs and seconds."""


class Meter:
    """Takes the FLOPs that a server half says it has spent, until they are counted."""

    def __init__(self) -> None:
        self._flops = 0.0

    def spend(self, flops: float) -> None:
        """Add FLOPs."""
        self._flops += flops

    def drained(self) -> float:
        """Give what was added since the last call."""
        flops, self._flops = self._flops, 0.0
        return flops


@dataclass
class Tally:
    """One round's counts, and the counters that go on from round to round.

    Attributes:
        counters: See `COUNTERS`; changed in place.
        turns: Metrics of the round's fits, by client.
        preferences: Class preferences of the clients' models where they were taken.
    """

    counters: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0.0))
    turns: dict[int, dict[str, float]] = field(default_factory=dict)
    preferences: dict[int, Preferences] = field(default_factory=dict)

    def sent(self, num_bytes: int) -> None:
        """Count bytes from the server to a client."""
        self.counters["comm/down_bytes"] += num_bytes

    def received(self, num_bytes: int) -> None:
        """Count bytes from a client to the server."""
        self.counters["comm/up_bytes"] += num_bytes

    def computed(self, flops: float, num_examples: float = 0.0) -> None:
        """Count FLOPs and the training examples that they were spent on."""
        self.counters["compute/flops"] += flops
        self.counters["compute/examples"] += num_examples

    def spent(self, what: str, seconds: float) -> None:
        """Count the time of ``fit``, ``aggregate``, ``evaluate`` or ``total``."""
        self.counters[f"time/{what}_s"] += seconds

    def note(self, update: Update) -> None:
        """Take note of a fit that has succeeded."""
        self.computed(update.metrics["flops"], update.metrics["examples"])
        self.turns[update.client_id] = update.metrics
        if update.preferences is not None:
            self.preferences[update.client_id] = alone(update.preferences)

    def closed(self) -> dict[str, float]:
        """Give the counters of a round whose messages have all been counted."""
        self.counters["comm/total_bytes"] = self.counters["comm/up_bytes"] + self.counters["comm/down_bytes"]
        return self.counters
