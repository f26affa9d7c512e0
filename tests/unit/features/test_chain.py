"""Which networks are chains of layers: residual links, features that are fused, and networks without layers."""

import pytest
import torch
from harness import SETTING
from torch import nn

from fedfeat.algorithms.fedma import FedMAServer
from fedfeat.algorithms.ot_fusion import OTFusionServer
from fedfeat.algorithms.pfnm import OneShotFedMAServer, PFNMServer
from fedfeat.errors import UserError
from fedfeat.features.chain import chain_layers, fit_shapes, sliced
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


def test_a_global_model_is_cut_to_a_clients_neurons_in_its_order():
    """Hidden layers of 3 and 3 global neurons; the client has 2 and 1 and then reads 2 pixels of each."""
    model = {
        "a.weight": torch.tensor([[1.0], [2.0], [3.0]]),
        "a.bias": torch.tensor([0.1, 0.2, 0.3]),
        "b.weight": torch.tensor([[11.0, 12.0, 13.0], [21.0, 22.0, 23.0], [31.0, 32.0, 33.0]]),
        "b.bias": torch.tensor([0.4, 0.5, 0.6]),
        "c.weight": torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]),
    }
    own = sliced(model, "abc", [torch.tensor([2, 0]), torch.tensor([1])])
    expected = {
        "a.weight": torch.tensor([[3.0], [1.0]]),
        "a.bias": torch.tensor([0.3, 0.1]),
        "b.weight": torch.tensor([[23.0, 21.0]]),
        "b.bias": torch.tensor([0.5]),
        "c.weight": torch.tensor([[3.0, 4.0]]),
    }
    assert list(own) == list(expected)
    for key, tensor in expected.items():
        assert torch.equal(own[key], tensor), key
    assert all(torch.equal(sliced(model, "abc", [])[key], tensor) for key, tensor in model.items())


def test_layers_take_the_shapes_of_parameters_and_say_so():
    network = small_conv().to(memory_format=torch.channels_last)
    conv, linear = (network.get_submodule(name) for name in ("encoder.conv1.conv", "head.fc1.linear"))
    wanted = {
        "encoder.conv1.conv.weight": torch.zeros(6, 2, 3, 3),
        "encoder.conv1.conv.bias": torch.zeros(6),
        "head.fc1.linear.weight": torch.zeros(7, 96),
        "head.fc1.linear.bias": torch.zeros(7),
    }
    assert fit_shapes(network, wanted)
    assert not fit_shapes(network, wanted)
    assert (conv.out_channels, conv.in_channels) == (6, 2)
    assert (linear.out_features, linear.in_features) == (7, 96)
    assert {key: network.get_parameter(key).shape for key in wanted} == {
        k: t.shape for k, t in wanted.items()
    }
    assert conv(torch.zeros(1, 2, 4, 4)).shape == (1, 6, 4, 4)


def test_a_new_shape_keeps_the_layout():
    network = Network([("conv1", conv_block(4, 4, 3, padding=1))], fc_blocks(64, [5], 3), (4, 4, 4), 3)
    network.to(memory_format=torch.channels_last)
    key = "encoder.conv1.conv.weight"
    assert fit_shapes(network, {key: torch.zeros(6, 4, 3, 3)})
    weight = network.get_parameter(key)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


@pytest.mark.parametrize(("network", "count"), [(nn.Identity(), 0), (mlp((1, 2, 2), 3, hidden=[]), 1)])
def test_too_few_layers_are_counted(network, count):
    with pytest.raises(
        UserError, match=rf"^model must have at least 2 layers .*, but this one has {count}\.$"
    ):
        FedMAServer(BBPMap()).check(network, SETTING)
