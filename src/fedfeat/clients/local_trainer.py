"""The Lightning Trainer of the local fits: its configuration, and what makes one Trainer serve many fits."""

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments import LightningEnvironment
from pytorch_lightning.loops import _FitLoop, _TrainingEpochLoop
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fedfeat.errors import ConfigError

# The fields on which it depends whether a Trainer can be built on a machine.
_MACHINE = ("accelerator", "devices", "strategy", "precision", "extra")

_QUIET_LOGGERS = (
    "pytorch_lightning",
    "pytorch_lightning.utilities.rank_zero",
    "pytorch_lightning.accelerators.cuda",
)


@dataclass(frozen=True)
class LocalTrainer:
    """Configuration of every local Trainer; the names are Lightning's.

    Attributes:
        accelerator: ``auto``, ``cpu``, ``gpu``, ...
        devices: Devices of one client's fit.
        strategy: ``auto``, or ``ddp`` for one client over several devices.
        precision: ``32-true``, ``bf16-mixed``, ``16-mixed``, ...
        gradient_clip_val: Largest gradient norm (or value), or None.
        gradient_clip_algorithm: ``norm`` or ``value``.
        num_threads: CPU threads of each process; see `clients.host.set_threads`.
        deterministic: Refuse operations that are not deterministic on the device.
        channels_last: Keep images and filters in the channels-last layout.
        compile: Compile the network with `torch.compile`.
        extra: Any further argument of `pytorch_lightning.Trainer`.
    """

    accelerator: str = "auto"
    devices: int | str | list[int] = 1
    strategy: str = "auto"
    precision: str | int = "32-true"
    gradient_clip_val: float | None = None
    gradient_clip_algorithm: str = "norm"
    num_threads: int | None = None
    deterministic: bool = True
    channels_last: bool = False
    compile: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _QUIET_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        # Part of deterministic mode: every new tensor is filled first, for programs that read uninitialised memory.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    def build(self) -> pl.Trainer:
        """Build the Trainer of a worker; `begin_fit` readies it for every fit.

        A fit on one device is a cluster of its own, however this process was started: Lightning would take a SLURM
        job's tasks for its ranks and requeue the job from within a fit. Signals are the run's (`rounds.signals`).
        """
        alone = self.devices in (1, "1") and self.strategy == "auto"
        environment = {"plugins": LightningEnvironment()} if alone else {}
        with quiet():
            trainer = pl.Trainer(
                accelerator=self.accelerator,
                devices=self.devices,
                strategy=self.strategy,
                precision=self.precision,  # type: ignore[arg-type]
                gradient_clip_val=self.gradient_clip_val,
                gradient_clip_algorithm=self.gradient_clip_algorithm if self.gradient_clip_val else None,
                deterministic=self.deterministic,
                max_epochs=1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                num_sanity_val_steps=0,
                use_distributed_sampler=False,
                **(environment | self.extra),
            )
        if trainer.world_size == 1:
            trainer._signal_connector.register_signal_handlers = _leave_signals  # type: ignore[method-assign]
        return trainer

    def device(self) -> torch.device:
        """Device on which data live and models are evaluated.

        Raises:
            ConfigError: Lightning cannot build the Trainer on this machine.
        """
        try:
            return self.build().strategy.root_device
        except (MisconfigurationException, ValueError, TypeError, ImportError, RuntimeError) as error:
            values = ", ".join(f"{key}={getattr(self, key)}" for key in _MACHINE if getattr(self, key))
            raise ConfigError(
                f"trainer must fit this machine, but with {values} it does not: {error}"
            ) from error

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Context in which evaluation computes in the precision of the fits."""
        dtypes: dict[str | int, torch.dtype] = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
        return torch.autocast(device.type, dtype=dtypes.get(self.precision), enabled=self.precision in dtypes)


def _leave_signals() -> None:
    """Stand in for Lightning's registration, of SIGTERM above all, which would end a run in the middle of a round."""


def begin_fit(trainer: pl.Trainer, num_steps: int, steps_per_epoch: int) -> None:
    """Ready a Trainer for one more fit: as many epochs as ``num_steps`` need, the last one cut short.

    A Trainer that has reached its last epoch trains nothing on a second ``fit`` and says nothing, so every fit gets
    new loops. A new Trainer would do the same at 15 ms a fit, most of it a search for installed plugins.
    """
    trainer.fit_loop = _FitLoop(trainer, min_epochs=0, max_epochs=math.ceil(num_steps / steps_per_epoch))
    trainer.fit_loop.epoch_loop = _TrainingEpochLoop(trainer, max_steps=num_steps)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide what Lightning would say again at every local fit and a user can do nothing about."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*available but not used.*")
        # Of a machine with SLURM, where nobody has to use it.
        warnings.filterwarnings("ignore", message="The `srun` command is available on your system.*")
        # A frozen extractor is in eval mode on purpose.
        warnings.filterwarnings("ignore", message=".*in eval mode at the start of training.*")
        # Lightning's use of torch's tree utilities, deprecated in newer torch.
        warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*", category=FutureWarning)
        yield
