"""How the rounds of an experiment go."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedfeat.clients.tasks import Task
from fedfeat.data.batches import cut, too_few
from fedfeat.data.federated import FederatedData
from fedfeat.errors import ConfigError
from fedfeat.executors.base import Course
from fedfeat.features.diagnostics import AlignmentProbe
from fedfeat.rounds.samplers import Sampler, Uniform
from fedfeat.rounds.sampling import straggler_steps
from fedfeat.types import Kept, Setting


@dataclass(frozen=True)
class Plan:
    """How the rounds go.

    Attributes:
        seed: The experiment's seed.
        num_rounds: Rounds in all.
        num_clients: Clients that train.
        cohort_size: Participants of a round.
        local_epochs: Passes over a client's data per round; fractions are rounded to whole steps. None with steps.
        local_steps: Optimizer steps per round, or None.
        batch_size: Local batch size; None is the whole client.
        eval_every: Evaluate after every so many rounds, and after the last one.
        lr_factor: Factor of the learning rate in (round from 0, number of rounds).
        straggler_fraction: Share of each cohort that finishes only part of its work.
        straggler_least: Whole epochs that it finishes at least.
        drop_stragglers: Leave them out (FedAvg in FedProx's paper) instead of taking their partial work.
        skip_failed: Go on without a failed client instead of stopping.
        evaluate_local: Score the cohort's models right after their local fits, on their own test parts.
        final_epochs: Passes over its data that every client makes once more after the last round, for its score alone;
            None for no such fit.
        excluded: Clients that are never in a cohort, but evaluated.
        personal: Whether clients keep a part of the model or run networks of a pool, so that all of them are evaluated
            with their own.
        sampler: Who takes part in a round.
        probe: When and how the cohort's class preferences are compared, or None.
        drop_singleton: Whether a last batch of one example is dropped (batch norm).
        world_size: Processes that share one client's fit.
    """

    seed: int
    num_rounds: int
    num_clients: int
    cohort_size: int
    local_epochs: float | None
    local_steps: int | None
    batch_size: int | None
    eval_every: int
    lr_factor: Callable[[int, int], float]
    straggler_fraction: float = 0.0
    straggler_least: int = 1
    drop_stragglers: bool = False
    skip_failed: bool = False
    evaluate_local: bool = False
    final_epochs: float | None = None
    excluded: frozenset[int] = frozenset()
    personal: bool = False
    sampler: Sampler = field(default_factory=Uniform)
    probe: AlignmentProbe | None = None
    drop_singleton: bool = False
    world_size: int = 1

    @cached_property
    def able(self) -> tuple[int, ...]:
        """The clients that may be in a cohort."""
        return tuple(k for k in range(self.num_clients) if k not in self.excluded)

    def task(
        self,
        round_idx: int,
        client_id: int,
        num_steps: int,
        payload: Any,
        kept: Kept | None,
        evaluate: bool = False,
        probe: bool = False,
        final: bool = False,
    ) -> Task:
        """Make the work of one client in the round that follows ``round_idx`` rounds; the rest is that of `Task`.

        From the last round on, the learning rate is that of the last round.
        """
        factor = self.lr_factor(max(min(round_idx, self.num_rounds - 1), 0), self.num_rounds)
        return Task(client_id, round_idx, payload, kept, num_steps, factor, evaluate, probe, final)

    def setting(
        self, algorithm: str, keeps_optimizer: bool, data: FederatedData, averages_weights: bool = False
    ) -> Setting:
        """Give what the halves of a method may refuse, see `Setting`."""
        return Setting(
            algorithm=algorithm,
            num_rounds=self.num_rounds,
            num_clients=self.num_clients,
            cohort_size=self.cohort_size,
            local_epochs=self._least_epochs(data) if self.local_epochs is None else self.local_epochs,
            keeps_optimizer=keeps_optimizer,
            drops_stragglers=self.drop_stragglers and self.straggler_fraction > 0,
            augmented=data.augmented,
            sources=data.sources,
            permuted=data.permuted,
            averages_weights=averages_weights,
        )

    def _least_epochs(self, data: FederatedData) -> float:
        """Give the passes that the largest client makes over its data, where steps are counted."""
        largest = int(np.diff(data.split.train.offsets).max())
        return self.full_steps(largest) / self.steps_per_epoch(largest)

    def ends(self, round_idx: int) -> bool:
        """Whether ``round_idx`` rounds are all, and everyone trains once more."""
        return self.final_epochs is not None and round_idx == self.num_rounds

    def check_work(self, data: FederatedData) -> None:
        """Refuse a plan in which nobody trains, and data on which no client can make a step.

        Raises:
            ConfigError: All participants of a round are stragglers that are dropped, or batch norm drops every batch of
                every client, for it cannot train on one example.
        """
        if self.drop_stragglers and round(self.straggler_fraction * self.cohort_size) == self.cohort_size:
            rule = f"leave somebody of the {self.cohort_size} participants of a round, for stragglers are dropped"
            raise ConfigError.rule("scenario.straggler_fraction", rule, self.straggler_fraction)
        trains = {
            size: cut(size, self.batch_size, self.drop_singleton, self.world_size)[1] > 0
            for size in set(np.diff(data.split.train.offsets).tolist())
        }
        if not any(trains.values()):
            raise too_few(2 * self.world_size, self.num_clients, max(trains, default=0))

    def course(self, data: FederatedData) -> Course:
        """Give what an executor may choose by."""
        sizes, counts = np.unique(np.diff(data.split.train.offsets), return_counts=True)
        num_steps = float(np.average([self.full_steps(size) for size in sizes.tolist()], weights=counts))
        return Course(self.cohort_size, self.num_rounds, num_steps, data.largest_batch(self.batch_size))

    def steps_per_epoch(self, num_examples: int) -> int:
        """Optimizer steps of one pass over so many training examples."""
        size, kept = cut(num_examples, self.batch_size, self.drop_singleton, self.world_size)
        return max(math.ceil(kept / size), 1)

    def full_steps(self, num_examples: int) -> int:
        """Optimizer steps of the full work of a client with so many training examples."""
        if self.local_steps is not None:
            return self.local_steps
        return max(round((self.local_epochs or 1) * self.steps_per_epoch(num_examples)), 1)

    def turn_steps(self, round_idx: int, client_id: int, num_examples: int, straggles: bool) -> int:
        """Optimizer steps of a client's turn; 0 for a straggler that is left out.

        Args:
            round_idx: The round, from 0.
            client_id: The client.
            num_examples: Its training examples.
            straggles: Whether it finishes only part of its work.
        """
        num_steps = self.full_steps(num_examples)
        if not straggles:
            return num_steps
        if self.drop_stragglers:
            return 0
        per_epoch = self.steps_per_epoch(num_examples)
        return straggler_steps(self.seed, round_idx, client_id, num_steps, per_epoch, self.straggler_least)

    def final_steps(self, num_examples: int) -> int:
        """Optimizer steps of a client's fit after the last round."""
        return max(round((self.final_epochs or 0) * self.steps_per_epoch(num_examples)), 1)

    def evaluates(self, round_idx: int) -> bool:
        """Whether the model after ``round_idx`` rounds is evaluated."""
        return round_idx % self.eval_every == 0 or round_idx == self.num_rounds

    def probes(self, round_idx: int) -> bool:
        """Whether the cohort's models of round ``round_idx`` are compared; only evaluated rounds are."""
        probe = self.probe
        return probe is not None and self.evaluates(round_idx) and probe.measures(round_idx, self.num_rounds)
