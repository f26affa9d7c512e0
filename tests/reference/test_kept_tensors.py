"""Clients that keep tensors are refused where their channels change; what keeps none runs there."""

import inspect
from functools import partial
from importlib import import_module
from pkgutil import iter_modules

import pytest
from float64_runs import steps_of
from harness import SETTING, parties

from fedfeat import algorithms
from fedfeat.algorithms.fd import FDClient, FDServer
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.feddf import FedDFServer
from fedfeat.algorithms.feddyn import FedDynClient
from fedfeat.algorithms.fedopt import FedAvgMServer
from fedfeat.algorithms.fedprox import FedProxClient
from fedfeat.algorithms.fedrod import FedRoDClient
from fedfeat.algorithms.fedrolex import FedRolexServer
from fedfeat.algorithms.heterofl import HeteroFLClient, HeteroFLServer
from fedfeat.algorithms.moon import MoonClient
from fedfeat.client import ClientModule, joined
from fedfeat.clients.width_levels import WidthLevels, WidthNetworks
from fedfeat.commands.compatibility import check_method
from fedfeat.errors import ConfigError, UserError
from fedfeat.models.mlp import mlp


def check(folder, client, server, dynamic=False, setting=SETTING):
    networks = WidthNetworks(WidthLevels((1.0, 0.5), dynamic), lambda: mlp((4,), 3, hidden=[4]), 0)
    federation = parties(folder, client=client, server=server, networks=networks)
    check_method(federation.executor.worker, server, setting)


KEEPING = {
    "moon": partial(MoonClient, projection=None),
    "feddyn": FedDynClient,
    "a model of its own": FedRoDClient,
    "in another half": partial(joined, halves=[FedProxClient, MoonClient], projection=None),
}
SERVERS = {
    "heterofl": HeteroFLServer,
    "fedrolex": FedRolexServer,
    "fedavgm around it": lambda: FedAvgMServer(average=HeteroFLServer()),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", KEEPING)
def test_tensors_of_channels_that_may_be_others_are_refused(client, server, dynamic, tmp_path):
    sentence = (
        r"^algorithm/client must keep no tensors for algorithm=any, whose clients may hold other channels in other "
        r"rounds, but \w+ does\.$"
    )
    with pytest.raises(UserError, match=sentence):
        check(tmp_path, KEEPING[client], SERVERS[server](), dynamic)


LEVELS = {
    "fd": (partial(FDClient, personal=["all"]), FDServer),
    "local": (partial(ClientModule, personal=["all"]), FedAvgServer),
    "feddf, whose server keeps them": (
        ClientModule,
        lambda: FedDFServer(FedAvgServer(), source="train_pool"),
    ),
}


@pytest.mark.parametrize("name", LEVELS)
def test_levels_that_change_are_refused_where_networks_are_kept(name, tmp_path):
    client, server = LEVELS[name]
    sentence = (
        r"^structure\.dynamic must be false for algorithm=any, which keeps clients' networks from round to round, "
        r"but it is True\.$"
    )
    with pytest.raises(ConfigError, match=sentence):
        check(tmp_path, client, server(), dynamic=True)
    check(tmp_path, client, server())


@pytest.mark.parametrize("client", [HeteroFLClient, ClientModule, FedProxClient])
@pytest.mark.parametrize("server", SERVERS)
def test_momentum_of_levels_that_change_is_refused(server, client, tmp_path):
    check(tmp_path, client, SERVERS[server](), dynamic=True)
    sentence = r"^federation\.opt_state must be reset for .*, but it is 'keep'\.$"
    with pytest.raises(ConfigError, match=sentence):
        check(tmp_path, client, SERVERS[server](), True, SETTING._replace(keeps_optimizer=True))


RUNS = {
    "heterofl": ("algorithm=heterofl",),
    "dynamic": ("algorithm=heterofl", "structure.dynamic=true"),
    "fedrolex": ("algorithm=fedrolex",),
    "fedprox under heterofl": ("algorithm=heterofl", "algorithm/client=fedprox", "structure.dynamic=true"),
    "fedadam around heterofl": (
        "algorithm=fedadam",
        "algorithm/server@algorithm.server.average=heterofl",
        "structure=widths",
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_what_keeps_nothing_runs(name, tmp_path):
    _, steps = steps_of(tmp_path, *RUNS[name], "structure.levels=[1.0,0.5]")
    assert [record.round_idx for _, record in steps] == [0, 1, 2, 3]


def halves():
    """All client halves that are ours."""
    for found in iter_modules(algorithms.__path__):
        module = import_module(f"{algorithms.__name__}.{found.name}")
        for one in vars(module).values():
            if isinstance(one, type) and issubclass(one, ClientModule) and one.__module__ == module.__name__:
                yield one


def test_every_half_with_a_memory_says_whether_it_keeps_tensors():
    """By what an upload is written to give; a count of turns (FedMD's) has no network's shape."""
    for half in halves():
        gives = str(inspect.signature(half.upload).return_annotation)
        remembers = not gives.endswith((", None]", ", typing.Any]", ", Any]"))
        assert not remembers or half.keeps_model or half.keeps_tensors or "TurnCount" in gives, half
        assert remembers or not half.keeps_tensors, half
