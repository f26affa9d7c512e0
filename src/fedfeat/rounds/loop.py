"""The round loop, the only one: sample, broadcast, fit, aggregate, evaluate, yield."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedfeat.clients.tasks import Task, Turns
from fedfeat.data.federated import FederatedData
from fedfeat.executors.base import Executor, survivor
from fedfeat.features.diagnostics import align
from fedfeat.rounds.evaluation import (
    Evaluation,
    client_rows,
    evaluate_further,
    evaluate_global,
    evaluate_validation,
    own_metrics,
    summarise_observed,
    turn_metrics,
)
from fedfeat.rounds.exchange import aggregated, broadcast
from fedfeat.rounds.own_models import own_scores
from fedfeat.rounds.plan import Plan
from fedfeat.rounds.sampling import sample_stragglers
from fedfeat.rounds.survey import sent, surveyed
from fedfeat.rounds.tally import COUNTERS, Meter, Tally
from fedfeat.runs.client_store import ClientStore
from fedfeat.runs.records import RoundRecord
from fedfeat.server import Server
from fedfeat.tree import ByteCounter, num_bytes
from fedfeat.types import Update


class Progress(NamedTuple):
    """Where a run stands: everything a restart needs beside the clients' memories.

    Attributes:
        round_idx: Finished rounds.
        state: The server's state.
        counters: Cumulative bytes, examples, FLOPs and seconds.
    """

    round_idx: int
    state: Any
    counters: dict[str, float]


def first_progress(state: Any, spent: Mapping[str, float] | None = None) -> Progress:
    """Progress before the first round; ``spent`` are counters of what came before it."""
    return Progress(0, state, dict.fromkeys(COUNTERS, 0.0) | dict(spent or {}))


def run_rounds(
    plan: Plan,
    server: Server,
    executor: Executor,
    data: FederatedData,
    store: ClientStore,
    progress: Progress,
    meter: Meter | None = None,
) -> Iterator[tuple[Progress, RoundRecord]]:
    """Run the rounds after ``progress``, yielding where the run stands and what happened.

    A fresh run first yields the evaluated initial model as round 0.

    Args:
        plan: How the rounds go.
        server: The server half, after its `setup`.
        executor: Where clients' turns run.
        data: The federation's data.
        store: What clients keep.
        progress: Where the run stands.
        meter: What the server half says it has spent.

    Raises:
        ClientError: A client failed and the plan does not skip failures.
    """
    loop = _Loop(plan, server, executor, data, store, meter or Meter())
    if progress.round_idx == 0:
        start, tally = time.perf_counter(), Tally(dict(progress.counters))
        found = loop.evaluate(progress.state, 0, tally)
        tally.spent("total", time.perf_counter() - start)
        progress = progress._replace(counters=tally.counters)
        metrics = tally.counters | found.metrics
        yield progress, RoundRecord(0, (), metrics, True, found.rows, observed=found.observed)
    while progress.round_idx < plan.num_rounds:
        progress, record = loop.one_round(progress)
        yield progress, record


class _Loop:
    def __init__(
        self,
        plan: Plan,
        server: Server,
        executor: Executor,
        data: FederatedData,
        store: ClientStore,
        meter: Meter,
    ) -> None:
        self.plan, self.server, self.executor, self.data, self.store = plan, server, executor, data, store
        self.meter = meter
        self.num_examples = data.class_counts.sum(axis=1)
        self.everyone = range(plan.num_clients)

    def one_round(self, progress: Progress) -> tuple[Progress, RoundRecord]:
        start = time.perf_counter()
        plan, round_idx = self.plan, progress.round_idx
        tally = Tally(dict(progress.counters))
        cohort = plan.sampler.cohort(plan.seed, round_idx, plan.able, plan.cohort_size, self.num_examples)
        state = self._surveyed(progress.state, round_idx, cohort, tally)
        before = tally.counters["time/fit_s"]
        updates = self._updates(round_idx, self._turns(state, round_idx, cohort, tally), tally)
        state = aggregated(self.server, state, updates)
        for _ in updates:  # everyone trains, whatever the server half makes of it
            pass
        tally.computed(self.meter.drained())
        tally.spent("aggregate", time.perf_counter() - start - tally.counters["time/fit_s"] + before)
        metrics = turn_metrics(tally.turns) | {"clients/failed": float(len(cohort) - len(tally.turns))}
        evaluated = plan.evaluates(round_idx + 1)
        # The evaluation's own time is part of the total, so the clock is read after it.
        found = self.evaluate(state, round_idx + 1, tally) if evaluated else Evaluation()
        alignment = align(tally.preferences, plan.probe.pref_neg) if plan.probe else None
        metrics |= found.metrics | (alignment.metrics if alignment else {})
        tally.spent("total", time.perf_counter() - start)
        counters = tally.closed()
        metrics = {**counters, **metrics}
        record = RoundRecord(round_idx + 1, cohort, metrics, evaluated, found.rows, alignment, found.observed)
        return Progress(round_idx + 1, state, counters), record

    def _surveyed(self, state: Any, round_idx: int, cohort: tuple[int, ...], tally: Tally) -> Any:
        where = self.plan, self.server, self.executor, self.data, self.store
        return surveyed(*where, state, round_idx, cohort, tally)

    def _turns(self, state: Any, round_idx: int, cohort: tuple[int, ...], tally: Tally) -> Turns:
        plan = self.plan
        stragglers = sample_stragglers(plan.seed, round_idx, cohort, plan.straggler_fraction)
        evaluate = plan.evaluate_local and plan.evaluates(round_idx + 1)
        num_steps = {
            k: plan.turn_steps(round_idx, k, self.data.num_examples(k), k in stragglers) for k in cohort
        }
        probe = plan.probes(round_idx + 1)
        bytes_of = ByteCounter()

        def make(client_id: int) -> Task:
            payload = sent(self.server, state, client_id, tally, bytes_of)
            kept = self.store.get(client_id)
            return plan.task(round_idx, client_id, num_steps[client_id], payload, kept, evaluate, probe)

        for left_out in (k for k in cohort if not num_steps[k]):
            sent(self.server, state, left_out, tally, bytes_of)
        costs = {k: float(steps) for k, steps in num_steps.items() if steps}
        return Turns(list(costs), make, list(costs.values()))

    def _updates(self, round_idx: int, waiting: Turns, tally: Tally) -> Iterator[Update]:
        results = self.executor.map("fit", waiting)
        while True:
            start = time.perf_counter()
            found = next(results, None)
            tally.spent("fit", time.perf_counter() - start)
            if found is None:
                return
            update = survivor(found, self.plan.skip_failed)
            if update is None:
                continue
            tally.received(num_bytes(update.payload))
            tally.note(update)
            if update.kept is not None:
                self.store.put(update.client_id, round_idx + 1, update.kept)
            yield update

    def evaluate(self, state: Any, round_idx: int, tally: Tally) -> Evaluation:
        start = time.perf_counter()
        metrics, observed = dict[str, float](), dict[str, tuple[float, ...]]()
        scores = {"global": {}, "personal": {}, "local": tally.turns, "final": {}}
        payload, where = self.server.global_payload(state), (self.executor, self.data)
        if payload is not None:
            metrics, scores["global"] = evaluate_global(*where, payload, self.num_examples)
            if self.data.num_val:
                metrics |= evaluate_validation(self.executor, payload)
            observed = {name: tuple(v.tolist()) for name, v in self.executor.observe(payload).items()}
            metrics |= summarise_observed(observed)
        metrics |= evaluate_further(*where, self.server.further_payloads(state), self.num_examples)
        if self.plan.personal:
            scores["personal"] = self._own_scores(state, round_idx, self.everyone)
        if self.plan.ends(round_idx):
            scores["final"] = self._final_scores(state)
        metrics |= own_metrics(scores, self.num_examples)
        rows = client_rows(scores, self.num_examples)
        tally.spent("evaluate", time.perf_counter() - start)
        return Evaluation(metrics, rows, observed)

    def _own_scores(self, state: Any, round_idx: int, clients: Sequence[int]) -> dict[int, dict[str, float]]:
        return own_scores(self.server, self.executor, self.data, self.store, state, clients, round_idx)

    def _final_scores(self, state: Any) -> dict[int, dict[str, float]]:
        """Score every client after one more fit from what it would receive; nothing of it is kept or counted."""
        plan = self.plan
        state = self._surveyed(state, plan.num_rounds, plan.able, Tally())
        self.meter.drained()
        num_steps = {k: plan.final_steps(self.data.num_examples(k)) for k in plan.able}

        def make(client_id: int) -> Task:
            payload, kept = broadcast(self.server, state, client_id), self.store.get(client_id)
            steps = num_steps[client_id]
            return plan.task(plan.num_rounds, client_id, steps, payload, kept, evaluate=True, final=True)

        waiting = Turns(plan.able, make, [float(steps) for steps in num_steps.values()])
        updates = (survivor(result, plan.skip_failed) for result in self.executor.map("fit", waiting))
        found = {update.client_id: update.metrics for update in updates if update is not None}
        return found | self._own_scores(state, plan.num_rounds, sorted(plan.excluded))
