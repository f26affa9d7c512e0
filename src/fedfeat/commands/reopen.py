"""Runs opened again by commands that look at them; the runs stay as they are."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from fedfeat.commands.assembly import build_experiment
from fedfeat.config.rules import check
from fedfeat.config.trust import check_stored
from fedfeat.errors import CheckpointError
from fedfeat.runs import directory
from fedfeat.runs.below import holders

if TYPE_CHECKING:
    from fedfeat.rounds.experiment import Experiment
    from fedfeat.runs.checkpoint import Checkpoint, CheckpointFolder
    from fedfeat.runs.client_store import ClientStore


T = TypeVar("T")

# Wherever the run's turns ran, what is looked at afterwards is done here.
_SERIAL = {"_target_": "fedfeat.executors.serial.SerialExecutor", "_partial_": True}


def reopen(
    run_dir: Path, round_idx: int | None = None, trust: Sequence[str] = (), **groups: dict[str, Any]
) -> "tuple[Experiment, Checkpoint]":
    """Build the experiment of a run again, with the serial executor and no loggers, and load a checkpoint.

    Args:
        run_dir: Directory of the run.
        round_idx: Which checkpoint; None is the newest.
        trust: What its configuration may name beside what everyone's may, see `config.trust`.
        groups: Groups of the configuration to replace, such as ``diagnostics``.

    Raises:
        CheckpointError: There is no run or no such checkpoint.
        ConfigError: The configuration breaks a rule, or names what is not trusted.
    """
    from fedfeat.rounds.site import site_of
    from fedfeat.rounds.tally import Meter

    cfg, config = read_config(run_dir, trust, **groups)
    experiment = build_experiment(cfg, config, run_dir)
    experiment.server.setup(site_of(experiment.executor.worker, Meter().spend))
    return experiment, read_checkpoint(experiment.checkpoints, experiment.store, run_dir, round_idx)


def read_checkpoint(
    folder: "CheckpointFolder", store: "ClientStore", run_dir: Path, round_idx: int | None
) -> "Checkpoint":
    """Read a checkpoint of a run; ``round_idx`` None is the newest that is whole, with the clients' files.

    Raises:
        CheckpointError: There is no such checkpoint.
    """
    if round_idx is None:
        checkpoint = folder.load_latest(lambda found: store.check(found.manifest))
    else:
        if round_idx not in (kept := folder.rounds()):
            said = ", ".join(map(str, kept)) or "none"
            raise CheckpointError(
                f"round must be one of the checkpoints in {run_dir} ({said}), but it is {round_idx}."
            )
        checkpoint = folder.load(round_idx)
    if checkpoint is None:
        raise CheckpointError(f"DIR must hold a checkpoint, but {run_dir} has none.")
    return checkpoint


def read_config(
    run_dir: Path, trust: Sequence[str] = (), **groups: dict[str, Any]
) -> tuple[DictConfig, dict[str, Any]]:
    """Read the configuration of a run to make parts of it, as Hydra's and as plain values.

    Args:
        run_dir: Directory of the run.
        trust: What it may name beside what everyone's may, see `config.trust`.
        groups: Groups of the configuration to replace.

    Raises:
        CheckpointError: There is no run.
        ConfigError: The configuration breaks a rule, or names what is not trusted.
    """
    own = {"executor": _SERIAL, "logger": {}} | groups
    stored = {key: value for key, value in stored_config(run_dir).items() if key not in own}
    trainer = stored.get("trainer")
    if isinstance(trainer, dict) and trainer.get("profiler"):
        # It would write where the run's wrote.
        stored["trainer"] = trainer | {"profiler": None}
    if isinstance(model := stored.get("model"), dict) and model.get("cached"):
        # Looked at is the whole network, of inputs as they are stored.
        stored["model"] = model | {"cached": False}
    check_stored(stored, trust)
    config = stored | own
    # Whatever the run was composed of was accepted then.
    check(config, own_groups=config)
    return OmegaConf.create(config), config


def stored_config(run_dir: Path) -> dict[str, Any]:
    """Read the configuration of a run as it is stored; nothing in it is resolved or imported.

    Raises:
        CheckpointError: There is no run, or its configuration cannot be read.
    """
    if not (run_dir / "config.yaml").is_file():
        raise CheckpointError(f"DIR must be a run directory, but {run_dir} has no config.yaml.")
    return dict(directory.stored_config(run_dir))


def runs_below(folders: Iterable[Path], mark: str = "summary.json") -> list[Path]:
    """Give the runs in folders that have a file, the finished ones; each once.

    A folder is a run itself, or where there is none in it.
    """
    runs: list[Path] = []
    for folder in folders:
        runs += [folder] if (folder / mark).exists() else holders(folder, mark) or [folder]
    return [*dict.fromkeys(runs)]


def readable_runs(folders: Iterable[Path]) -> list[Path]:
    """Give the runs below folders; one without a run is refused here, before the imports, which take seconds."""
    runs = runs_below(folders)
    for run in runs:
        stored_config(run)
    return runs


def each(runs: Iterable[Path], folders: Sequence[Path], look: Callable[[Path], T]) -> list[T]:
    """Look at all runs; of those below a folder, one whose checkpoint is missing is skipped with a line on stderr.

    Args:
        runs: The runs, as `readable_runs` gives them.
        folders: What was named; a run that stands here is wanted itself.
        look: What to make of a run.

    Raises:
        CheckpointError: A run that was named, or every run, has no such checkpoint.
    """
    found: list[T] = []
    missing: dict[Path, CheckpointError] = {}
    for run in runs:
        try:
            found.append(look(run))
        except CheckpointError as error:
            if run in folders:
                raise
            missing[run] = error
    if missing and not found:
        raise next(iter(missing.values()))
    for run, why in missing.items():
        print(f"{run}: skipped, {why}", file=sys.stderr)
    return found


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--trust`` to a command that reopens runs."""
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="NAME",
        help="package, module, class or function whose code a run directory may name; may be given several times",
    )
