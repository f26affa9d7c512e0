"""Whether the halves of a method fit each other, the course of the rounds, the networks and the data."""

from collections.abc import Hashable

import hydra
import torch
from omegaconf import DictConfig

from fedfeat.client import ClientModule
from fedfeat.clients.worker import Worker
from fedfeat.errors import ConfigError, UserError
from fedfeat.models.freezing import still_keys
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
    _check_halves(module, server)
    server.check(module.model, setting)
    unequal = any(networks.key(k) is not None for k in range(worker.data.num_clients))
    if unequal and not server.accepts_unequal and not _share_alike(worker):
        raise UserError(
            f"algorithm/server must average unequal networks where clients have them (structure.trim=true, "
            f"structure=widths, or a pool whose networks share no layers of the same shapes, see "
            f"algorithm.client.personal and pool.head_width), but {type(server).__name__} cannot."
        )
    if unequal and server.needs_common_width:
        _check_widths(worker, setting)
    module.check(setting)
    _check_attendance(server, setting)


def _share_alike(worker: Worker) -> bool:
    """Whether clients of unequal networks send nothing, or tensors of the same names and shapes as the server's."""
    if not worker.module.shared_keys:
        return True
    clients = worker.networks.kinds(worker.data.num_clients)
    modules = [worker.module, *map(worker.module_of, clients)]
    shapes = [{key: own.model.state_dict()[key].shape for key in own.shared_keys} for own in modules]
    return bool(clients) and all(found == shapes[0] for found in shapes)


def _check_halves(module: ClientModule, server: Server) -> None:
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
    if server.needs_whole_model and (still := still_keys(module.model)):
        raise UserError(
            f"model.freeze must be [] for {type(server).__name__}, which takes whole networks, but {len(still)} "
            f"tensors are frozen, {still[0]} first."
        )


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


def _check_attendance(server: Server, setting: Setting) -> None:
    if not server.needs_everyone:
        return
    if setting.cohort_size < setting.num_clients:
        rule = f"be null or all {setting.num_clients} clients for algorithm={setting.algorithm}"
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
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in ((1, 1), (1,))]
    try:
        hydra.utils.instantiate(cfg.optimizer, _convert_="all")(parameters)
    except ValueError as error:
        made = cfg.optimizer["_target_"]
        raise ConfigError(f"optimizer must be what {made} takes, but that says: {error}") from error
