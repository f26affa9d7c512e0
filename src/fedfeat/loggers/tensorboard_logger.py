"""TensorBoard: scalars and pictures over rounds, in ``tensorboard/`` of the run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedfeat.loggers.base import RunInfo
from fedfeat.types import RoundRecord

FOLDER = "tensorboard"


class TensorBoardLogger:
    """Log every metric as a scalar whose step is the round; look with ``tensorboard --logdir logs``."""

    def start(self, run: RunInfo) -> None:
        """Open an event file; rounds that will come again are purged from the earlier ones."""
        from torch.utils.tensorboard import SummaryWriter

        self._last_round = -1 if run.resumed_round is None else run.resumed_round
        self._writer = SummaryWriter(str(run.run_dir / FOLDER), purge_step=self._last_round + 1)
        if run.resumed_round is None:
            config = json.dumps(run.config, indent=2, default=str)
            self._writer.add_text("config", "\n".join(f"    {line}" for line in config.splitlines()), 0)

    def log(self, record: RoundRecord) -> None:
        """Write the metrics of a round and flush them."""
        for name, value in record.metrics.items():
            self._writer.add_scalar(name, value, record.round_idx)
        self._last_round = record.round_idx
        self._writer.flush()

    def picture(self, name: str, path: Path) -> None:
        """Write a picture at the latest round."""
        import numpy as np
        from PIL import Image

        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))  # (H, W, 3) uint8
        self._writer.add_image(name, pixels, self._last_round, dataformats="HWC")

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary as text."""
        text = json.dumps(summary, indent=2, default=str)
        self._writer.add_text(
            "summary", "\n".join(f"    {line}" for line in text.splitlines()), self._last_round
        )

    def close(self, failed: bool = False) -> None:
        """Close the event file."""
        self._writer.close()
