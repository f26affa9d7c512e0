"""One run in its directory: checked, begun or gone on with, and finished."""

import logging
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from fedfeat.commands.assembly import build_experiment, is_primary
from fedfeat.commands.parts import build_data
from fedfeat.config.explain import as_user_error, explain
from fedfeat.config.objective import check_objective
from fedfeat.config.rules import check, check_complete, check_presets
from fedfeat.errors import CheckpointError, ConfigError, DataError, UserError
from fedfeat.files import atomic_write_json, atomic_write_text
from fedfeat.runs import directory as rundir
from fedfeat.runs.client_values import write_client_values
from fedfeat.runs.data_facts import DataFacts, check_same_data
from fedfeat.runs.leftovers import sweep
from fedfeat.runs.own_code import note_own_code, warn_of_other_code
from fedfeat.runs.sweep_names import directory_name
from fedfeat.runs.weight_files import as_begun, check_same_weights, note_weights

if TYPE_CHECKING:
    from fedfeat.rounds.experiment import Experiment

_log = logging.getLogger("fedfeat")
OmegaConf.register_new_resolver("directory_name", directory_name, replace=True)
# What ``logger=quiet`` puts in the place of the console: a logger that says nothing.
_SILENT = "fedfeat.loggers.base.RoundLogger"


def checked(cfg: DictConfig) -> dict[str, Any]:
    """Give a composed configuration, resolved, as plain values.

    Raises:
        ConfigError: It breaks a rule.
    """
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    check_complete(config)
    check_presets(config)
    check(config, _chosen_groups())
    check_objective(config)
    return config


def perform(cfg: DictConfig, run_dir: Path) -> dict[str, Any]:
    """Run one experiment in a directory, or go on with it, and give its summary; of a finished one it is read.

    Args:
        cfg: The composed configuration without Hydra's own part.
        run_dir: Directory of the run.

    Raises:
        UserError: The configuration, the data or the directory are refused, or a client has failed.
    """
    with nothing_left(run_dir):
        config = checked(cfg)
    with _spoken(config):
        return _performed(cfg, config, run_dir)


@contextmanager
def nothing_left(run_dir: Path) -> Iterator[None]:
    """Remove the directory that Hydra has made for a run that is refused, unless something is in it."""
    try:
        yield
    except UserError:
        with suppress(OSError):  # it is missing, or holds something
            run_dir.rmdir()
        raise


def _performed(cfg: DictConfig, config: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    primary = is_primary(config)
    rundir.check_same_config(run_dir, as_begun(run_dir, config))
    if primary and config["resume"] == "never" and (run_dir / "config.yaml").exists():
        raise CheckpointError(
            f"hydra.run.dir must be a new directory under resume=never, but {run_dir} holds a run."
        )
    if primary:
        warn_of_other_code(run_dir, config)
    summary = rundir.finished_summary(run_dir)
    if summary is not None:
        _check_weights(config, run_dir)
        _check_examples(cfg, config, run_dir)
        _log.info("The run in %s is finished; nothing to do.", run_dir)
        return summary
    with rundir.locked(run_dir) if primary else nullcontext(), _noted(run_dir, primary), ExitStack() as stack:
        if primary:
            sweep(run_dir)
        experiment = build_experiment(cfg, config, run_dir)
        if primary:
            _write(experiment, cfg, config, run_dir)
        summary = experiment.run(stack)
        if primary:
            _finish(experiment, summary)
    return summary


def _check_weights(config: Mapping[str, Any], run_dir: Path) -> None:
    """Refuse a finished run that began with other weights than those that are asked for."""
    try:
        check_same_weights(run_dir, config)
    except ConfigError as error:
        _log.warning("Whether the run in %s had these weights is unknown: %s", run_dir, error)


def _check_examples(cfg: DictConfig, config: dict[str, Any], run_dir: Path) -> None:
    """Refuse a finished run of other examples than those asked for, where they lie elsewhere than its own did."""
    if not rundir.fingerprint_of(run_dir) or not (run_dir / "config.yaml").exists():
        return
    stored = rundir.stored_config(run_dir)
    if all(_root(stored, section) == _root(config, section) for section in ("data", "public")):
        return
    cfg = _without_downloads(cfg)
    from fedfeat.commands.slow_imports import import_slow

    import_slow()
    try:
        data = build_data(cfg, config, "cpu")
    except Exception as error:
        if not isinstance(refusal := as_user_error(error), DataError):
            raise
        _log.warning("Whether the run in %s had these data is unknown: %s", run_dir, refusal)
        return
    check_same_data(run_dir, data)


def _without_downloads(cfg: DictConfig) -> DictConfig:
    cfg = deepcopy(cfg)
    for loader in (cfg.data.loader, (cfg.get("public") or {}).get("loader")):
        if loader and "download" in loader:
            loader.download = False
    return cfg


def _root(config: Mapping[str, Any], section: str) -> Any:
    return (config.get(section) or {}).get("root")


def _write(experiment: "Experiment", cfg: DictConfig, config: dict[str, Any], run_dir: Path) -> None:
    """Write what a run directory holds before the first round."""
    with ExitStack() as undone:
        undone.callback(experiment.executor.close)  # the disk may be full
        note_own_code(run_dir, config)
        rundir.write_config(run_dir, OmegaConf.to_yaml(OmegaConf.create(config)), _hydra_files(cfg))
        DataFacts.of(experiment.data).write(run_dir)
        write_client_values(run_dir, config["partition"], experiment.data)
        note_weights(run_dir, config)
        experiment.executor.note(run_dir)
        undone.pop_all()


@contextmanager
def _noted(run_dir: Path, primary: bool) -> Iterator[None]:
    """Leave the sentence of an error in a run that has begun, for whoever looks at its directory alone."""
    path = run_dir / rundir.FAILURE
    if primary:
        path.unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        if primary and (run_dir / "config.yaml").exists():
            with suppress(OSError):  # the disk is full
                atomic_write_text(path, f"{explain(error, run_dir)}\n")
        raise


class _AboveTheBar(logging.Handler):
    """Write to what standard error is at that moment: while a bar is shown, that puts lines above it."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # a terminal that is gone ends no run
            print(self.format(record), file=sys.stderr, flush=True)


@contextmanager
def _spoken(config: dict[str, Any]) -> Iterator[None]:
    """Print what goes on; under ``logger=quiet``, and in processes that only lend their device, warnings alone."""
    console = (config["logger"] or {}).get("console") or {}
    before = _log.level
    if console.get("_target_") == _SILENT:
        # The level is given back: the next run of this process may be one that speaks.
        _log.setLevel(logging.WARNING)
    else:
        level = logging.INFO if is_primary(config) else logging.WARNING
        logging.basicConfig(level=level, format="%(message)s", handlers=[_AboveTheBar()])
    try:
        yield
    finally:
        _log.setLevel(before)


def _finish(experiment: "Experiment", summary: dict[str, Any]) -> None:
    from fedfeat.data.partition.picture import draw_split
    from fedfeat.runs.observed import draw_observed
    from fedfeat.runs.overview import draw_overview
    from fedfeat.runs.run_figure import run_figures

    run_dir, name, data = experiment.info.run_dir, experiment.info.name, experiment.data
    split = data.class_counts, data.dataset.classes
    pictures = draw_overview(run_dir, name, *split) | run_figures(run_dir, name)
    pictures |= draw_observed(run_dir) | draw_split(run_dir, *split)
    for name, path in pictures.items():
        for logger in experiment.loggers:
            logger.picture(name, path)
    _tell(experiment, summary)
    # Written last: its presence says that the run is finished.
    atomic_write_json(run_dir / "summary.json", summary)


def _tell(experiment: "Experiment", summary: dict[str, Any]) -> None:
    """Give all loggers the summary; an error of one, with which a run is not finished, is raised when all have it."""
    errors = list[Exception]()
    for logger in experiment.loggers:
        try:
            logger.finish(summary)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _chosen_groups() -> Collection[str]:
    """List the groups of which Hydra has taken an option, also those of a user's own folders."""
    if not HydraConfig.initialized():
        return ()
    choices = HydraConfig.get().runtime.choices
    return [group for group, choice in choices.items() if choice is not None]


def _hydra_files(cfg: DictConfig) -> dict[str, str]:
    node = HydraConfig.get() if HydraConfig.initialized() else None
    files = {"config.yaml": OmegaConf.to_yaml(cfg)}
    if node is not None:
        files["hydra.yaml"] = OmegaConf.to_yaml(OmegaConf.create({"hydra": node}))
        files["overrides.yaml"] = OmegaConf.to_yaml(node.overrides.task)
    return files
