"""Weights & Biases, of which nothing else in the package but the commands' `wandb_*` files knows."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfeat.config.objective import judged_by
from fedfeat.loggers.base import RunInfo
from fedfeat.loggers.lightning import LightningLogger
from fedfeat.runs.client_columns import columns_of, table_of
from fedfeat.runs.records import RoundRecord
from fedfeat.runs.run_words import headline

if TYPE_CHECKING:
    from pytorch_lightning.loggers import Logger

_OVER = {"over_bytes": "comm/total_bytes", "over_examples": "compute/examples"}
"""Sections of charts whose x-axis is not the round."""
_PROVENANCE = ("config_sha256", "weights_sha256", "git_commit", "versions")
_MODEL_FILES = ("config.yaml", "data.json", "structure.json", "weights.json", "metrics.csv")


class Wandb(LightningLogger):
    """Weights & Biases: W&B's step is the round, and a run that did not come to its end is failed.

    What is logged of a round is one row of the history, pictures included. It waits for them until the next round or
    the checkpoint that counts on it. W&B's own process writes it down a moment later (``settings`` in its YAML): of a
    run that is killed outright, the last rounds before the checkpoint may be missing at W&B; metrics.csv has them.

    Args:
        logger: Builds Lightning's logger.
        run: See `LightningLogger`.
        final_model: Upload, when the run has ended, what `fedfeat.load` needs to open its last models.
        preemptible: Tell the server of a sweep to start the run again where a signal has ended it, as a cluster's
            preemption does; not where it has failed, which it would do again.
        options: Arguments of `wandb.init`.
    """

    def __init__(
        self,
        logger: Callable[..., Logger],
        run: Mapping[str, str] | None = None,
        final_model: bool = False,
        preemptible: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(logger, run, **options)
        self._final_model, self._preemptible = final_model, preemptible
        self._headline: tuple[str, ...] = ()
        self._clients: RoundRecord | None = None

    def start(self, run: RunInfo) -> None:
        """Open the run, or go on with it."""
        self._target = (run.config.get("federation") or {}).get("target_metric")
        self._run_dir, self._facts = run.run_dir, run.words.facts
        tags = [*run.words.tags, *(self.options.get("tags") or ())]
        self.options["tags"] = list(dict.fromkeys(tags))
        super().start(run)
        self._next_step = self.experiment.step

    def log(self, record: RoundRecord) -> None:
        """Begin the row of a round: its metrics, and how its clients fared."""
        self._last_round = record.round_idx
        self._clients = record if record.clients else self._clients
        if record.round_idx > self._known:
            self._declare(record)
            self._put({"cohort_size": len(record.cohort), **record.metrics, **self._over(record.metrics)})
            self._put(self._histograms(record))
        self._logged = record.round_idx

    def picture(self, name: str, path: Path) -> None:
        """Put a picture into the row of the latest round."""
        import wandb

        if self._last_round >= self._known:
            self._put({f"figures/{name}": wandb.Image(str(path))})

    def secure(self) -> None:
        """End the row of the latest round."""
        if self._last_round > self._known and self._last_round >= self._next_step:
            self._commit()

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the numbers that a run is judged by, its clients, where it comes from, and its models."""
        import wandb

        final = summary["final"]
        numbers = {name: final[name] for name in headline(final, self._target)}
        # Of a float that is NaN, W&B's summary makes null; its history has this word.
        words = {key: "NaN" if value != value else value for key, value in numbers.items()}
        if self._clients is not None:
            columns, rows = table_of(self._clients.clients)
            self._put({"clients/last_round": wandb.Table(columns=columns, data=rows)})
        self._commit()  # or the row would bring its own numbers into the summary
        for name in set(self._headline) - set(numbers):
            del self.experiment.summary[name]
        self.experiment.summary.update({**words, "round": self._last_round})
        sources = {key: summary[key] for key in _PROVENANCE if key in summary}
        self.experiment.config.update({"provenance": sources}, allow_val_change=True)
        if self._final_model:
            self._upload(summary)

    def _configure(self, run: RunInfo) -> None:
        self.logger.log_hyperparams({**run.words.facts, "config": run.config})

    def _known_round(self, closed: int) -> int:
        define = self.experiment.define_metric
        define("round")
        define("*", step_metric="round", summary="none")
        for prefix, axis in _OVER.items():
            define(f"{prefix}/*", step_metric=axis, summary="none")
        return self.experiment.summary.get("round", -1) if self.experiment.resumed else closed

    def _declare(self, record: RoundRecord) -> None:
        """Keep in the run's summary, also while it runs, what it is judged by and what it costs."""
        for name in headline(record.metrics, self._target):
            if name not in self._headline:
                self.experiment.define_metric(name, step_metric="round")
                self._headline += (name,)

    def _over(self, metrics: Mapping[str, float]) -> dict[str, float]:
        name = judged_by(list(metrics), self._target)
        axes = [prefix for prefix, axis in _OVER.items() if axis in metrics]
        return {} if name is None else {f"{prefix}/{name}": metrics[name] for prefix in axes}

    def _histograms(self, record: RoundRecord) -> dict[str, Any]:
        import wandb

        found = columns_of(record.clients, "_acc")
        return {f"clients/{name}": wandb.Histogram(values, num_bins=20) for name, values in found.items()}

    def _put(self, row: Mapping[str, Any]) -> None:
        """Add to the row of the latest round, or to the one after it where that has ended."""
        if row:
            self.experiment.log({**row, "round": self._last_round}, step=self._step)

    def _commit(self) -> None:
        step = self._step
        self.experiment.log({}, step=step, commit=True)
        self._next_step = step + 1

    @property
    def _step(self) -> int:
        # Under one that has passed, W&B drops what it is given.
        return max(self._last_round, self._next_step)

    def _upload(self, summary: Mapping[str, Any]) -> None:
        import wandb

        facts = {**self._facts, "weights_sha256": summary.get("weights_sha256")}
        artifact = wandb.Artifact(f"model-{self._id}", type="model", metadata=facts)
        newest = max((self._run_dir / "checkpoints").glob("*.json"), default=None)
        files = [self._run_dir / name for name in _MODEL_FILES]
        files += sorted(newest.parent.glob(f"{newest.stem}.*")) if newest else []
        files += sorted(path for path in (self._run_dir / "clients").rglob("*") if path.is_file())
        for path in files:
            if path.exists():
                artifact.add_file(str(path), name=path.relative_to(self._run_dir).as_posix())
        with artifact.new_file("summary.json") as file:  # which a run directory gets last
            file.write(json.dumps(summary, indent=2) + "\n")
        self.experiment.log_artifact(artifact)

    def _end(self, failed: bool) -> None:
        stop = sys.exception()
        by_signal = isinstance(stop, SystemExit) and isinstance(stop.code, int) and stop.code > 128
        if failed and by_signal and self._preemptible:
            self.experiment.mark_preempting()
        self.experiment.finish(exit_code=int(failed))
