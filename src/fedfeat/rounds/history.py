"""What a run keeps of its rounds: the few numbers of the summary, and how many rows its tables have."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedfeat.config.objective import judged_by, validated_by
from fedfeat.errors import CheckpointError
from fedfeat.loggers.csv_logger import rows_of
from fedfeat.rounds.plan import Plan
from fedfeat.runs.checkpoint import CheckpointFolder
from fedfeat.runs.provenance import git_commit
from fedfeat.runs.records import RoundRecord
from fedfeat.runs.tables import METRICS, check_tables, repair_tables, repaired_rounds


def first_history() -> dict[str, Any]:
    """Give what is kept before the first round, as JSON: ``to_target``, ``rows``, later ``final``, ``best_val``."""
    return {"to_target": {}, "rows": {}}


def made_by(kept: dict[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    """Give what is kept with the commit of the source tree as the last of its ``git_commits``, each named once.

    It is read when a run starts or goes on: a checkout may move on while the code that runs is the one that was read.

    Args:
        kept: See `first_history`.
        machine: See `runs.machine`; the last of its ``machines`` in the same way.
    """
    found = {"git_commits": git_commit(), "machines": dict(machine)}
    return kept | {
        key: [*(old for old in kept.get(key, []) if old != new), new] for key, new in found.items()
    }


def note(
    kept: dict[str, Any],
    record: RoundRecord,
    targets: Sequence[float],
    target_metric: str | None,
    stop_at: float | None,
) -> None:
    """Keep the few numbers of the summary that need the whole history, count rows, and say where the run stops early.

    Args:
        kept: What is kept; changed.
        record: The round.
        targets: See `Experiment`, as the others.
        target_metric: Which metric is to reach them.
        stop_at: What it is to reach for the run to stop.
    """
    if not record.evaluated:
        return
    kept["rows"] = dict(Counter(kept.get("rows", {})) + Counter(rows_of(record)))
    metrics = record.metrics
    kept["final"] = dict(metrics)
    # A round that lacks what the best one was chosen by, as one without validation examples does, is none.
    best: dict[str, float] = kept.get("best_val", {})
    validated = validated_by({*best, *metrics}, target_metric)
    if validated in metrics and (validated not in best or metrics[validated] > best[validated]):
        kept["best_val"] = {"round": record.round_idx, **metrics}
    name = judged_by(metrics, target_metric)
    if name is None:
        return
    for target in targets:
        if metrics[name] >= target and str(target) not in kept["to_target"]:
            kept["to_target"][str(target)] = {
                "rounds": record.round_idx,
                "bytes": metrics["comm/total_bytes"],
                "up_bytes": metrics["comm/up_bytes"],
                "examples": metrics["compute/examples"],
                "seconds": metrics["time/total_s"],
            }
    if stop_at is not None and record.round_idx and metrics[name] >= stop_at:
        kept["stopped"] = record.round_idx


def settle_tables(
    run_dir: Path, round_idx: int, kept: dict[str, Any], plan: Plan, folder: CheckpointFolder, repair: bool
) -> None:
    """See to it that the tables have the rows of a resumed run, whose checkpoint is of round ``round_idx``.

    Args:
        run_dir: Where they are.
        round_idx: Round of the checkpoint.
        kept: What it keeps, see `first_history`; changed by a repair.
        plan: How the rounds go.
        folder: The checkpoints.
        repair: Whether lost rows are put in again as far as they are known, instead of refused.

    Raises:
        CheckpointError: Rows are missing.
    """
    evaluated = [r for r in range(round_idx + 1) if plan.evaluates(r)]
    written = kept.get("rows", {})
    found: dict[str, Any] = {}
    if repair:
        found = repair_tables(run_dir, round_idx, evaluated, _known(folder, plan, round_idx), written)
    else:
        check_tables(run_dir, round_idx, evaluated, written)
    # By the table itself, for a start that was killed after its repair has left no other word of it.
    if rounds := repaired_rounds(run_dir):
        found[METRICS] = rounds
    if found:
        earlier = kept.get("repaired", {})
        lost = {name: earlier.get(name, 0) + count for name, count in found.items() if name != METRICS}
        kept["repaired"] = earlier | found | lost
        # The rows of metrics.csv are there again.
        kept["rows"] = {
            name: count if name == METRICS else count - found.get(name, 0) for name, count in written.items()
        }


def _known(folder: CheckpointFolder, plan: Plan, last: int) -> dict[int, dict[str, float]]:
    """Give the metrics of evaluated rounds that checkpoints up to round ``last`` know."""
    known: dict[int, dict[str, float]] = {}
    for round_idx in folder.rounds():
        with suppress(CheckpointError):
            extra = folder.load(round_idx).extra if round_idx <= last else {}
            if "final" in extra:
                known[max(r for r in range(round_idx + 1) if plan.evaluates(r))] = extra["final"]
            if best := extra.get("best_val"):
                known[best["round"]] = {name: value for name, value in best.items() if name != "round"}
    return known
