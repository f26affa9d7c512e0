"""Whether a run has ended because training diverged. Imports nothing heavy."""

from contextlib import suppress
from pathlib import Path

from fedfeat.errors import DIVERGED
from fedfeat.runs.directory import FAILURE


def has_diverged(run_dir: Path) -> bool:
    """Whether a directory holds a run that ended because a client's update was not finite."""
    with suppress(OSError):
        ended = (run_dir / FAILURE).read_text().strip().endswith(f"{DIVERGED}.")
        return ended and (run_dir / "config.yaml").exists() and not (run_dir / "summary.json").exists()
    return False
