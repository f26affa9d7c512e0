"""Runs opened again by commands that look at them; the runs stay as they are."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from fedfeat.commands.assembly import build_experiment
from fedfeat.config.explain import as_user_error, explain
from fedfeat.config.rules import check
from fedfeat.errors import CheckpointError

if TYPE_CHECKING:
    from fedfeat.rounds.experiment import Experiment
    from fedfeat.runs.checkpoint import Checkpoint, CheckpointFolder


# Wherever the run's turns ran, what is looked at afterwards is done here.
_SERIAL = {"_target_": "fedfeat.executors.serial.SerialExecutor", "_partial_": True}


def reopen(
    run_dir: Path, round_idx: int | None = None, **groups: dict[str, Any]
) -> "tuple[Experiment, Checkpoint]":
    """Build the experiment of a run again, with the serial executor, and load a checkpoint.

    Args:
        run_dir: Directory of the run.
        round_idx: Which checkpoint; None is the newest.
        groups: Groups of the configuration to replace, such as ``diagnostics``.

    Raises:
        CheckpointError: There is no run or no such checkpoint.
    """
    from fedfeat.rounds.site import site_of
    from fedfeat.rounds.tally import Meter

    cfg, config = read_config(run_dir, executor=_SERIAL, **groups)
    experiment = build_experiment(cfg, config, run_dir)
    experiment.server.setup(site_of(experiment.executor.worker, Meter().spend))
    return experiment, read_checkpoint(experiment.checkpoints, run_dir, round_idx)


def read_checkpoint(folder: "CheckpointFolder", run_dir: Path, round_idx: int | None) -> "Checkpoint":
    """Read a checkpoint of a run; ``round_idx`` None is the newest.

    Raises:
        CheckpointError: There is no such checkpoint.
    """
    checkpoint = folder.load_latest() if round_idx is None else folder.load(round_idx)
    if checkpoint is None:
        raise CheckpointError(f"DIR must hold a checkpoint, but {run_dir} has none.")
    return checkpoint


def read_config(run_dir: Path, **groups: dict[str, Any]) -> tuple[DictConfig, dict[str, Any]]:
    """Read the configuration of a run, as Hydra's and as plain values.

    Args:
        run_dir: Directory of the run.
        groups: Groups of the configuration to replace.

    Raises:
        CheckpointError: There is no run.
        ConfigError: The configuration breaks a rule.
    """
    path = run_dir / "config.yaml"
    if not path.exists():
        raise CheckpointError(f"DIR must be a run directory, but {run_dir} has no config.yaml.")
    cfg = OmegaConf.load(path)
    assert isinstance(cfg, DictConfig)
    for name, group in groups.items():
        cfg[name] = group
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    # Whatever the run was composed of was accepted then.
    check(config, own_groups=config)
    return cfg, config


@contextmanager
def one_sentence(command: str) -> Iterator[None]:
    """End the command with exit code 2 and one sentence on stderr where a refusal comes up."""
    # Hydra otherwise prints its own error pages.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    except Exception as error:
        if as_user_error(error) is None:
            raise
        print(f"{command}: {explain(error)}", file=sys.stderr)
        sys.exit(2)
