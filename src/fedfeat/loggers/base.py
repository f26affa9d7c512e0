"""What every logger is: a consumer of round records."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedfeat.runs.records import RoundRecord
from fedfeat.runs.run_words import RunWords


@dataclass(frozen=True)
class RunInfo:
    """What a logger knows about a run before its first round.

    Attributes:
        run_dir: The run directory; everything a logger writes lies under it.
        name: Name of the run, for people.
        group: Name shared by the runs of a sweep, or None.
        config: The resolved configuration as plain dictionaries.
        num_rounds: Number of the last round.
        resumed_round: Last round that is in the checkpoint the run continues from, or None for a new run.
            What was logged after it will be logged again, so loggers forget it.
        words: What tells it from other runs, for services that show many.
    """

    run_dir: Path
    name: str
    group: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    num_rounds: int = 0
    resumed_round: int | None = None
    words: RunWords = field(default_factory=RunWords)

    @property
    def label(self) -> str | None:
        """See `RunWords`."""
        return self.words.label

    @property
    def kind(self) -> str:
        """See `RunWords`."""
        return self.words.kind

    @property
    def first_round(self) -> int:
        """The first round that will be logged; 0 is the state before training."""
        return 0 if self.resumed_round is None else self.resumed_round + 1


class RoundLogger:
    """Consumer of a run: `start` once, `log` every round, `picture` and `secure` at will, `finish` and `close` once.

    What a logger does not say otherwise, it passes over.
    """

    def start(self, run: RunInfo) -> None:
        """Open the log of `run`."""

    def log(self, record: RoundRecord) -> None:
        """Take note of one round."""

    def picture(self, name: str, path: Path) -> None:
        """Take note of a picture (PNG) that lies at `path`."""

    def secure(self) -> None:
        """Wait until what was logged would survive a power failure; a checkpoint that counts on it follows."""

    def finish(self, summary: dict[str, Any]) -> None:
        """Note the content of ``summary.json``, which is written when all loggers have noted it."""

    def close(self, failed: bool = False) -> None:
        """Release files and threads; called once, also where an exception ended the run (`failed`)."""
