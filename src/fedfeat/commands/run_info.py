"""What loggers are told of a run."""

from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from fedfeat.loggers.base import RunInfo
from fedfeat.runs.directory import without_passwords
from fedfeat.runs.run_words import RunWords, words_of


def run_info(config: dict[str, Any], run_dir: Path, num_rounds: int) -> RunInfo:
    """Say what loggers are told of a run."""
    told = without_passwords(config)
    return RunInfo(run_dir, config["name"], config["group"], told, num_rounds, words=_words(config))


def _words(config: dict[str, Any]) -> RunWords:
    if not HydraConfig.initialized():
        return words_of(config, {}, (), ())
    job = HydraConfig.get()
    return words_of(config, job.runtime.choices, job.overrides.task, job.callbacks["swept"]["keys"])
