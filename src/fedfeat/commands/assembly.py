"""From the composed configuration to an `Experiment`: Hydra's ``_target_`` of each group, called in order."""

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig

from fedfeat.errors import ConfigError
from fedfeat.runs import directory as rundir

if TYPE_CHECKING:
    from fedfeat.clients.local_trainer import LocalTrainer
    from fedfeat.clients.turns import WorkerSettings
    from fedfeat.data.federated import FederatedData
    from fedfeat.loggers.base import RoundLogger
    from fedfeat.models.grouped import GroupSeparation
    from fedfeat.models.network import Network
    from fedfeat.rounds.experiment import Experiment
    from fedfeat.rounds.plan import Plan
    from fedfeat.types import Networks

_log = logging.getLogger("fedfeat")


def is_primary() -> bool:
    """Whether this process writes the run; false in those that ``ddp`` starts beside it."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))


def build_experiment(cfg: DictConfig, config: dict[str, Any], run_dir: Path) -> "Experiment":
    """Build every part of an experiment.

    Args:
        cfg: The composed configuration.
        config: The same, resolved, as plain values.
        run_dir: Directory of the run.

    Raises:
        UserError: A part refuses its configuration, or two parts do not fit.
    """
    from fedfeat.clients.host import keep_freed_memory, set_threads
    from fedfeat.clients.turns import WorkerSettings
    from fedfeat.clients.worker import Worker
    from fedfeat.commands.compatibility import check_method
    from fedfeat.config.arguments import check_targets
    from fedfeat.loggers.base import RunInfo
    from fedfeat.models.policy import describe
    from fedfeat.rounds.experiment import Experiment
    from fedfeat.runs.checkpoint import CheckpointFolder
    from fedfeat.runs.client_store import ClientStore

    check_targets(config)
    federation = config["federation"]
    callbacks = hydra.utils.instantiate(cfg.callbacks, _convert_="all") or {}
    trainer: LocalTrainer = hydra.utils.instantiate(cfg.trainer, _convert_="all")
    trainer = replace(trainer, callbacks=tuple(callbacks.values()))
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
    networks = _networks(
        cfg, config, data, partial(_warmed_depth, data, optimizer, trainer, settings, run_dir)
    )
    probe = hydra.utils.instantiate(cfg.diagnostics, _convert_="all") or None
    executor = hydra.utils.instantiate(cfg.executor, _convert_="all")(
        partial(Worker, data, networks, build_client, trainer=trainer, settings=settings, probe=probe)
    )
    module = executor.worker.module
    plan = replace(
        _plan(cfg, config, data, bool(module.personal_keys) or module.keeps_model),
        probe=probe,
        drop_singleton=executor.worker.drop_singleton,
        world_size=executor.worker.lightning.world_size,
    )
    batch_size = data.largest_batch(federation["batch_size"])
    set_threads(trainer.num_threads, module.flops_per_example * batch_size)
    keep_freed_memory()
    server = hydra.utils.instantiate(cfg.algorithm.server, _convert_="all")
    setting = plan.setting(config["algorithm"]["name"], settings.keep_optimizer, data)
    check_method(module, server, setting, networks, data)
    # After all refusals, which would leave its processes behind.
    executor.start()
    info = RunInfo(run_dir, config["name"], config["group"], config, federation["num_rounds"])
    # What spills is written into the run directory, so a process that must not write keeps everything in RAM.
    ram_budget = int(federation["ram_budget_mb"] * 2**20) if is_primary() else sys.maxsize
    _log.info("%s: %s", config["name"], describe(module.policies))
    return Experiment(
        info=info,
        config_sha256=rundir.config_sha256(config),
        algorithm=config["algorithm"]["name"],
        plan=plan,
        server=server,
        executor=executor,
        data=data,
        store=ClientStore(run_dir / "clients", ram_budget),
        checkpoints=CheckpointFolder(run_dir / "checkpoints"),
        loggers=_loggers(cfg) if is_primary() else (),
        is_primary=is_primary(),
        checkpoint_every=federation["checkpoint_every"],
        targets=federation["targets"],
        target_metric=federation["target_metric"],
    )


def _build_data(cfg: DictConfig, config: dict[str, Any], trainer: "LocalTrainer") -> "FederatedData":
    from fedfeat.data.federated import FederatedData
    from fedfeat.data.partition.split_store import load_or_make

    dataset = hydra.utils.instantiate(cfg.data.loader, _convert_="all")
    transform = hydra.utils.instantiate(cfg.data.transform, _convert_="all")
    scheme = hydra.utils.instantiate(cfg.partition, _convert_="all")
    seed, federation, scenario = config["seed"], config["federation"], config["scenario"]
    split = load_or_make(scheme, dataset, federation["num_clients"], seed, Path(config["paths"]["cache"]))
    public = (
        hydra.utils.instantiate(config["public"]["loader"], _convert_="all") if "public" in config else None
    )
    data = FederatedData(dataset, split, transform, seed=seed, device=trainer.device(), public=public)
    data = data.without(federation["held_out"])
    data = data.reduced(scenario["reduced_fraction"], scenario["reduced_to"], seed)
    return data.pooled() if config["algorithm"]["pooled"] else data


def _warmed_depth(
    data: "FederatedData",
    optimizer: Any,
    trainer: "LocalTrainer",
    settings: "WorkerSettings",
    run_dir: Path,
    structure: "GroupSeparation",
    build: "Callable[[], Network]",
) -> "GroupSeparation":
    from fedfeat.commands.auto_depth import depth_by_warmup

    return replace(
        structure, depth=depth_by_warmup(structure, build, data, optimizer, trainer, settings, run_dir)
    )


def _networks(
    cfg: DictConfig,
    config: dict[str, Any],
    data: "FederatedData",
    choose_depth: Callable[..., "GroupSeparation"],
) -> "Networks":
    import torch

    from fedfeat.clients.architecture_pool import PooledNetworks
    from fedfeat.clients.networks import OneNetwork, separated
    from fedfeat.data.affected import weak_clients
    from fedfeat.models.network import reading
    from fedfeat.seeding import derive_seed

    builder = hydra.utils.instantiate(cfg.model, _convert_="all")
    structure = hydra.utils.instantiate(cfg.structure, _convert_="all")
    pool = hydra.utils.instantiate(cfg.pool, _convert_="all")
    dataset, seed = data.dataset, config["seed"]
    builder = reading(builder, dataset.vocabulary)

    def base() -> "Network":
        return builder(input_shape=dataset.input_shape, num_classes=dataset.num_classes)

    def seeded(make: "Callable[[], Network]") -> "Network":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "init"))
            return make()

    if pool:
        if structure:
            raise ConfigError.rule("pool", "be none for networks with groups (structure)", "a pool")
        if cfg.diagnostics:
            raise ConfigError.rule("pool", "be none for neurons to be compared (diagnostics)", "a pool")
        shape = (dataset.input_shape, dataset.num_classes)
        models = {name: reading(build, dataset.vocabulary) for name, build in pool.models.items()}
        weak = weak_clients(seed, data.num_clients, config["scenario"]["weak_fraction"])
        pool = replace(pool, models=models)
        mixed = PooledNetworks(pool, base, seeded, *shape, data.num_clients, seed, weak)
        _log.info("%s", mixed.describe())
        return mixed
    if not structure:
        return OneNetwork(lambda: seeded(base))
    if structure.depth == "auto":
        structure = choose_depth(structure, lambda: seeded(base))
    return separated(structure, base, seeded, data.class_counts, tuple(dataset.classes), seed)


def _plan(cfg: DictConfig, config: dict[str, Any], data: "FederatedData", personal: bool) -> "Plan":
    from fedfeat.data.affected import weak_clients
    from fedfeat.rounds.plan import Plan
    from fedfeat.rounds.sampling import cohort_size

    federation, scenario = config["federation"], config["scenario"]
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
        drop_stragglers=scenario["straggler_policy"] == "drop",
        skip_failed=federation["on_client_error"] == "skip",
        evaluate_local=federation["evaluate_local"],
        final_epochs=federation["final_epochs"],
        excluded=excluded,
        personal=personal,
    )


def _with(build: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    return lambda **more: build(**arguments, **more)


def _loggers(cfg: DictConfig) -> "list[RoundLogger]":
    from fedfeat.loggers.console import ConsoleLogger
    from fedfeat.loggers.csv_logger import CsvLogger

    chosen = hydra.utils.instantiate(cfg.logger, _convert_="all") or {}
    return list(({"csv": CsvLogger(), "console": ConsoleLogger()} | chosen).values())
