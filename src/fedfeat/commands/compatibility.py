"""Whether the halves of a method fit each other, the course of the rounds, the networks and the data."""

from collections.abc import Hashable, Mapping
from itertools import chain
from typing import Any

import hydra
import torch
from omegaconf import DictConfig
from torch import nn

from fedfeat.client import ClientModule
from fedfeat.clients.width_levels import WidthNetworks
from fedfeat.clients.worker import Worker
from fedfeat.errors import ConfigError, UserError
from fedfeat.executors.stacked.turns import has_phases
from fedfeat.models.freezing import moving_statistics, still_keys
from fedfeat.models.frozen import frozen_keys
from fedfeat.server import Server
from fedfeat.types import Setting


def check_method(worker: Worker, server: Server, setting: Setting) -> None:
    """Refuse a client half and a server half that do not fit each other or what they are given.

    What only one method knows, its halves refuse themselves.

    Args:
        worker: Has the client half around the server's network, the clients' networks and their data.
        server: The server half.
        setting: How the rounds go.

    Raises:
        UserError: What does not fit.
    """
    module, networks = worker.module, worker.networks
    for one in worker.kinds():
        _check_apart(one.model)
    _check_halves(module, server)
    _check_begun(module)
    for key, own in _kinds(worker):
        _check_sent(own, server)
        if server.rebuilds_networks:
            _check_form(own, networks.build(key), server)
    server.check(module.model, setting)
    _check_kept(worker, server, setting)
    unequal = any(networks.key(k) is not None for k in range(worker.data.num_clients))
    if unequal and not server.accepts_unequal and not _share_alike(worker):
        raise UserError(
            f"algorithm/server must average unequal networks where clients have them (structure.trim=true, "
            f"structure=widths, or a pool whose clients send layers of other shapes, see algorithm.client.personal and "
            f"pool.head_width, the width of all last layers, which lg_fedavg sends alone), but {type(server).__name__} "
            "cannot."
        )
    if unequal and server.needs_common_width:
        _check_widths(worker, setting)
    module.check(setting)
    _check_shared_fits(worker, setting)
    _check_attendance(server, setting)


def check_cached(model: Mapping[str, Any], server: Server) -> None:
    """Refuse frozen layers that clients never see, and with which the run could not be opened again.

    Args:
        model: The section of the configuration.
        server: The server half.
    """
    if model.get("cached") and server.matches_neurons:
        rule = f"be false for {type(server).__name__}, which matches the neurons of all layers"
        raise ConfigError.rule("model.cached", rule, True)


def _check_apart(model: nn.Module) -> None:
    """Refuse a network with a tensor at two places: what crosses the wire, is averaged and restored goes by places."""
    found: dict[int, str] = {}
    named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    for name, tensor in named:
        if (other := found.setdefault(id(tensor), name)) != name:
            raise UserError(
                f"model must have each of its tensors at one place, but {other} and {name} are one."
            )


def _check_begun(module: ClientModule) -> None:
    """Refuse what trains beside the network and begins a turn as the client before has left it."""
    kind, model = type(module), {id(parameter) for parameter in module.model.parameters()}
    beside = [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in model]
    if beside and (kind.receive, kind.begin_turn) == (ClientModule.receive, ClientModule.begin_turn):
        raise UserError(
            f"algorithm/client must set what trains beside its network in receive or begin_turn, but {kind.__name__} "
            f"leaves {beside[0]} as the client before has trained it."
        )


def _share_alike(worker: Worker) -> bool:
    """Whether clients of unequal networks send nothing, or tensors of the same names and shapes as the server's."""
    if not worker.module.shared_keys:
        return True
    clients = worker.networks.kinds(worker.data.num_clients)
    modules = [worker.module, *map(worker.module_of, clients)]
    shapes = [{key: own.model.state_dict()[key].shape for key in own.shared_keys} for own in modules]
    return bool(clients) and all(found == shapes[0] for found in shapes)


def _check_halves(module: ClientModule, server: Server) -> None:
    for half in (module, server):
        if not hasattr(half, "payload_type"):
            raise UserError(
                f"{type(half).__name__}.payload_type must be the record that it exchanges, but there is none."
            )
    if module.payload_type is not server.payload_type:
        raise UserError(
            f"algorithm/client and algorithm/server must exchange the same payload, but {type(module).__name__} speaks "
            f"{module.payload_type.__name__} and {type(server).__name__} speaks {server.payload_type.__name__}."
        )
    if module.personal_keys and server.needs_whole_model:
        raise UserError(
            f"algorithm.client.personal must be [] for {type(server).__name__}, which takes whole networks, but it "
            f"keeps {len(module.personal_keys)} tensors back, {module.personal_keys[0]} first."
        )
    if server.matches_neurons and (still := still_keys(module.model)):
        raise UserError(
            f"model.freeze must be [] for {type(server).__name__}, which matches the neurons of all layers, but "
            f"{len(still)} tensors are frozen, {still[0]} first."
        )


def _kinds(worker: Worker) -> list[tuple[Hashable, ClientModule]]:
    """Give a module of each kind of network that clients run, by the key of the network."""
    clients = worker.networks.kinds(worker.data.num_clients)
    return [(worker.networks.key(k), worker.module_of(k)) for k in clients] or [(None, worker.module)]


def _check_sent(module: ClientModule, server: Server) -> None:
    """Refuse tensors that the server half needs and nobody gives it; frozen ones follow from others."""
    model, name = module.model, type(module).__name__
    given = {*module.shared_keys, *module.personal_keys, *frozen_keys(model), *still_keys(model)}
    statistics = moving_statistics(model)
    if server.statistics != 0:
        given.update(statistics)
    left_out = [key for key in model.state_dict() if key not in given]
    if server.needs_whole_model and left_out:
        raise UserError(
            f"algorithm/client must send all of its network for {type(server).__name__}, which takes whole networks, "
            f"but {name} leaves {len(left_out)} tensors out, {left_out[0]} first."
        )
    if lost := [key for key in left_out if key in statistics]:
        raise UserError(
            f"algorithm/client must send or keep the running statistics of batch norm for {type(server).__name__}, "
            f"which takes none itself, but {name} leaves {len(lost)} of their tensors out, {lost[0]} first."
        )


def _check_form(module: ClientModule, made: nn.Module, server: Server) -> None:
    """Refuse a client half that has put something into its network, or taken it out."""
    forms = [{key: tensor.shape for key, tensor in net.state_dict().items()} for net in (module.model, made)]
    keys = dict.fromkeys([*forms[0], *forms[1]])
    if others := [key for key in keys if forms[0].get(key) != forms[1].get(key)]:
        raise UserError(
            f"algorithm/client must leave networks as they are for {type(server).__name__}, which makes them anew, but "
            f"{type(module).__name__} changes {len(others)} tensors, {others[0]} first."
        )


def _check_kept(worker: Worker, server: Server, setting: Setting) -> None:
    """Refuse tensors that are kept where in another round they may be of other channels, or too many or too few."""
    module, networks = worker.module, worker.networks
    keeps = bool(module.personal_keys) or module.keeps_model or module.keeps_tensors
    if server.accepts_changing and keeps:
        raise UserError(
            f"algorithm/client must keep no tensors for algorithm={setting.algorithm}, whose clients may hold other "
            f"channels in other rounds, but {type(module).__name__} does."
        )
    if not isinstance(networks, WidthNetworks) or not networks.dynamic:
        return
    if not server.accepts_changing:
        rule = (
            f"be false for algorithm={setting.algorithm}, which keeps clients' networks from round to round"
        )
        raise ConfigError.rule("structure.dynamic", rule, True)
    if setting.keeps_optimizer:
        rule = "be reset for clients whose levels change (structure.dynamic=true)"
        raise ConfigError.rule("federation.opt_state", rule, "keep")


def _check_widths(worker: Worker, setting: Setting) -> None:
    widths: dict[Hashable, int] = {}
    for k in range(worker.data.num_clients):
        key = worker.networks.key(k)
        if key in widths:
            continue
        widths[key] = worker.networks.build(key).last_layer.in_features
        if widths[key] != widths[worker.networks.key(0)]:
            raise UserError(
                f"algorithm={setting.algorithm} needs networks whose last layers all read as many numbers, which "
                f"pool.head_width gives to a pool, but that of client 0 reads {widths[worker.networks.key(0)]} and "
                f"that of client {k} reads {widths[key]}."
            )


def _check_shared_fits(worker: Worker, setting: Setting) -> None:
    """Refuse to share a fit whose phases train some parameters each, where processes wait for all at every step."""
    strategy, shared = worker.trainer.strategy, worker.lightning.world_size > 1
    if shared and has_phases(worker.module) and "find_unused_parameters" not in strategy:
        rule = f"be ddp_find_unused_parameters_true for algorithm={setting.algorithm}, which trains one half at a time"
        raise ConfigError.rule("trainer.strategy", rule, strategy)


def _check_attendance(server: Server, setting: Setting) -> None:
    if not server.needs_everyone:
        return
    if setting.cohort_size < setting.num_clients:
        everyone = f"all {setting.num_clients} clients (with scenario.weak_fraction=0)"
        rule = f"be null or {everyone} for algorithm={setting.algorithm}"
        raise ConfigError.rule("federation.cohort_size", rule, setting.cohort_size)
    if setting.drops_stragglers:
        rule = f"be partial for algorithm={setting.algorithm}, which needs all clients in every round"
        raise ConfigError.rule("scenario.straggler_policy", rule, "drop")


def try_parts(cfg: DictConfig) -> None:
    """Make once what needs no data, so that what constructors refuse is refused before data are read.

    Raises:
        ConfigError: A part refuses its arguments.
    """
    if cfg.pool:
        hydra.utils.instantiate(cfg.pool, _convert_="all")
    named = [
        (name, torch.nn.Parameter(torch.zeros(size))) for name, size in (("weight", (1, 1)), ("bias", (1,)))
    ]
    if "lr" not in cfg.optimizer:
        raise ConfigError("optimizer.lr must be set, for a round's rate is a share of it, but it is not.")
    maker = hydra.utils.instantiate(cfg.optimizer, _convert_="all")
    try:
        maker(
            named
            if getattr(getattr(maker, "func", None), "by_name", False)
            else [parameter for _, parameter in named]
        )
    except ValueError as error:
        made = cfg.optimizer["_target_"]
        raise ConfigError(f"optimizer must be what {made} takes, but that says: {error}") from error
