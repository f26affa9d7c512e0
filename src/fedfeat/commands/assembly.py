"""From the composed configuration to an `Experiment`: Hydra's ``_target_`` of each group, called in order."""

import logging
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig

from fedfeat.commands.parts import build_client, build_data
from fedfeat.commands.slow_imports import import_slow
from fedfeat.config.made import made
from fedfeat.runs import directory as rundir
from fedfeat.runs.weight_files import as_begun, check_same_weights

if TYPE_CHECKING:
    from fedfeat.clients.local_trainer import LocalTrainer
    from fedfeat.clients.worker import Worker
    from fedfeat.data.federated import FederatedData
    from fedfeat.executors.base import Executor
    from fedfeat.loggers.base import RoundLogger
    from fedfeat.rounds.experiment import Experiment
    from fedfeat.rounds.plan import Plan
    from fedfeat.server import Server

_log = logging.getLogger("fedfeat")


def is_primary(config: Mapping[str, Any]) -> bool:
    """Whether this process writes the run; false in those that ``ddp`` starts beside it.

    On one device there are none, whatever rank the environment of a job gives to the process.
    """
    trainer = config["trainer"]
    if (trainer["devices"], trainer.get("num_nodes", 1), trainer["strategy"]) == (1, 1, "auto"):
        return True
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))


def build_experiment(
    cfg: DictConfig, config: dict[str, Any], run_dir: Path, data: "FederatedData | None" = None
) -> "Experiment":
    """Build every part of an experiment.

    Args:
        cfg: The composed configuration.
        config: The same, resolved, as plain values.
        run_dir: Directory of the run.
        data: The federation's data; None are those of the configuration.

    Raises:
        UserError: A part refuses its configuration, or two parts do not fit.
    """
    import_slow()
    from fedfeat.clients.host import keep_freed_memory, set_threads
    from fedfeat.commands.compatibility import check_cached, check_method, try_parts
    from fedfeat.config.arguments import check_targets
    from fedfeat.models.policy import describe
    from fedfeat.runs.data_facts import check_same_data
    from fedfeat.server import Server

    check_targets(config)
    try_parts(cfg)
    check_same_weights(run_dir, config)
    trainer = _trainer(cfg)
    if data is None:
        data = build_data(cfg, config, trainer.device())
    check_same_data(run_dir, data)
    executor = _executor(cfg, config, data, trainer, run_dir)
    worker, module = executor.worker, executor.worker.module
    data = worker.data
    plan = _plan(cfg, config, data, worker)
    plan.check_work(data)
    set_threads(trainer.num_threads, module.flops_per_example * data.largest_batch(plan.batch_size))
    keep_freed_memory()
    server = made(cfg.algorithm.server, Server, "algorithm.server")  # type: ignore[type-abstract]
    check_cached(config["model"], server)
    name, keeps = config["algorithm"]["name"], worker.settings.keep_optimizer
    setting = plan.setting(name, keeps, data, trainer.averages_weights)
    check_method(worker, server, setting)
    executor.settle(run_dir, plan.course(data))
    if said := trainer.emulated(data.device):
        _log.warning(said)
    _log.info("%s: %s", config["name"], describe(module.policies))
    with ExitStack() as undone:
        undone.callback(executor.close)
        executor.start()  # after all refusals, which would leave its processes behind
        experiment = _experiment(cfg, config, run_dir, (plan, server, executor, data))
        undone.pop_all()
    return experiment


def _trainer(cfg: DictConfig) -> "LocalTrainer":
    callbacks = hydra.utils.instantiate(cfg.callbacks, _convert_="all") or {}
    trainer: LocalTrainer = hydra.utils.instantiate(cfg.trainer, _convert_="all")
    return replace(trainer, callbacks=tuple(callbacks.values()))


def _executor(
    cfg: DictConfig, config: dict[str, Any], data: "FederatedData", trainer: "LocalTrainer", run_dir: Path
) -> "Executor":
    from fedfeat.clients.turns import WorkerSettings
    from fedfeat.clients.worker import Worker
    from fedfeat.commands.auto_depth import warmed
    from fedfeat.commands.networks import build_networks
    from fedfeat.commands.starts import on_features
    from fedfeat.features.diagnostics import AlignmentProbe
    from fedfeat.runs.data_facts import DataFacts

    federation = config["federation"]
    settings = WorkerSettings(
        seed=config["seed"],
        batch_size=federation["batch_size"],
        eval_batch_size=federation["eval_batch_size"],
        keep_optimizer=federation["opt_state"] == "keep",
    )
    client = build_client(cfg)
    optimizer = client.keywords["optimizer"]
    probe = hydra.utils.instantiate(cfg.diagnostics, _convert_="all") or None
    depth = partial(warmed, data, optimizer, trainer, settings, probe or AlignmentProbe(), run_dir)
    networks = build_networks(cfg, config, DataFacts.of(data), depth)
    data, networks = on_features(config, data, networks, trainer)
    return hydra.utils.instantiate(cfg.executor, _convert_="all")(
        partial(Worker, data, networks, client, trainer=trainer, settings=settings, probe=probe)
    )


def _experiment(
    cfg: DictConfig,
    config: dict[str, Any],
    run_dir: Path,
    parts: "tuple[Plan, Server, Executor, FederatedData]",
) -> "Experiment":
    from fedfeat.commands.auto_depth import warm_up_cost
    from fedfeat.commands.run_info import run_info
    from fedfeat.rounds.experiment import Experiment
    from fedfeat.runs.checkpoint import CheckpointFolder, trusted_packages
    from fedfeat.runs.client_store import ClientStore

    federation, primary = config["federation"], is_primary(config)
    # What spills is written into the run directory, so a process that must not write keeps everything in RAM.
    budget = int(federation["ram_budget_mb"] * 2**20) if primary else sys.maxsize
    (plan, server, executor, data), trusted = parts, trusted_packages(config)
    return Experiment(
        info=run_info(config, run_dir, plan.num_rounds),
        config_sha256=rundir.config_sha256(as_begun(run_dir, config)),
        algorithm=config["algorithm"]["name"],
        plan=plan,
        server=server,
        executor=executor,
        data=data,
        store=ClientStore(run_dir / "clients", budget, trusted),
        checkpoints=CheckpointFolder(run_dir / "checkpoints", trusted=trusted),
        loggers=_loggers(cfg) if primary else (),
        is_primary=primary,
        repair=config["resume"] == "repair",
        checkpoint_every=federation["checkpoint_every"],
        targets=federation["targets"],
        target_metric=federation["target_metric"],
        stop_at=federation["stop_at"],
        objective=config["objective"],
        spent=warm_up_cost(run_dir),
    )


def _plan(cfg: DictConfig, config: dict[str, Any], data: "FederatedData", worker: "Worker") -> "Plan":
    from fedfeat.data.affected import weak_clients
    from fedfeat.rounds.plan import Plan
    from fedfeat.rounds.sampling import cohort_size

    federation, scenario, own = config["federation"], config["scenario"], worker.module
    pooled = config["algorithm"]["pooled"]
    size, fraction = (None, None) if pooled else (federation["cohort_size"], federation["fraction"])
    # Weak clients take part only where the pool has a network for them.
    share = 0.0 if (config["pool"] or {}).get("weak") else scenario["weak_fraction"]
    excluded = weak_clients(config["seed"], data.num_clients, share)
    if excluded:
        _log.info("%d weak clients take part in no round, for no pool has a network for them.", len(excluded))
    return Plan(
        seed=config["seed"],
        num_rounds=federation["num_rounds"],
        num_clients=data.num_clients,
        cohort_size=cohort_size(data.num_clients - len(excluded), size, fraction),
        local_epochs=federation["local_epochs"],
        local_steps=federation["local_steps"],
        batch_size=federation["batch_size"],
        eval_every=federation["eval_every"],
        lr_factor=hydra.utils.instantiate(cfg.schedule),
        sampler=hydra.utils.instantiate(cfg.sampler),
        straggler_fraction=scenario["straggler_fraction"],
        straggler_least=scenario["straggler_least"],
        drop_stragglers=scenario["straggler_policy"] == "drop",
        skip_failed=federation["on_client_error"] == "skip",
        evaluate_local=federation["evaluate_local"],
        final_epochs=federation["final_epochs"],
        excluded=excluded,
        personal=bool(own.personal_keys or own.keeps_model or worker.networks.kinds(data.num_clients)),
        probe=worker.probe,
        drop_singleton=worker.drop_singleton,
        world_size=worker.lightning.world_size,
    )


def _loggers(cfg: DictConfig) -> "list[RoundLogger]":
    from fedfeat.loggers.console import ConsoleLogger
    from fedfeat.loggers.csv_logger import CsvLogger

    chosen = hydra.utils.instantiate(cfg.logger, _convert_="all") or {}
    return list(({"csv": CsvLogger(), "console": ConsoleLogger()} | chosen).values())
