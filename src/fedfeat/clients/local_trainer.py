"""The Lightning Trainer of the local fits: its configuration, and what makes one Trainer serve many fits."""

import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments import LightningEnvironment
from pytorch_lightning.callbacks import ModelSummary, ProgressBar, StochasticWeightAveraging, WeightAveraging
from pytorch_lightning.loops import _FitLoop, _TrainingEpochLoop
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fedfeat.clients.callbacks import MeanLoss
from fedfeat.errors import ConfigError

# The fields on which it depends whether a Trainer can be built on a machine; of the rest, those that are given.
_MACHINE = ("accelerator", "devices", "strategy", "precision")

# Precisions whose weights and inputs are of another type than float32; the mixed ones have float32 weights.
_DTYPES: dict[str | int, torch.dtype] = {
    **dict.fromkeys((64, "64", "64-true"), torch.float64),
    "bf16-true": torch.bfloat16,
    "16-true": torch.float16,
}

_MIXED: dict[str | int, torch.dtype] = {
    **dict.fromkeys(("bf16", "bf16-mixed"), torch.bfloat16),
    **dict.fromkeys((16, "16", "16-mixed"), torch.float16),
}

# Arguments of Lightning that are only handed on.
_FURTHER = (
    *("limit_train_batches", "accumulate_grad_batches", "detect_anomaly", "profiler", "max_time"),
    *("benchmark", "sync_batchnorm", "num_nodes", "plugins", "barebones"),
)


_FIRST_SCALE = 2.0**12
"""Loss scale with which a fit under ``16-mixed`` begins: above PyTorch's 2**16 gradients of 1 overflow, and a fit of a
few steps would skip some of them until it has halved itself; here those up to 16 do not."""


def first_scaler(plugin: Any, precision: str | int | None) -> "torch.amp.GradScaler | None":
    """Give the gradient scaler with which every fit begins: one that was given with its plugin as it is, else ours."""
    found = getattr(plugin, "scaler", None)
    if found is None or precision is None:  # Lightning makes none for a plugin of one's own
        return deepcopy(found)
    return torch.amp.GradScaler(plugin.device, init_scale=_FIRST_SCALE)


class _Trainer(pl.Trainer):
    """A Trainer with new callbacks and loss scale in every fit: what one saw of a client is nothing to the next."""

    callbacks: list[pl.Callback]
    precision_plugin: Any

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._given = self._own = list(self.callbacks)
        self._limit = arguments.get("limit_train_batches")
        self._together = self.accumulate_grad_batches
        self._scaler = first_scaler(self.precision_plugin, arguments.get("precision"))

    def renew(self, steps_per_epoch: int) -> None:
        """Put copies of the callbacks and of the gradient scaler that were given in the place of the last fit's."""
        if isinstance(self._limit, float):  # Lightning refuses a share of less than one batch.
            self.limit_train_batches = max(int(self._limit * steps_per_epoch), 1)
        self.accumulate_grad_batches = self._together  # which callbacks may have changed
        if self._scaler is not None:
            self.precision_plugin.scaler = deepcopy(self._scaler)
        if self._given:
            added = [one for one in self.callbacks if all(one is not own for own in self._own)]
            self._own = deepcopy(self._given)
            self.callbacks = [*self._own, *added]

    def _run_stage(self) -> None:
        """Run the loop of a fit.

        Lightning's own keeps all generators around a sanity check, which local fits do not have: without a GPU that
        looks for NVIDIA's library at every fit, a sixth of a small client's turn.
        """
        self.strategy.barrier("run-stage")
        self.lightning_module.zero_grad()
        with torch.autograd.set_detect_anomaly(self._detect_anomaly):
            self.fit_loop.run()


@dataclass(frozen=True)
class LocalTrainer:
    """Configuration of every local Trainer: arguments of `pytorch_lightning.Trainer`, see there, and of our own.

    A Trainer fits one client at a time, so that devices, nodes, epochs and times are those of one client's fit.

    Attributes:
        strategy: ``auto``, or ``ddp`` for one client over several devices.
        num_threads: CPU threads of each process; see `clients.host.set_threads`.
        channels_last: Keep images and filters in the channels-last layout.
        compile: Compile the network with `torch.compile`.
        limit_train_batches: At most so many batches of each local epoch, or this share of them.
        max_time: Longest time of a local fit, e.g. ``00:00:01:30``.
        plugins: Lightning's plugins, in place of our own environment.
        callbacks: Lightning's callbacks; every fit has copies of its own. They find the mean loss of a local epoch
            under ``train/loss``.
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
    limit_train_batches: int | float | None = None
    accumulate_grad_batches: int = 1
    detect_anomaly: bool = False
    profiler: Any = None
    max_time: str | Mapping[str, int] | None = None
    benchmark: bool | None = None
    sync_batchnorm: bool = False
    num_nodes: int = 1
    plugins: Any = None
    barebones: bool = False
    callbacks: tuple[pl.Callback, ...] = ()

    def __post_init__(self) -> None:
        for name in ("", ".utilities.rank_zero", ".accelerators.cuda"):
            logging.getLogger(f"pytorch_lightning{name}").setLevel(logging.WARNING)
        # Part of deterministic mode: every new tensor is filled first, for programs that read uninitialised memory.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    @property
    def further(self) -> dict[str, Any]:
        """What is only handed on to Lightning, where it is another than the default."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: getattr(self, name) for name in _FURTHER if getattr(self, name) != defaults[name]}

    def build(self) -> pl.Trainer:
        """Build the Trainer of a worker; `begin_fit` readies it for every fit.

        A fit on one device is a cluster of its own, however this process was started: Lightning would take a SLURM
        job's tasks for its ranks and requeue the job from within a fit. Signals are the run's (`rounds.signals`).
        """
        alone = self.devices in (1, "1") and self.strategy == "auto"
        environment = {"plugins": LightningEnvironment()} if alone else {}
        given = {name: getattr(self, name) for name in (*_MACHINE, "gradient_clip_val", "deterministic")}
        shown = [any(isinstance(one, kind) for one in self.callbacks) for kind in (ProgressBar, ModelSummary)]
        with quiet():
            trainer = _Trainer(
                gradient_clip_algorithm=self.gradient_clip_algorithm if self.gradient_clip_val else None,
                max_epochs=1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=shown[0],
                enable_model_summary=shown[1],
                callbacks=[MeanLoss(), *self.callbacks] if self.callbacks else None,
                num_sanity_val_steps=0,
                use_distributed_sampler=False,
                **(given | environment | self.further),
            )
        if trainer.world_size == 1:
            # Lightning's registration, of SIGTERM above all, would end a run in the middle of a round.
            trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
            # On a GPU both would give PyTorch's free memory back, to be asked for anew in the next fit.
            trainer.accelerator.setup = lambda trainer: None  # type: ignore[method-assign]
            trainer.accelerator.teardown = lambda: None  # type: ignore[method-assign]
        return trainer

    @property
    def averages_weights(self) -> bool:
        """Whether a fit leaves a mean of its weights instead of the last ones."""
        return any(isinstance(one, StochasticWeightAveraging | WeightAveraging) for one in self.callbacks)

    def emulated(self, device: torch.device) -> str:
        """Say so where a processor has no bfloat16, which PyTorch then does number by number; empty elsewhere."""
        half = self.dtype is torch.bfloat16 or self.precision in _MIXED  # 16-mixed too, see `autocast`
        if not half or device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return ""
        return f"trainer.precision={self.precision} is emulated by this processor: some ten times slower than 32-true."

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights and inputs."""
        return dtype_of(self.precision)

    def device(self) -> torch.device:
        """Device on which data live and models are evaluated.

        Raises:
            ConfigError: Lightning cannot build the Trainer on this machine.
        """
        try:
            return self.build().strategy.root_device
        except (MisconfigurationException, ValueError, TypeError, ImportError, RuntimeError) as error:
            given = {key: getattr(self, key) for key in _MACHINE} | self.further
            values = ", ".join(f"{key}={value}" for key, value in given.items())
            raise ConfigError(
                f"trainer must fit this machine, but with {values} it does not: {error}"
            ) from error

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Context in which evaluation computes in the precision of the fits."""
        dtype = _MIXED.get(self.precision)
        if dtype is torch.float16 and device.type == "cpu":
            dtype = torch.bfloat16  # as Lightning has it there
        return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def dtype_of(precision: str | int | None) -> torch.dtype:
    """Give the type of weights and inputs under a precision of Lightning's; None is its default."""
    return _DTYPES.get(precision or "32-true", torch.float32)


def begin_fit(trainer: pl.Trainer, num_steps: int, steps_per_epoch: int) -> None:
    """Ready a Trainer for one more fit: as many epochs as ``num_steps`` need, the last one cut short.

    A Trainer that has reached its last epoch trains nothing on a second ``fit`` and says nothing, so every fit gets
    new loops. A new Trainer would do the same at 15 ms a fit, most of it a search for installed plugins.
    """
    if isinstance(trainer, _Trainer):
        trainer.renew(steps_per_epoch)
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
        # Of a client without a batch, which trains on nothing.
        warnings.filterwarnings("ignore", message="Total length of .* across ranks is zero")
        # Lightning's use of torch's tree utilities, deprecated in newer torch.
        warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*", category=FutureWarning)
        yield
