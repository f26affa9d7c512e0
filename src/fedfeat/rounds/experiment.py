"""One run from first to last: resume, rounds, loggers, checkpoints, summary."""

import logging
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from fedfeat import tree
from fedfeat.config.objective import AUTO, will_come
from fedfeat.data.federated import FederatedData
from fedfeat.errors import CheckpointError, ClientError, ConfigError
from fedfeat.executors.base import Executor
from fedfeat.loggers.base import RoundLogger, RunInfo
from fedfeat.loggers.csv_logger import CsvLogger
from fedfeat.rounds.finite import FiniteWatch
from fedfeat.rounds.history import History, settle_tables
from fedfeat.rounds.loop import Progress, first_progress, run_rounds
from fedfeat.rounds.plan import Plan
from fedfeat.rounds.signals import Stopping
from fedfeat.rounds.site import federation_of, site_of
from fedfeat.rounds.tally import Meter
from fedfeat.runs.checkpoint import Checkpoint, CheckpointFolder
from fedfeat.runs.client_store import ClientStore
from fedfeat.runs.feature_figures import draw_encodings
from fedfeat.runs.machine import machine
from fedfeat.runs.provenance import versions
from fedfeat.runs.records import RoundRecord
from fedfeat.server import Server

_log = logging.getLogger("fedfeat")


@dataclass
class Experiment:
    """Everything a run needs, built: its parts, for which their classes speak, and what only the run itself knows.

    Attributes:
        config_sha256: Digest of what determines the numbers.
        algorithm: Name of the method.
        checkpoint_every: Rounds between checkpoints.
        targets: Accuracies whose cost is reported.
        target_metric: The metric that is to reach them; None is that of `config.objective.judged_by`.
        stop_at: The run ends after the first evaluated round in which that metric is at least this; None: never early.
        meter: What the server half says it has spent.
        spent: Counters of what came before the first round, by name (``structure.depth=auto``).
        objective: The metric whose number the run gives to a sweep's optimizer; ``auto`` is chosen at the end.
        is_primary: Whether this process writes; the others only lend their device to the fits (``ddp``).
        repair: Whether rows that tables have lost are put in again as far as checkpoints know them, see `history`.
    """

    info: RunInfo
    config_sha256: str
    algorithm: str
    plan: Plan
    server: Server
    executor: Executor
    data: FederatedData
    store: ClientStore
    checkpoints: CheckpointFolder
    loggers: Sequence[RoundLogger]
    checkpoint_every: int
    targets: Sequence[float]
    target_metric: str | None = None
    stop_at: float | None = None
    objective: str = AUTO
    is_primary: bool = True
    repair: bool = False
    meter: Meter = field(default_factory=Meter)
    spent: Mapping[str, float] = field(default_factory=dict)

    def run(self, stack: ExitStack) -> dict[str, Any]:
        """Run what is left of the rounds and give the summary; ``stack`` closes the executor and the loggers."""
        course = self.records(stack)
        while True:
            try:
                next(course)
            except StopIteration as end:
                return end.value

    def records(self, stack: ExitStack) -> Generator[RoundRecord, None, dict[str, Any]]:
        """Run what is left of the rounds, yielding each record when it is logged and saved; returns the summary.

        Args:
            stack: Closes the executor and the loggers.
        """
        stack.callback(self.executor.close)
        progress, kept = self.begin()
        began = time.perf_counter() - kept.seconds
        resumed = progress.round_idx or None
        if resumed is not None and any(isinstance(logger, CsvLogger) for logger in self.loggers):
            run_dir, plan = self.info.run_dir, self.plan
            settle_tables(run_dir, resumed, kept, plan, self.checkpoints, self.repair)
        for logger in self.loggers:
            logger.start(replace(self.info, resumed_round=resumed))
            # An exit and no callback: only exits are told whether an exception ended the run.
            stack.push(partial(_close, logger))
        # Processes that share a fit would stop in different rounds.
        stopping = stack.enter_context(Stopping(active=self.plan.world_size == 1, run_dir=self.info.run_dir))
        rounds = iter(()) if kept.stopped else self.rounds(progress)
        watch = FiniteWatch()
        for progress, found in rounds:
            record = watch.noted(found)
            self._check_asked(record)
            kept.note(record, self.targets, self.target_metric, self.stop_at)
            for logger in self.loggers:
                logger.log(record)
            if record.alignment is not None and self.is_primary:
                self._draw_alignment(record)
            last = record.round_idx == self.plan.num_rounds or kept.stopped
            due = last or stopping.requested or record.round_idx % self.checkpoint_every == 0
            if due and record.round_idx:
                kept.seconds = time.perf_counter() - began
                self._save(progress, kept)
            yield record
            stopping.deliver()
            if last:
                break
        kept.seconds = time.perf_counter() - began
        trained = progress.counters["compute/examples"] > self.spent.get("compute/examples", 0.0)
        if self.plan.num_rounds and not trained:
            raise ClientError(
                f"At least one client must train a step, but in {self.plan.num_rounds} rounds none has: every turn "
                "failed, or had no batch to train on; the log above names the failures."
            )
        return self._summary(progress, kept)

    def rounds(self, progress: Progress) -> Iterator[tuple[Progress, RoundRecord]]:
        """Run the rounds after ``progress``, without loggers or checkpoints (`run_rounds`)."""
        parts = self.plan, self.server, self.executor, self.data, self.store
        return run_rounds(*parts, progress, self.meter)

    def _check_asked(self, record: RoundRecord) -> None:
        """Say before the first round which metrics that are asked for will never be there; an objective has to be."""
        if record.round_idx:
            return
        never = f"be a metric of this run ({', '.join(sorted(record.metrics))})"
        for key, name in (("federation.target_metric", self.target_metric), ("objective", self.objective)):
            if name in (None, AUTO, *record.metrics) or will_come(str(name), record.metrics):
                continue
            refusal = ConfigError.rule(key, never, name, record.metrics)
            if key == "objective":
                raise refusal
            _log.warning("%s", refusal)

    def _draw_alignment(self, record: RoundRecord) -> None:
        name = f"encoding_round_{record.round_idx:04d}"
        path = self.info.run_dir / "figures" / f"{name}.png"
        draw_encodings(path, {self.info.name: record.alignment}, self.data.dataset.classes)
        for logger in self.loggers:
            logger.picture(
                "encoding", path
            )  # one name for all rounds: services show them one after the other

    def begin(self) -> tuple[Progress, History]:
        """Give where the run stands: its newest whole checkpoint, or the server's first state; and its history.

        Raises:
            CheckpointError: The checkpoints are damaged, or of another configuration.
        """
        self.executor.open()
        self.server.setup(site_of(self.executor.worker, self.meter.spend))
        checkpoint = self.checkpoints.load_latest(lambda found: self.store.check(found.manifest))
        kept = History.stored(checkpoint.extra if checkpoint else {})
        kept.goes_on(machine(self.data.device))
        if checkpoint is None:
            worker = self.executor.worker
            state = self.server.init(worker.module.model, federation_of(worker, self.plan.excluded))
            return first_progress(state, self.spent), kept
        if checkpoint.config_sha256 != self.config_sha256:
            raise CheckpointError(
                f"checkpoints must be of the same configuration, but those in {self.checkpoints.directory} are not."
            )
        self.store.restore(checkpoint.manifest)
        _log.info("Resuming after round %d of %d.", checkpoint.round_idx, self.plan.num_rounds)
        return Progress(checkpoint.round_idx, checkpoint.server_state, checkpoint.counters), kept

    def _save(self, progress: Progress, kept: History) -> None:
        if not self.is_primary:
            return
        for logger in self.loggers:
            logger.secure()
        manifest = self.store.persist()
        self.checkpoints.save(Checkpoint(*progress, manifest, self.config_sha256, asdict(kept)))
        self.store.collect(self.checkpoints.manifests())

    def _summary(self, progress: Progress, kept: History) -> dict[str, Any]:
        if self.target_metric is not None and self.target_metric not in kept.final:
            _log.warning(
                "federation.target_metric should name a metric, but none is called %s.", self.target_metric
            )
        return {
            "seed": self.plan.seed,
            "algorithm": self.algorithm,
            "num_rounds": self.plan.num_rounds,
            "final": kept.final,
            "best_val": kept.best_val or None,
            "to_target": {str(target): kept.to_target.get(str(target)) for target in self.targets},
            "weights_sha256": weights_sha256(progress.state, self.store),
            "config_sha256": self.config_sha256,
            "versions": versions(),
            "git_commit": kept.git_commits[-1],
            "git_commits": kept.git_commits,
            "machines": kept.machines,
            "seconds": kept.seconds,
        } | {name: value for name in ("stopped", "repaired") if (value := getattr(kept, name))}


def _close(logger: RoundLogger, kind: type[BaseException] | None, *_: Any) -> None:
    logger.close(failed=kind is not None)


def weights_sha256(state: Any, store: ClientStore) -> str:
    """Digest of all final weights: the server's state and every client's personal tensors.

    It is `tree.sha256` of ``[state, [[client_id, its tensors], ...]]``, of which one client's are at hand at a time.
    """
    outlines = [[client_id, tree.transform(store.get(client_id), tree.outline)] for client_id in store]
    return tree.sha256([state, outlines], chain([state], (store.get(client_id) for client_id in store)))
