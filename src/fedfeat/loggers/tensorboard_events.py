"""TensorBoard: scalars, pictures, histograms of clients and the HParams tab, all in the one folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedfeat.loggers.base import RunInfo
from fedfeat.loggers.lightning import LightningLogger
from fedfeat.runs.client_columns import columns_of
from fedfeat.runs.records import RoundRecord
from fedfeat.runs.run_words import headline


class TensorBoard(LightningLogger):
    """TensorBoard: after a resume, it drops what earlier event files have of the rounds to come.

    The HParams tab has the facts that W&B's table of runs has, beside the numbers that a run is judged by.
    `SummaryWriter.add_hparams` would put both into a folder of their own, a second run for TensorBoard.
    """

    def start(self, run: RunInfo) -> None:
        """Open the event file."""
        self._facts = {k: v for k, v in run.words.facts.items() if isinstance(v, str | bool | int | float)}
        self._target = (run.config.get("federation") or {}).get("target_metric")
        self._headline: tuple[str, ...] = ()
        self._named = False
        super().start(run)

    def log(self, record: RoundRecord) -> None:
        """Log the metrics of a round and how its clients fared."""
        import numpy as np

        if record.round_idx > self._known:
            for name, values in columns_of(record.clients, "_acc").items():
                self.experiment.add_histogram(f"clients/{name}", np.array(values), record.round_idx)
        super().log(record)
        self._headline = headline(record.metrics, self._target)
        if record.round_idx:  # the initial model has no training loss
            self._name_columns()

    def picture(self, name: str, path: Path) -> None:
        """Write a picture at the latest round."""
        import numpy as np
        from PIL import Image

        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))  # (H, W, 3) uint8
        self.experiment.add_image(f"figures/{name}", pixels, self._last_round, dataformats="HWC")

    def finish(self, summary: dict[str, Any]) -> None:
        """Log the numbers of the summary; the HParams tab shows the run as ended."""
        super().finish(summary)
        self._name_columns()
        self._write_hparams(2)

    def _known_round(self, closed: int) -> int:
        return -1

    def _name_columns(self) -> None:
        """Say once which columns there are: of what is said again TensorBoard reads the first."""
        if self._headline and not self._named:
            self._named = True
            self._write_hparams(0, 1)

    def _write_hparams(self, *parts: int) -> None:
        """Write parts of what the HParams tab reads: which columns there are, the facts, the end."""
        from torch.utils.tensorboard.summary import hparams

        if self._facts:
            made = hparams(self._facts, dict.fromkeys(self._headline, 0.0))
            for part in parts:
                # Without a step: what a resumed run drops begins at one.
                self.experiment.file_writer.add_summary(made[part])
