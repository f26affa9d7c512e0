"""Halves of a method that do not fit each other are refused before the first round, whatever their names."""

from functools import partial

import pytest
import torch
from harness import SETTING, network_of, parties
from omegaconf import OmegaConf
from torch import nn

from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedbabu import FedBABUClient
from fedfeat.algorithms.feddf import FedDFServer
from fedfeat.algorithms.fedfusion import FedFusionClient, FedFusionServer
from fedfeat.algorithms.fedma import FedMAClient, FedMAServer
from fedfeat.algorithms.fedopt import FedAvgMServer
from fedfeat.algorithms.fedrolex import FedRolexServer
from fedfeat.algorithms.heterofl import HeteroFLClient, HeteroFLServer
from fedfeat.algorithms.moon import MoonClient
from fedfeat.algorithms.ot_fusion import OTFusionServer
from fedfeat.algorithms.pfnm import OneShotFedMAServer, PFNMClient, PFNMServer
from fedfeat.client import ClientModule, joined
from fedfeat.clients.width_levels import WidthLevels, WidthNetworks
from fedfeat.commands.compatibility import check_method, try_parts
from fedfeat.errors import ConfigError, UserError
from fedfeat.features.matching import BBPMap
from fedfeat.models.blocks import conv_block, fc_blocks
from fedfeat.models.freezing import freeze
from fedfeat.models.mlp import mlp
from fedfeat.models.network import Network

MATCHING = BBPMap()
LAYERS = partial(mlp, (4,), 3, hidden=[5])
WHOLE = r"which takes whole networks, but "


def normed(*frozen):
    """A convolution with batch norm and a linear layer."""
    made = Network([("conv1", conv_block(2, 6, 1, norm="bn"))], fc_blocks(12, [], 3), (2, 1, 2), 3)
    freeze(made, frozen, "model.freeze")
    return made


def check(folder, client, server, build_model=LAYERS, networks=None):
    federation = parties(folder, client=client, server=server, build_model=build_model, networks=networks)
    check_method(federation.executor.worker, server, SETTING)


def with_babu(kind):
    return partial(joined, halves=[kind, FedBABUClient])


def distilling():
    return FedDFServer(FedAvgServer(), source="train_pool")


REFUSED = {
    "FedBABU under FedDF": (
        FedBABUClient, distilling, LAYERS,
        rf"algorithm/client must send all of its network for FedDFServer, {WHOLE}"
        r"FedBABUClient leaves 2 tensors out, head\.fc2\.linear\.weight first\.",
    ),
    "FedBABU under OT fusion": (
        FedBABUClient, OTFusionServer, LAYERS, rf"for OTFusionServer, {WHOLE}FedBABUClient leaves 2 tensors out, ",
    ),
    "FedBABU under FedMA": (
        with_babu(FedMAClient), partial(FedMAServer, MATCHING), LAYERS,
        rf"for FedMAServer, {WHOLE}FedMAClientAndFedBABUClient leaves 2 tensors out, ",
    ),
    "FedBABU under PFNM": (
        with_babu(PFNMClient), partial(PFNMServer, MATCHING), LAYERS, rf"for PFNMServer, {WHOLE}.* leaves 2 tensors",
    ),
    "FedBABU under FedMA in one shot": (
        with_babu(PFNMClient), partial(OneShotFedMAServer, MATCHING), LAYERS, rf"for OneShotFedMAServer, {WHOLE}",
    ),
    "MOON's projection under FedDF": (
        MoonClient, distilling, LAYERS,
        r"algorithm/client must leave networks as they are for FedDFServer, which makes them anew, but MoonClient "
        r"changes 5 tensors, head\.fc2\.projection\.in\.weight first\.",
    ),
    "FedFusion under FedDF": (
        FedFusionClient, distilling, normed,
        r"must leave networks as they are for FedDFServer, which .* FedFusionClient changes 8 tensors, fusion\.op",
    ),
    "static batch norm under FedAvg": (
        HeteroFLClient, FedAvgServer, normed,
        r"algorithm/client must send or keep the running statistics of batch norm for FedAvgServer, which takes none "
        r"itself, but HeteroFLClient leaves 3 of their tensors out, encoder\.conv1\.norm\.running_mean first\.",
    ),
    "static batch norm under another half around FedAvg": (
        HeteroFLClient, lambda: FedAvgMServer(average=FedAvgServer()), normed, r"for FedAvgMServer, which takes none",
    ),
    "static batch norm under FedDF, whose teachers have none": (
        HeteroFLClient, distilling, normed,
        rf"for FedDFServer, {WHOLE}HeteroFLClient leaves 3 tensors out, encoder\.conv1\.norm\.running_mean first\.",
    ),
    "fixed batch norm under FedAvg": (
        partial(FedBABUClient, fixed=["norm"]), FedAvgServer, normed, r"FedBABUClient leaves 3 of their tensors out, ",
    ),
    "a fixed layer under HeteroFL": (
        FedBABUClient, HeteroFLServer, normed, rf"for HeteroFLServer, {WHOLE}FedBABUClient leaves 2 tensors out, head",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_halves_that_do_not_fit_are_refused_in_one_sentence(name, tmp_path):
    client, server, build_model, sentence = REFUSED[name]
    with pytest.raises(UserError, match=sentence) as refused:
        check(tmp_path, client, server(), build_model)
    assert "\n" not in str(refused.value)


FITTING = {
    "FedBABU under FedAvg": (FedBABUClient, FedAvgServer, LAYERS),
    "FedBABU that fixes nothing under FedDF": (partial(FedBABUClient, fixed=[]), distilling, LAYERS),
    "FedBABU with batch norm in its body": (FedBABUClient, FedAvgServer, normed),
    "MOON without projection under FedDF": (partial(MoonClient, projection=None), distilling, LAYERS),
    "MOON under FedAvg": (MoonClient, FedAvgServer, LAYERS),
    "FedFusion, whose frozen copies have batch norm": (
        FedFusionClient, lambda: FedFusionServer(FedAvgServer()), normed,
    ),
    "batch norm that is sent": (ClientModule, distilling, normed),
    "batch norm that is kept": (partial(ClientModule, personal=["norm"]), FedAvgServer, normed),
    "static batch norm that is frozen": (HeteroFLClient, FedAvgServer, partial(normed, "norm")),
    "static batch norm of a network without any": (HeteroFLClient, FedAvgServer, LAYERS),
    "FedMA": (FedMAClient, partial(FedMAServer, MATCHING), LAYERS),
    "PFNM": (PFNMClient, partial(PFNMServer, MATCHING), LAYERS),
}  # fmt: skip


@pytest.mark.parametrize("name", FITTING)
def test_halves_that_fit_are_accepted(name, tmp_path):
    client, server, build_model = FITTING[name]
    check(tmp_path, client, server(), build_model)


@pytest.mark.parametrize(
    "server", [HeteroFLServer, FedRolexServer, lambda: FedAvgMServer(average=HeteroFLServer(statistics=None))]
)
@pytest.mark.parametrize("client", [HeteroFLClient, ClientModule])
def test_who_takes_the_statistics_itself_need_not_be_sent_them(client, server, tmp_path):
    networks = WidthNetworks(WidthLevels((1.0, 0.5)), normed, 0)
    check(tmp_path, client, server(), networks=networks)


class TwoKinds:
    """Client 2 has another network than the server's."""

    def key(self, client_id, round_idx=0):
        return "normed" if client_id == 2 else None

    def kinds(self, num_clients):
        return [0, 2]

    def build(self, key=None):
        return network_of(nn.Linear(4, 3)) if key is None else network_of(nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_every_kind_of_network_is_looked_at(tmp_path):
    sentence = (
        rf"for FedDFServer, {WHOLE}HeteroFLClient leaves 3 tensors out, head\.all\.0\.running_mean first\."
    )
    with pytest.raises(UserError, match=sentence):
        check(tmp_path, HeteroFLClient, distilling(), networks=TwoKinds())
    check(tmp_path, ClientModule, distilling(), networks=TwoKinds())


class Counted(ClientModule):
    """A half that puts a buffer of its own into the network; it is sent as the rest is."""

    def __init__(self, *, model, **arguments):
        model.register_buffer("count", torch.zeros(()))
        super().__init__(model=model, **arguments)


def test_what_a_half_of_ones_own_puts_into_a_network_is_named(tmp_path):
    with pytest.raises(UserError, match=r"but Counted changes 1 tensors, count first\."):
        check(tmp_path, Counted, distilling())
    check(tmp_path, Counted, FedAvgServer())


def tied():
    made = mlp((4,), 3, hidden=[5, 5, 5])
    made.encoder.fc3.linear.weight = made.encoder.fc2.linear.weight
    return made


def test_a_tensor_at_two_places_is_refused(tmp_path):
    """Stacked, its second name would be what nobody has trained, and undo the first one's training."""
    with pytest.raises(
        UserError, match=r"^model must have each of its tensors at one place, but .* are one\.$"
    ):
        check(tmp_path, ClientModule, FedAvgServer(), tied)


class Beside(ClientModule):
    """A client with something that trains beside its network."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.extra = nn.Linear(3, 3)


class Begun(Beside):
    def begin_turn(self, turn):
        nn.init.eye_(self.extra.weight)


def test_what_trains_beside_the_network_is_set_in_every_turn(tmp_path):
    with pytest.raises(UserError) as caught:
        check(tmp_path, Beside, FedAvgServer())
    assert str(caught.value) == (
        "algorithm/client must set what trains beside its network in receive or begin_turn, but Beside leaves "
        "extra.weight as the client before has trained it."
    )
    check(tmp_path, Begun, FedAvgServer())


def makes(params, lr):
    return torch.optim.SGD([parameter for _, parameter in params], lr=lr)


makes.by_name = True


def test_makers_of_optimizers_get_names_where_they_ask_for_them():
    try_parts(
        OmegaConf.create(
            {"pool": None, "optimizer": {"_target_": f"{__name__}.makes", "_partial_": True, "lr": 1}}
        )
    )
    with pytest.raises(ConfigError, match=r"^optimizer.lr must be set, for a round's rate is a share of it"):
        try_parts(
            OmegaConf.create({"pool": None, "optimizer": {"_target_": "torch.optim.SGD", "_partial_": True}})
        )
