"""Entry point: compose, check, build, run the rounds, write the summary, return the sweep's metric.

Torch and Lightning take seconds to import, so nothing here imports them before the configuration has been accepted.
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from fedfeat import rundir
from fedfeat.errors import CheckpointError, UserError
from fedfeat.explain import as_user_error, explain
from fedfeat.files import atomic_write_text
from fedfeat.rules import check

if TYPE_CHECKING:
    from torch import nn

    from fedfeat.data.federated import FederatedData
    from fedfeat.experiment import Experiment
    from fedfeat.federation import Plan
    from fedfeat.fitting import LocalTrainer
    from fedfeat.loggers.base import RoundLogger

_CHECKOUT = Path(__file__).parents[2] / "configs"
CONFIGS = _CHECKOUT if _CHECKOUT.is_dir() else Path(__file__).parent / "configs"

_log = logging.getLogger("fedfeat")


def main() -> None:
    """Run the command line; an error is one sentence on stderr, with its stack trace only under ``debug=true``."""
    # Hydra otherwise prints its own error pages; with this it raises, and `explain` makes one sentence of it.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    with _one_sentence():
        _main()


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
def _main(cfg: DictConfig) -> float | None:
    # Inside Hydra's job too: it would print a line of its own for an error that passes through it.
    with _one_sentence():
        return run(cfg, Path(HydraConfig.get().runtime.output_dir))


@contextmanager
def _one_sentence() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print("Interrupted; the same command with the same hydra.run.dir goes on from here.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if any(argument.replace(" ", "").lower() == "debug=true" for argument in sys.argv[1:]):
            raise
        print(f"fedfeat: {explain(error)}", file=sys.stderr)
        sys.exit(1 if as_user_error(error) is None else 2)


def run(cfg: DictConfig, run_dir: Path) -> float | None:
    """Run one experiment in ``run_dir``, or go on with it, and give the metric a sweep optimises."""
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    check(config)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    rundir.check_same_config(run_dir, config)
    primary = _is_primary()
    if primary and config["resume"] == "never" and (run_dir / "config.yaml").exists():
        raise CheckpointError(
            f"hydra.run.dir must be a new directory under resume=never, but {run_dir} holds a run."
        )
    summary = rundir.finished_summary(run_dir)
    if summary is None:
        with rundir.locked(run_dir) if primary else nullcontext(), ExitStack() as stack:
            experiment = _build(cfg, config, run_dir)
            if primary:
                rundir.write_config(run_dir, OmegaConf.to_yaml(OmegaConf.create(config)), _hydra_files(cfg))
            summary = experiment.run(stack)
            if primary:
                _finish(experiment, summary)
    else:
        _log.info("The run in %s is finished; nothing to do.", run_dir)
    final = summary["final"]
    return final.get("global/acc", final.get("personal/acc_weighted"))


def _is_primary() -> bool:
    """Whether this process writes the run; false in those that ``ddp`` starts beside it."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))


def _build(cfg: DictConfig, config: dict[str, Any], run_dir: Path) -> "Experiment":
    from fedfeat.checkpoint import CheckpointFolder
    from fedfeat.experiment import Experiment
    from fedfeat.host import keep_freed_memory, set_threads
    from fedfeat.loggers.base import RunInfo
    from fedfeat.policy import describe
    from fedfeat.store import ClientStore
    from fedfeat.targets import check_targets
    from fedfeat.worker import Worker, WorkerSettings

    check_targets(config)
    federation = config["federation"]
    trainer: LocalTrainer = hydra.utils.instantiate(cfg.trainer, _convert_="all")
    data = _build_data(cfg, config, trainer)
    settings = WorkerSettings(
        seed=config["seed"],
        batch_size=federation["batch_size"],
        eval_batch_size=federation["eval_batch_size"],
        keep_optimizer=federation["opt_state"] == "keep",
    )
    client = hydra.utils.instantiate(cfg.algorithm.client, _convert_="all")
    optimizer = hydra.utils.instantiate(cfg.optimizer, _convert_="all")
    build_client = _with(client, optimizer=optimizer)
    build_model = _model_builder(cfg, config, data)
    executor = hydra.utils.instantiate(cfg.executor, _convert_="all")(
        lambda: Worker(data, build_model, build_client, trainer, settings)
    )
    module = executor.worker.module
    plan = _plan(cfg, config, data, module.model, bool(module.personal_keys))
    batch_size = data.largest_batch(federation["batch_size"])
    set_threads(trainer.num_threads, plan.flops_per_example * batch_size)
    keep_freed_memory()
    server = hydra.utils.instantiate(cfg.algorithm.server, _convert_="all")
    _check_halves(module, server)
    info = RunInfo(run_dir, config["name"], config["group"], config, federation["num_rounds"])
    _log.info("%s: %s", config["name"], describe(module.policies))
    return Experiment(
        info=info,
        config_sha256=rundir.config_sha256(config),
        algorithm=config["algorithm"]["name"],
        plan=plan,
        server=server,
        executor=executor,
        data=data,
        store=ClientStore(run_dir / "clients", int(federation["ram_budget_mb"] * 2**20)),
        checkpoints=CheckpointFolder(run_dir / "checkpoints"),
        loggers=_loggers(cfg) if _is_primary() else (),
        is_primary=_is_primary(),
        checkpoint_every=federation["checkpoint_every"],
        targets=federation["targets"],
    )


def _build_data(cfg: DictConfig, config: dict[str, Any], trainer: "LocalTrainer") -> "FederatedData":
    from fedfeat.data.federated import FederatedData
    from fedfeat.data.split_store import load_or_make

    dataset = hydra.utils.instantiate(cfg.data.loader, _convert_="all")
    transform = hydra.utils.instantiate(cfg.data.transform, _convert_="all")
    scheme = hydra.utils.instantiate(cfg.partition, _convert_="all")
    seed, num_clients = config["seed"], config["federation"]["num_clients"]
    split = load_or_make(scheme, dataset, num_clients, seed, Path(config["paths"]["cache"]))
    data = FederatedData(dataset, split, transform, seed=seed, device=trainer.device())
    return data.pooled() if config["algorithm"]["pooled"] else data


def _model_builder(
    cfg: DictConfig, config: dict[str, Any], data: "FederatedData"
) -> "Callable[[], nn.Module]":
    import torch

    from fedfeat.seeding import derive_seed

    builder = hydra.utils.instantiate(cfg.model, _convert_="all")

    def build() -> "nn.Module":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(config["seed"], "init"))
            return builder(input_shape=data.dataset.input_shape, num_classes=data.dataset.num_classes)

    return build


def _plan(
    cfg: DictConfig, config: dict[str, Any], data: "FederatedData", model: Any, personal: bool
) -> "Plan":
    from fedfeat.federation import Plan
    from fedfeat.models.flops import training_flops
    from fedfeat.sampling import cohort_size

    federation = config["federation"]
    pooled = config["algorithm"]["pooled"]
    size, fraction = (None, None) if pooled else (federation["cohort_size"], federation["fraction"])
    return Plan(
        seed=config["seed"],
        num_rounds=federation["num_rounds"],
        num_clients=data.num_clients,
        cohort_size=cohort_size(data.num_clients, size, fraction),
        local_epochs=federation["local_epochs"],
        local_steps=federation["local_steps"],
        eval_every=federation["eval_every"],
        lr_factor=hydra.utils.instantiate(cfg.schedule),
        straggler_fraction=federation["straggler_fraction"],
        drop_stragglers=federation["straggler_policy"] == "drop",
        skip_failed=federation["on_client_error"] == "skip",
        evaluate_local=federation["evaluate_local"],
        personal=personal,
        flops_per_example=float(training_flops(model)),
    )


def _with(build: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    return lambda **more: build(**arguments, **more)


def _check_halves(module: Any, server: Any) -> None:
    if module.payload_type is not server.payload_type:
        raise UserError(
            f"algorithm/client and algorithm/server must exchange the same payload, but {type(module).__name__} speaks "
            f"{module.payload_type.__name__} and {type(server).__name__} speaks {server.payload_type.__name__}."
        )


def _loggers(cfg: DictConfig) -> "list[RoundLogger]":
    from fedfeat.loggers.console import ConsoleLogger
    from fedfeat.loggers.csv_logger import CsvLogger

    chosen = hydra.utils.instantiate(cfg.logger, _convert_="all") or {}
    return list(({"csv": CsvLogger(), "console": ConsoleLogger()} | chosen).values())


def _finish(experiment: "Experiment", summary: dict[str, Any]) -> None:
    from fedfeat.figures import run_figures

    run_dir = experiment.info.run_dir
    for name, path in run_figures(run_dir, experiment.info.name).items():
        for logger in experiment.loggers:
            logger.picture(name, path)
    # Written last: its presence says that the run is finished.
    atomic_write_text(run_dir / "summary.json", json.dumps(summary, indent=2) + "\n")
    for logger in experiment.loggers:
        logger.finish(summary)


def _hydra_files(cfg: DictConfig) -> dict[str, str]:
    node = HydraConfig.get() if HydraConfig.initialized() else None
    files = {"config.yaml": OmegaConf.to_yaml(cfg)}
    if node is not None:
        files["hydra.yaml"] = OmegaConf.to_yaml(OmegaConf.create({"hydra": node}))
        files["overrides.yaml"] = OmegaConf.to_yaml(node.overrides.task)
    return files


if __name__ == "__main__":
    main()
