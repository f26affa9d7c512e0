"""Entry point of the command line: compose, run, return the sweep's metric; an error is one sentence.

Torch and Lightning take seconds to import, so nothing here imports them before the configuration has been accepted.
"""

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fedfeat.commands.running import nothing_left, perform
from fedfeat.commands.slow_imports import collector_off
from fedfeat.config.choices import CONFIGS, check_arm, check_choices, shows_trace, with_trace
from fedfeat.config.command_line import check_options, options_first, wrapped_help
from fedfeat.config.explain import as_user_error, explain
from fedfeat.config.objective import objective_of
from fedfeat.config.search_path import typed_run_dir
from fedfeat.errors import ConfigError, UserError

_log = logging.getLogger("fedfeat")
_INTERRUPTED = 128 + signal.SIGINT
"""Exit status of what Ctrl-C has ended, as in shells."""
_ONLY_PRINT = {"--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i", "--version"}
"""Flags with which nothing is run."""
_outcomes: dict[str, bool] = {}
"""Whether each run of a sweep of this process has failed, by its overrides; a launcher's jobs are in others."""
# Here and not in `main`, for a job on a cluster begins with `_main`.
# The plugin has options of the same names, which Hydra takes as types of ours and calls that deprecated.
warnings.filterwarnings("ignore", r"\s*'hydra/launcher/submitit_\w+' is validated against", UserWarning)


def main() -> None:
    """Run the command line; an error is one sentence on stderr, with its stack trace only under ``debug``."""
    # Hydra otherwise prints its own error pages; with this it raises, and `explain` makes one sentence of it.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # `debug` is a group of options, and was a key before that.
    sys.argv[1:] = options_first(with_trace(sys.argv[1:]))
    _outcomes.clear()
    with _one_sentence(), collector_off():
        check_options(sys.argv[1:])
        check_choices(sys.argv[1:])
        with wrapped_help(sys.argv[1:]):
            _main()


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
def _main(cfg: DictConfig) -> float | None:
    job = HydraConfig.get()
    # Inside Hydra's job too: it would print a line of its own for an error that passes through it.
    place = Path(job.runtime.output_dir)
    with _of_sweep(" ".join(job.overrides.task)) if job.mode is RunMode.MULTIRUN else _one_sentence(place):
        with nothing_left(place):
            # As they were given: an interpolation in them may lead nowhere.
            check_arm(OmegaConf.to_container(job.overrides.task, resolve=False))  # type: ignore[arg-type]
            _check_launcher(job)
        return run(cfg, place)


def _check_launcher(job: HydraConf) -> None:
    """Refuse a launcher that nothing would use: a run without ``--multirun`` is one of this process."""
    launcher = job.runtime.choices.get("hydra/launcher")
    if job.mode is RunMode.RUN and launcher not in (None, "basic"):
        raise ConfigError.rule("hydra/launcher", "be basic without --multirun, which starts jobs", launcher)


@contextmanager
def _of_sweep(overrides: str) -> Iterator[None]:
    """Say at once that a run has failed; Hydra goes on with the others and raises the first error after the last."""
    _outcomes[overrides] = False
    try:
        try:
            yield
        except SystemExit as stop:
            if not isinstance(stop.__cause__, Exception):
                raise
            # submitit refuses another requeue. An exit would leave the waiting command without a result.
            raise UserError(str(stop.code)) from None
    except Exception as error:
        _outcomes[overrides] = True
        _log.error("%s: %s", overrides or "defaults", explain(error))
        # Of a job on a cluster, only the error itself comes back, without its causes.
        raise (as_user_error(error) or error) from None


@contextmanager
def _one_sentence(run_dir: Path | None = None) -> Iterator[None]:
    """End with one sentence where an error or Ctrl-C comes up; of a single run it names the directory to go on in."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        # Lightning turns Ctrl-C within a local fit into SystemExit(1); ours comes from within, and has been said.
        of_a_fit = isinstance(error.__context__, KeyboardInterrupt)
        if isinstance(error, SystemExit) and (error.code == _INTERRUPTED or not of_a_fit):
            raise
        place = "" if run_dir is None else f" with {typed_run_dir(run_dir)}"
        print(f"Interrupted; the same command{place} goes on from here.", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _ONLY_PRINT & {*sys.argv}:
            # Whoever reads, as `head` does, has seen enough; at its end Python would write once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(128 + signal.SIGPIPE)
        if shows_trace(sys.argv[1:]):
            raise
        print(f"fedfeat: {_counted()}{explain(error, run_dir)}", file=sys.stderr)
        sys.exit(1 if as_user_error(error) is None else 2)


def _counted() -> str:
    """Say how many runs of a sweep have failed, in front of the first one's sentence; "" where there are no others."""
    failed, all_runs = sum(_outcomes.values()), len(_outcomes)
    if all_runs < 2 or not failed:
        return ""
    return f"{failed} of {all_runs} runs failed{', the first' if failed > 1 else ''}: "


def run(cfg: DictConfig, run_dir: Path) -> float | None:
    """Run one experiment in ``run_dir``, or go on with it, and give the metric that a sweep optimises."""
    summary = perform(cfg, run_dir)
    found = objective_of(summary["final"], cfg.objective, cfg.federation.target_metric)
    if found is None:
        return None
    if HydraConfig.initialized() and HydraConfig.get().mode is RunMode.MULTIRUN:
        _log.info("objective: %s is %.6g after the last round", *found)
    return found[1]


if __name__ == "__main__":
    main()
