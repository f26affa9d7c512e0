"""Runs from Python, as the command line makes them: `run`, and `build` for parts to look at or to drive by hand."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from fedfeat.commands.assembly import build_experiment
from fedfeat.commands.running import checked, nothing_left, perform
from fedfeat.config.choices import CONFIGS, check_arm, check_choices, with_trace
from fedfeat.config.explain import as_user_error, explain, of_system
from fedfeat.errors import ConfigError, UserError

if TYPE_CHECKING:
    import torch

    from fedfeat.commands.loading import LoadedRun
    from fedfeat.data.federated import FederatedData
    from fedfeat.rounds.experiment import Experiment


class Outcome(NamedTuple):
    """What a run has left behind.

    Attributes:
        run_dir: Its directory.
        summary: What ``summary.json`` holds: ``final``, ``to_target``, ``weights_sha256`` and so on.
    """

    run_dir: Path
    summary: dict[str, Any]

    def load(self, device: "str | torch.device" = "cpu", trust: Sequence[str] = ()) -> "LoadedRun":
        """Open the directory: tables, configuration and models; see `loading.load`."""
        from fedfeat.commands.loading import load

        return load(self.run_dir, device, trust)


def run(overrides: Sequence[str] = ()) -> Outcome:
    """Run one experiment as ``fedfeat`` with the same words would, or go on with it in its directory.

    Args:
        overrides: The words of the command line, such as ``"data=cifar10"``; no quotes of a shell are needed around
            brackets. A folder of one's own: ``"hydra.searchpath=[file:///its/path]"`` (``--config-dir`` there).
            ``"logger=quiet"`` prints nothing but warnings.

    Returns:
        Run directory and summary. A finished run is not run again; its summary is read.

    Raises:
        UserError: The refusal that the command line would print, in one sentence.
    """
    with _refusals(), _job(overrides) as (cfg, run_dir):
        return Outcome(run_dir, perform(cfg, run_dir))


def build(overrides: Sequence[str] = (), data: "FederatedData | None" = None) -> "Experiment":
    """Build an experiment without running it.

    Its parts are attributes: ``data``, ``server``, ``plan``, ``executor`` and others. ``begin`` and ``rounds`` go
    through the rounds by hand; ``records`` does so as a run, with loggers and checkpoints. Who goes through them, or
    builds with another executor than the default, ends its processes: ``executor.close()``.

    Args:
        overrides: As in `run`.
        data: The federation's data; None are those of the configuration.

    Raises:
        UserError: As in `run`.
    """
    with _refusals(), _job(overrides) as (cfg, run_dir), nothing_left(run_dir):
        return build_experiment(cfg, checked(cfg), run_dir, data)


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise the refusal behind an error alone, and an interruption as what it is."""
    try:
        yield
    except SystemExit as stop:
        # Lightning turns Ctrl-C within a local fit into SystemExit(1), which would end a notebook.
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    except Exception as error:
        known = as_user_error(error)
        if known is None and (of_system(error) or isinstance(error, HydraException)):
            raise UserError(explain(error)) from error
        if known is None:
            raise
        raise known from None


def composed(overrides: Sequence[str] = (), name: str = "train") -> DictConfig:
    """Compose a configuration, with Hydra's own part; another application of Hydra around it stays as it is.

    Args:
        overrides: As in `run`.
        name: Its primary file.
    """
    if isinstance(overrides, str):
        raise ConfigError.rule("overrides", "be a list of words", overrides)
    for word in overrides:
        if not isinstance(word, str) or not word or word.startswith("-"):
            rule = (
                "be words such as data=cifar10, and none of the command line's options (docs/api/python.md)"
            )
            raise ConfigError.rule("overrides", rule, word)
    words = with_trace(overrides)
    check_choices(words)
    check_arm(words)
    around, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with initialize_config_dir(str(CONFIGS), job_name="fedfeat", version_base="1.3"):
            return compose(name, words, return_hydra_config=True)
    finally:
        GlobalHydra.instance().hydra = around


def accepted(overrides: Sequence[str] = ()) -> tuple[DictConfig, dict[str, Any]]:
    """Give a configuration as Hydra's and as plain values, checked as a run checks it before it begins.

    Raises:
        UserError: As in `run`.
    """
    hydra_config = HydraConfig.instance()
    before = hydra_config.cfg
    with _refusals():
        cfg = composed(overrides)
        try:
            hydra_config.set_config(cfg)
            return cfg, checked(OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"]))
        finally:
            hydra_config.cfg = before


def tried(overrides: Sequence[str] = ()) -> tuple[DictConfig, dict[str, Any]]:
    """Give it as `accepted` does, with the arguments of all parts checked too, which takes seconds of imports.

    Raises:
        UserError: As in `run`.
    """
    from fedfeat.commands.compatibility import try_parts
    from fedfeat.config.arguments import check_targets

    cfg, config = accepted(overrides)
    check_targets(config)
    try_parts(cfg)
    return cfg, config


@contextmanager
def _job(overrides: Sequence[str]) -> Iterator[tuple[DictConfig, Path]]:
    """Compose a configuration and be Hydra's job with it: in its run directory, and with ``${hydra:...}`` known."""
    cfg = composed(overrides)
    hydra_config = HydraConfig.instance()
    before = hydra_config.cfg
    try:
        hydra_config.set_config(cfg)
        run_dir = Path(cfg.hydra.run.dir)
        with read_write(cfg.hydra.runtime), open_dict(cfg.hydra.runtime):
            cfg.hydra.runtime.output_dir = str(run_dir.absolute())
        hydra_config.set_config(cfg)
        run_dir.mkdir(parents=True, exist_ok=True)
        with read_write(cfg), open_dict(cfg):
            del cfg["hydra"]
        yield cfg, run_dir
    finally:
        hydra_config.cfg = before
