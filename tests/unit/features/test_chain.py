"""Which networks are chains of layers: residual links, features that are fused, and networks without layers."""

import pytest
from harness import SETTING
from torch import nn

from fedfeat.algorithms.fedma import FedMAServer
from fedfeat.algorithms.ot_fusion import OTFusionServer
from fedfeat.algorithms.pfnm import OneShotFedMAServer, PFNMServer
from fedfeat.errors import UserError
from fedfeat.features.chain import chain_layers
from fedfeat.features.matching import BBPMap
from fedfeat.models.blocks import conv_block, fc_blocks, named_layers
from fedfeat.models.fusion import fuse
from fedfeat.models.mlp import mlp
from fedfeat.models.network import Network

RULE = "model must be a chain of plain convolutions and linear layers (vgg9, mnist_cnn, mlp) where neurons are matched"
SERVERS = [FedMAServer(BBPMap()), PFNMServer(BBPMap()), OneShotFedMAServer(BBPMap()), OTFusionServer()]


class Residual(nn.Module):
    """x + conv(x), without normalisation."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return x + self.conv(x)


def small_conv(*more):
    encoder = [("conv1", conv_block(1, 4, 3, padding=1)), *more]
    return Network(encoder, fc_blocks(4 * 4 * 4, [5], 3), (1, 4, 4), 3)


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: type(server).__name__)
def test_a_residual_link_is_refused_also_without_norms(server):
    network = small_conv(("res", named_layers([("residual", Residual()), ("relu", nn.ReLU())])))
    with pytest.raises(UserError) as caught:
        server.check(network, SETTING)
    assert str(caught.value) == f"{RULE}, but block res has a Residual."


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: type(server).__name__)
@pytest.mark.parametrize("op", ["multi", "conv"])
def test_fused_features_are_refused(op, server):
    network = mlp((1, 2, 2), 3, hidden=[5, 4]) if isinstance(server, PFNMServer) else small_conv()
    server.check(network, SETTING)
    fuse(network, op, 0.0, "default", True, "global_first")
    with pytest.raises(UserError) as caught:
        server.check(network, SETTING)
    text = str(caught.value)
    assert text.startswith(f"{RULE}, but fusion.")
    assert text.endswith(" belongs to none of its layers.")


def test_a_tensor_outside_the_blocks_is_refused():
    network = small_conv()
    assert chain_layers(network) == ("encoder.conv1.conv", "head.fc1.linear", "head.fc2.linear")
    network.register_parameter("scale", nn.Parameter(network.last_layer.bias.detach().clone()))
    with pytest.raises(UserError) as caught:
        chain_layers(network)
    assert str(caught.value) == f"{RULE}, but scale belongs to none of its layers."


@pytest.mark.parametrize(("network", "count"), [(nn.Identity(), 0), (mlp((1, 2, 2), 3, hidden=[]), 1)])
def test_too_few_layers_are_counted(network, count):
    with pytest.raises(
        UserError, match=rf"^model must have at least 2 layers .*, but this one has {count}\.$"
    ):
        FedMAServer(BBPMap()).check(network, SETTING)
