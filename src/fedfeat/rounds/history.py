"""What a run keeps of its rounds: the few numbers of the summary, and how many rows its tables have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from fedfeat.config.objective import COSTS, judged_by, validated_by
from fedfeat.errors import CheckpointError
from fedfeat.loggers.csv_logger import rows_of
from fedfeat.rounds.plan import Plan
from fedfeat.runs.checkpoint import CheckpointFolder
from fedfeat.runs.provenance import git_commit
from fedfeat.runs.records import RoundRecord
from fedfeat.runs.tables import METRICS, check_tables, repair_tables, repaired_rounds

T = TypeVar("T")


@dataclass
class History:
    """What a run keeps of its rounds beside its state; every checkpoint has it.

    Attributes:
        rows: How many rows each table has.
        final: Metrics of the last evaluated round.
        best_val: Metrics of the round that is best on validation data, and its ``round``; empty before there is one.
        to_target: What it took to reach each accuracy that was reached.
        stopped: The round after which the run stopped early.
        seconds: How long the run took so far.
        git_commits: Commits of the source trees that made it, the last one's last, each named once.
        machines: The machines that made it, likewise.
        repaired: Rows that a repair has made again, by table; of ``metrics.csv`` their rounds.
    """

    rows: dict[str, int] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    best_val: dict[str, float] = field(default_factory=dict)
    to_target: dict[str, dict[str, float]] = field(default_factory=dict)
    stopped: int | None = None
    seconds: float = 0.0
    git_commits: list[str | None] = field(default_factory=list)
    machines: list[dict[str, Any]] = field(default_factory=list)
    repaired: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def stored(cls, extra: Mapping[str, Any]) -> History:
        """Read what a checkpoint has of it; one of an earlier version may lack a part."""
        return cls(**{one.name: extra[one.name] for one in fields(cls) if one.name in extra})

    def goes_on(self, machine: Mapping[str, Any]) -> None:
        """Note the source tree and the machine that a start of the run has.

        A checkout may move on later, while the code that runs is the one that was read.

        Args:
            machine: See `runs.machine`.
        """
        self.git_commits = _last(self.git_commits, git_commit())
        self.machines = _last(self.machines, dict(machine))

    def note(
        self, record: RoundRecord, targets: Sequence[float], target_metric: str | None, stop_at: float | None
    ) -> None:
        """Take the numbers of a round, count its rows, and see whether the run stops here.

        Args:
            record: The round.
            targets: See `Experiment`, as the others.
            target_metric: Which metric is to reach them.
            stop_at: What it is to reach for the run to stop.
        """
        if not record.evaluated:
            return
        self.rows = dict(Counter(self.rows) + Counter(rows_of(record)))
        metrics, best = record.metrics, self.best_val
        row = {"round": record.round_idx, **metrics}
        self.final = dict(metrics)
        # A round that lacks what the best one was chosen by, as one without validation examples does, is none.
        validated = validated_by({*best, *metrics}, target_metric)
        if validated in metrics and (validated not in best or metrics[validated] > best[validated]):
            self.best_val = row
        name = judged_by(metrics, target_metric)
        if name is None:
            return
        for target in targets:
            if metrics[name] >= target and str(target) not in self.to_target:
                self.to_target[str(target)] = {cost: row[column] for cost, column in COSTS.items()}
        if stop_at is not None and record.round_idx and metrics[name] >= stop_at:
            self.stopped = record.round_idx


def _last(earlier: Sequence[T], new: T) -> list[T]:
    return [*(old for old in earlier if old != new), new]


def settle_tables(
    run_dir: Path, round_idx: int, kept: History, plan: Plan, folder: CheckpointFolder, repair: bool
) -> None:
    """See to it that the tables have the rows of a resumed run, whose checkpoint is of round ``round_idx``.

    Args:
        run_dir: Where they are.
        round_idx: Round of the checkpoint.
        kept: What it keeps; changed by a repair.
        plan: How the rounds go.
        folder: The checkpoints.
        repair: Whether lost rows are put in again as far as they are known, instead of refused.

    Raises:
        CheckpointError: Rows are missing.
    """
    evaluated = [r for r in range(round_idx + 1) if plan.evaluates(r)]
    written = kept.rows
    found: dict[str, Any] = {}
    if repair:
        found = repair_tables(run_dir, round_idx, evaluated, _known(folder, plan, round_idx), written)
    else:
        check_tables(run_dir, round_idx, evaluated, written)
    # By the table itself, for a start that was killed after its repair has left no other word of it.
    if rounds := repaired_rounds(run_dir):
        found[METRICS] = rounds
    if found:
        earlier = kept.repaired
        lost = {name: earlier.get(name, 0) + count for name, count in found.items() if name != METRICS}
        kept.repaired = earlier | found | lost
        # The rows of metrics.csv are there again.
        kept.rows = {
            name: count if name == METRICS else count - found.get(name, 0) for name, count in written.items()
        }


def _known(folder: CheckpointFolder, plan: Plan, last: int) -> dict[int, dict[str, float]]:
    """Give the metrics of evaluated rounds that checkpoints up to round ``last`` know."""
    known: dict[int, dict[str, float]] = {}
    for round_idx in folder.rounds():
        with suppress(CheckpointError):
            kept = History.stored(folder.load(round_idx).extra if round_idx <= last else {})
            if kept.final:
                known[max(r for r in range(round_idx + 1) if plan.evaluates(r))] = kept.final
            if best := kept.best_val:
                known[int(best["round"])] = {name: value for name, value in best.items() if name != "round"}
    return known
