"""From the configuration of model, structure and pool to the networks of the server and of the clients."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import hydra
import torch
from omegaconf import DictConfig

from fedfeat.clients.architecture_pool import ArchitecturePool, PooledNetworks
from fedfeat.clients.local_trainer import dtype_of
from fedfeat.clients.networks import OneNetwork, separated
from fedfeat.clients.width_levels import WidthLevels, WidthNetworks
from fedfeat.commands.starts import Start, frozen, started
from fedfeat.config.made import held_to
from fedfeat.data.affected import weak_clients
from fedfeat.errors import ConfigError
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.network import Network, reading
from fedfeat.runs.data_facts import DataFacts
from fedfeat.seeding import derive_seed
from fedfeat.types import Networks

_log = logging.getLogger("fedfeat")


def build_networks(
    cfg: DictConfig,
    config: dict[str, Any],
    facts: DataFacts,
    choose_depth: Callable[[GroupSeparation, Callable[[], Network]], GroupSeparation],
) -> Networks:
    """Build the networks of the server and of the clients.

    Args:
        cfg: The composed configuration.
        config: The same, resolved, as plain values.
        facts: What a network needs to know of the data.
        choose_depth: Puts the depth into a group separation that leaves it open.

    Raises:
        ConfigError: Model, structure, pool and data do not fit each other.
    """
    given = Start.of(config["model"])
    model = hydra.utils.instantiate(
        {key: cfg.model[key] for key in cfg.model if key not in Start._fields}, _convert_="all"
    )
    builder = started(
        _networks_of(reading(model, facts.vocabulary), "model"), "model.{}", given.weights, given.fresh
    )
    structure = hydra.utils.instantiate(cfg.structure, _convert_="all")
    pool = hydra.utils.instantiate(cfg.pool, _convert_="all")
    seed = config["seed"]

    def base() -> Network:
        return builder(input_shape=facts.input_shape, num_classes=facts.num_classes)

    def seeded(make: Callable[[], Network]) -> Network:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "init"))
            # Drawn in float32 whatever the precision, so that runs of any start from the same numbers.
            return make().to(dtype_of(config["trainer"].get("precision")))

    if pool:
        if structure:
            raise ConfigError.rule("pool", "be none for networks with groups or levels (structure)", "a pool")
        if cfg.diagnostics:
            rule = "be none where neurons are compared (diagnostics), which takes one network at all clients"
            raise ConfigError(f"pool must {rule}, but it holds {', '.join(pool.models)}.")
        weak = weak_clients(seed, facts.num_clients, config["scenario"]["weak_fraction"])
        return _pooled(pool, base, seeded, facts, seed, weak, given.freeze)
    if not structure:
        return OneNetwork(lambda: frozen(seeded(base), given.freeze))
    if isinstance(structure, WidthLevels):
        return _of_levels(structure, lambda: seeded(base), config)
    if structure.depth == "auto":
        structure = choose_depth(structure, lambda: seeded(base))
    return separated(structure, base, seeded, facts.class_counts, facts.classes, seed)


def _networks_of(build: Callable[..., Any], key: str) -> Callable[..., Network]:
    """Give a builder that refuses what is no network.

    Args:
        build: The builder.
        key: Of its section.
    """

    def make(*, num_classes: int, **shape: Any) -> Network:
        network = held_to(Network, build(num_classes=num_classes, **shape), key)
        if network.last_layer.out_features < num_classes:
            rule = f"end with at least {num_classes} outputs, one for each class"
            raise ConfigError.rule(key, rule, network.last_layer)
        return network

    return make


def _of_levels(levels: WidthLevels, build: Callable[[], Network], config: dict[str, Any]) -> WidthNetworks:
    if config["diagnostics"]:
        rule = "be none for clients with fewer neurons (structure=widths)"
        raise ConfigError.rule("diagnostics", rule, "a comparison of neurons")
    networks = WidthNetworks(levels, build, config["seed"])
    _log.info("%s", networks.describe())
    return networks


def _pooled(
    pool: ArchitecturePool,
    base: Callable[[], Network],
    seeded: Callable[[Callable[[], Network]], Network],
    facts: DataFacts,
    seed: int,
    weak: frozenset[int],
    freeze: Sequence[str],
) -> PooledNetworks:
    weights, fresh = pool.weights or {}, pool.fresh or {}
    models = {
        name: started(
            _networks_of(reading(build, facts.vocabulary), f"pool.models.{name}"),
            f"pool.{{}}.{name}",
            weights.get(name),
            fresh.get(name, ()),
        )
        for name, build in pool.models.items()
    }
    shape = (facts.input_shape, facts.num_classes)
    mixed = PooledNetworks(
        replace(pool, models=models), base, seeded, *shape, facts.num_clients, seed, weak, freeze
    )
    _log.info("%s", mixed.describe())
    return mixed
