"""Weights & Biases: one run per experiment. The only module that knows wandb."""

from __future__ import annotations

import hashlib
import platform
import time
from pathlib import Path
from typing import Any, Literal, get_args

from fedfeat.errors import ConfigError
from fedfeat.files import atomic_write_text
from fedfeat.loggers.base import RunInfo
from fedfeat.runs.text import flatten
from fedfeat.types import RoundRecord

ID_FILE = "wandb_id.txt"
Mode = Literal["online", "offline", "disabled"]


class WandbLogger:
    """Log every round to one W&B run whose x-axis is the round.

    The runs of a sweep share a group. A resumed experiment continues under the same id (`run_id`); offline,
    each start writes its own folder under ``wandb/``, and ``wandb sync --append`` joins them under that id.

    Args:
        project: W&B project.
        mode: ``online``, ``offline`` (upload later with ``wandb sync``) or ``disabled``.
        entity: W&B user or team; None is the account's default.
        tags: Tags of the run.
    """

    def __init__(
        self,
        project: str = "fedfeat",
        mode: Mode = "online",
        entity: str | None = None,
        tags: list[str] | None = None,
    ) -> None:
        if mode not in get_args(Mode):
            raise ConfigError.rule("logger.wandb.mode", f"be one of {', '.join(get_args(Mode))}", mode)
        self.project, self.mode, self.entity = project, mode, entity
        self.tags = list(tags or [])

    def start(self, run: RunInfo) -> None:
        """Open the W&B run, or continue it."""
        import wandb

        try:
            self._run = wandb.init(
                project=self.project,
                entity=self.entity,
                mode=self.mode,
                tags=self.tags,
                name=run.name,
                group=run.group,
                config=run.config,
                id=run_id(run.run_dir),
                # Offline there is no server to ask; wandb would warn that it ignores the key.
                resume="allow" if self.mode == "online" else None,
                dir=str(run.run_dir),
                settings=wandb.Settings(console="off", quiet=True),
            )
        except wandb.errors.Error as error:
            rule = f"be offline or disabled where W&B cannot be reached or has no login ({error})"
            raise ConfigError.rule("logger.wandb.mode", rule, self.mode) from error
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        # Rounds after the checkpoint are repeated bit for bit; W&B keeps the first copy.
        self._known_round = self._run.summary.get("round", -1) if self._run.resumed else -1
        self._last_round = run.resumed_round or 0

    def log(self, record: RoundRecord) -> None:
        """Log the metrics of a round."""
        self._last_round = record.round_idx
        if record.round_idx > self._known_round:
            cohort_size = len(record.cohort)
            self._run.log({"round": record.round_idx, "cohort_size": cohort_size, **record.metrics})

    def picture(self, name: str, path: Path) -> None:
        """Log a picture as `wandb.Image`."""
        import wandb

        self._run.log({name: wandb.Image(str(path)), "round": self._last_round})

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary, keys joined by ``/`` (``final/global/acc``)."""
        self._run.summary.update(flatten(summary))

    def close(self, failed: bool = False) -> None:
        """Close the run; W&B shows it as failed instead of finished if it did not come to its end."""
        self._run.finish(exit_code=int(failed))


def run_id(run_dir: Path) -> str:
    """Give the W&B id of a run directory: made at the first call, then read from its ``wandb_id.txt``.

    Host and time go into it as well as the path, because W&B refuses an id for ever once its run is deleted,
    and the same path may exist on two machines.
    """
    path = run_dir / ID_FILE
    if not path.exists():
        text = f"{platform.node()}:{run_dir.resolve()}:{time.time_ns()}"
        atomic_write_text(path, hashlib.blake2b(text.encode(), digest_size=8).hexdigest() + "\n")
    return path.read_text().strip()
