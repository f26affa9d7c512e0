"""Any logger of Lightning as a consumer of round records; what MLflow and Comet need beyond Lightning's words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfeat.errors import ConfigError
from fedfeat.files import atomic_write_text
from fedfeat.loggers.base import RoundLogger, RunInfo
from fedfeat.runs.records import RoundRecord
from fedfeat.runs.text import flatten

if TYPE_CHECKING:
    from pytorch_lightning.loggers import Logger

FOLDER = "loggers"
"""Folder of a run directory with a file per logger: the id of its run, and the last round of a start that it closed."""


class LightningLogger(RoundLogger):
    """Log every round with a logger of Lightning: metrics at the step of their round, the configuration before them.

    A resumed experiment goes on under the id of its first start. Rounds after the checkpoint are repeated bit for
    bit, so those that the service has already are not logged again. It has them if the earlier start was closed;
    of one that was killed, only some services can tell, and the others get the rounds after the checkpoint again.

    Args:
        logger: Builds Lightning's logger.
        run: Argument of it to what it gets: a field of `RunInfo`, or ``id``, the id that an earlier start had.
        options: Its other arguments.
    """

    def __init__(
        self, logger: Callable[..., Logger], run: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self._build, self._run, self.options = logger, dict(run or {}), options
        self._name = getattr(logger, "func", logger).__name__

    def start(self, run: RunInfo) -> None:
        """Build Lightning's logger; at the first start of a run, log its configuration."""
        self._file = run.run_dir / FOLDER / f"{self._name}.json"
        earlier: dict[str, Any] = {"id": None, "round": -1}
        if self._file.exists():
            earlier = json.loads(self._file.read_text())
        self._last_round = self._logged = run.first_round - 1
        try:
            # Of no type here: what Lightning's base class lacks, the classes below know of their service's.
            self.logger: Any = self._build(**{**self._arguments(run, earlier["id"]), **self.options})
            # Many open their service only when asked for it: now, so that what is wrong with it stops the start.
            self.experiment: Any = getattr(self.logger, "experiment", None)
            if earlier["id"] is None:
                self._configure(run)
            self._id = self.logger.version
            self._known = self._known_round(earlier["round"])
        except Exception as error:  # of any kind: each service has its own
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"logger must name services that can start, but {self._name} cannot: {reason} "
                "(wandb_offline, comet_offline and tensorboard need neither network nor login)."
            ) from error
        self._note(earlier["round"])

    def log(self, record: RoundRecord) -> None:
        """Log the metrics of a round, at once on the disk where the service writes there."""
        self._last_round = record.round_idx
        if record.round_idx > self._known:
            metrics = {"round": record.round_idx, "cohort_size": len(record.cohort), **record.metrics}
            self.logger.log_metrics(metrics, step=record.round_idx)
            self.logger.save()
        self._logged = record.round_idx

    def finish(self, summary: dict[str, Any]) -> None:
        """Log the numbers of the summary as metrics of the last round, keys joined by ``/`` (``final/global/acc``)."""
        numbers = {key: value for key, value in flatten(summary).items() if isinstance(value, int | float)}
        self.logger.log_metrics(numbers, step=self._last_round)

    def close(self, failed: bool = False) -> None:
        """Finish Lightning's logger and tell it how the run ended."""
        self.logger.finalize("failed" if failed else "success")
        self._end(failed)
        self._note(max(self._known, self._logged))

    def _configure(self, run: RunInfo) -> None:
        """Log what the run is, at its first start."""
        self.logger.log_hyperparams(run.config)

    def _arguments(self, run: RunInfo, earlier_id: str | None) -> dict[str, Any]:
        found = {key: earlier_id if name == "id" else getattr(run, name) for key, name in self._run.items()}
        given = {key: value for key, value in found.items() if value is not None}
        return {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}

    def _known_round(self, closed: int) -> int:
        """Give the last round that the service has; an earlier start was closed after round ``closed``."""
        return closed

    def _end(self, failed: bool) -> None:
        """Do what ends a run beyond Lightning's `finalize`."""

    def _note(self, round_idx: int) -> None:
        atomic_write_text(self._file, json.dumps({"id": self._id, "round": round_idx}))


class MLflow(LightningLogger):
    """MLflow: pictures are artifacts of the run."""

    def picture(self, name: str, path: Path) -> None:
        """Add a picture to the run's artifacts."""
        self.experiment.log_artifact(self._id, str(path))

    def _known_round(self, closed: int) -> int:
        return int(self.experiment.get_run(self._id).data.metrics.get("round", -1))


class Comet(LightningLogger):
    """Comet: an offline experiment is archived when it ends, and a failed one has the tag ``failed``."""

    def picture(self, name: str, path: Path) -> None:
        """Log a picture at the latest round."""
        self.experiment.log_image(str(path), name, step=self._last_round)

    def _end(self, failed: bool) -> None:
        if failed:
            self.experiment.add_tag("failed")
        self.experiment.end()
