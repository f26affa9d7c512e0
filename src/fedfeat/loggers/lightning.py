"""Any logger of Lightning as a consumer of round records, and what four services need beyond Lightning's words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfeat.errors import ConfigError
from fedfeat.files import atomic_write_text
from fedfeat.loggers.base import RunInfo
from fedfeat.runs.text import flatten
from fedfeat.types import RoundRecord

if TYPE_CHECKING:
    from pytorch_lightning.loggers import Logger

FOLDER = "loggers"
"""Folder of a run directory with a file per logger: the id of its run and the last round it has been given."""


class LightningLogger:
    """Log every round with a logger of Lightning: metrics at the step of their round, the configuration before them.

    A resumed experiment goes on under the id of its first start. Rounds after the checkpoint are repeated bit for
    bit, so those that the logger has been given already are not given to it again.

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
        self._known = json.loads(self._file.read_text()) if self._file.exists() else {"id": None, "round": -1}
        is_new, self._last_round = self._known["id"] is None, run.first_round - 1
        try:
            self.logger = self._build(**self._arguments(run), **self.options)
            if is_new:
                self.logger.log_hyperparams(run.config)
            self._known["id"] = self.logger.version
            self._known["round"] = self._known_round(run)
        except Exception as error:  # of any kind: each service has its own
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"logger must name services that can start, but {self._name} cannot: {reason} "
                "(wandb_offline, comet_offline and tensorboard need neither network nor login)."
            ) from error
        self._note(self._known["round"])

    def log(self, record: RoundRecord) -> None:
        """Log the metrics of a round, at once on the disk where the service writes there."""
        self._last_round = record.round_idx
        if record.round_idx > self._known["round"]:
            metrics = {"round": record.round_idx, "cohort_size": len(record.cohort), **record.metrics}
            self.logger.log_metrics(metrics, step=record.round_idx)
            self.logger.save()
            self._note(record.round_idx)

    def picture(self, name: str, path: Path) -> None:
        """Leave pictures where they are: Lightning has no common word for them."""

    def finish(self, summary: dict[str, Any]) -> None:
        """Log the numbers of the summary as metrics of the last round, keys joined by ``/`` (``final/global/acc``)."""
        numbers = {key: value for key, value in flatten(summary).items() if isinstance(value, int | float)}
        self.logger.log_metrics(numbers, step=self._last_round)

    def close(self, failed: bool = False) -> None:
        """Finish Lightning's logger and tell it how the run ended."""
        self.logger.finalize("failed" if failed else "success")

    def _arguments(self, run: RunInfo) -> dict[str, Any]:
        found = {
            key: self._known["id"] if field == "id" else getattr(run, field)
            for key, field in self._run.items()
        }
        return {
            key: str(value) if isinstance(value, Path) else value
            for key, value in found.items()
            if value is not None
        }

    def _known_round(self, run: RunInfo) -> int:
        """Give the last round that the logger has."""
        return self._known["round"]

    def _note(self, round_idx: int) -> None:
        self._known["round"] = round_idx
        atomic_write_text(self._file, json.dumps(self._known))


class Wandb(LightningLogger):
    """Weights & Biases: the x-axis of every chart is the round."""

    def picture(self, name: str, path: Path) -> None:
        """Log a picture as `wandb.Image`."""
        import wandb

        self.logger.log_metrics({name: wandb.Image(str(path)), "round": self._last_round})

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the whole summary into that of the run."""
        self.logger.experiment.summary.update(flatten(summary))

    def close(self, failed: bool = False) -> None:
        """Close the run; W&B shows it as failed instead of finished if it did not come to its end."""
        super().close(failed)
        self.logger.experiment.finish(exit_code=int(failed))

    def _known_round(self, run: RunInfo) -> int:
        """Believe the server, if there is one: what a killed process had not uploaded is logged again."""
        experiment = self.logger.experiment
        experiment.define_metric("round")
        experiment.define_metric("*", step_metric="round")
        return experiment.summary.get("round", -1) if experiment.resumed else super()._known_round(run)


class TensorBoard(LightningLogger):
    """TensorBoard: after a resume, it drops what earlier event files have of the rounds to come."""

    def picture(self, name: str, path: Path) -> None:
        """Write a picture at the latest round."""
        import numpy as np
        from PIL import Image

        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))  # (H, W, 3) uint8
        self.logger.experiment.add_image(name, pixels, self._last_round, dataformats="HWC")

    def _known_round(self, run: RunInfo) -> int:
        return run.first_round - 1


class MLflow(LightningLogger):
    """MLflow: pictures are artifacts of the run."""

    def picture(self, name: str, path: Path) -> None:
        """Add a picture to the run's artifacts."""
        self.logger.experiment.log_artifact(self.logger.version, str(path))


class Comet(LightningLogger):
    """Comet: its experiment ends when it is told so; an offline one is archived only then."""

    def picture(self, name: str, path: Path) -> None:
        """Log a picture at the latest round."""
        self.logger.experiment.log_image(str(path), name, step=self._last_round)

    def close(self, failed: bool = False) -> None:
        """End the experiment, with the tag ``failed`` if it did not come to its end."""
        super().close(failed)
        if failed:
            self.logger.experiment.add_tag("failed")
        self.logger.experiment.end()
