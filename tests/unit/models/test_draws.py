"""Initial weights: other forms of a network are drawn as the network itself."""

from functools import partial

import pytest
import torch
from torch import nn

from fedfeat.models.cnn import mnist_cnn
from fedfeat.models.draws import draw_layers, he_fan_in, he_fan_out, xavier
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.grouped_layers import GroupedLinear, grouped_conv
from fedfeat.models.lstm import sent140_lstm
from fedfeat.models.redraw import drawn_again
from fedfeat.models.resnet import resnet_cifar
from fedfeat.models.streams import is_depthwise
from fedfeat.models.torchvision_adapter import torchvision_model
from fedfeat.models.vgg import vgg9, vgg11
from fedfeat.types import Vocabulary

CIFAR = (3, 32, 32)
BUILDERS = {
    "resnet_cifar": (partial(resnet_cifar, depth=8), CIFAR),
    "vgg11": (vgg11, CIFAR),
    "sent140_lstm": (partial(sent140_lstm, vocabulary=Vocabulary(50)), (6,)),
    **{
        arch: (partial(torchvision_model, arch=arch), (3, 64, 64))
        for arch in ("resnet10", "mobilenet_v2", "efficientnet_b0", "googlenet", "alexnet")
    },
}


def spreads(tensors):
    """Give each weight's spread, and each bias's."""
    return {name: tensor.std().item() for name, tensor in tensors.items() if tensor.numel() > 1}


@pytest.mark.parametrize("name", BUILDERS)
def test_weights_drawn_again_spread_as_the_builder_s(name):
    builder, shape = BUILDERS[name]
    torch.manual_seed(0)
    network = builder(shape, 10)
    again = drawn_again(network, 1)
    state = {key: again[key] for key, _ in network.named_parameters()}
    # 4 standard errors of a spread over n numbers.
    for key, spread in spreads(dict(network.named_parameters())).items():
        tolerance = 4 / state[key].numel() ** 0.5
        assert state[key].std().item() == pytest.approx(spread, rel=tolerance), key


def test_groups_are_drawn_as_networks_of_their_own():
    torch.manual_seed(0)
    spec = GroupSeparation(groups=4, depth=2)
    dense = vgg11(CIFAR, 8)
    network = spec(dense, spec.sets(dense))
    assert network.draw is he_fan_out
    conv = network.get_submodule("encoder.conv4_2.conv")
    assert conv.weight.shape == (512, 128, 3, 3)
    # Fan out of a group: 128 filters of 3 x 3.
    assert conv.weight.std().item() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.01)
    assert not conv.bias.any()
    shared = network.get_submodule("encoder.conv1_1.conv")
    assert shared.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)


def test_a_convolution_s_own_groups_stay_one_map_of_its_group():
    """Like torch, which counts all filters of a depthwise convolution as its fan out."""
    torch.manual_seed(0)
    depthwise = nn.Conv2d(512, 512, 3, groups=512)
    he_fan_out(depthwise)
    assert depthwise.weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.05)
    separated = grouped_conv(depthwise, [128] * 4, [128] * 4)
    he_fan_out(separated)
    assert separated.weight.std().item() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.05)


def test_grouped_linear_maps_are_drawn_one_by_one():
    torch.manual_seed(0)
    layer = GroupedLinear(2, 100, 50)
    draw_layers(layer, xavier)
    bound = (6 / 150) ** 0.5
    assert 0.99 * bound < layer.weight.abs().max() <= bound
    assert not layer.bias.any()


def test_without_a_rule_layers_stay():
    layer = nn.Linear(3, 2)
    before = layer.weight.clone()
    draw_layers(layer, None)
    assert torch.equal(layer.weight, before)
    he_fan_in(layer)
    assert torch.equal(layer.weight, before)
    assert vgg9(CIFAR, 10).draw is None


@pytest.mark.parametrize("settings", [{"boundary": "dense"}, {"boundary_pairing": "paired"}], ids=str)
def test_a_layer_that_belongs_to_groups_and_reads_everything_is_drawn_group_by_group(settings):
    """Xavier of 5 x 5 filters: 32 maps in, or 1, and out as many as a group has."""
    torch.manual_seed(0)
    spec = GroupSeparation(groups=4, depth=1, **settings)
    dense = mnist_cnn((1, 28, 28), 8)
    network = spec(dense, spec.sets(dense))
    name, read = ("conv2", 32) if settings.get("boundary") else ("conv1", 1)
    weight = network.get_submodule(f"encoder.{name}.conv").weight
    assert weight.shape[1] == read
    bound = (6 / ((read + len(weight) / 4) * 25)) ** 0.5
    assert 0.97 * bound < weight.abs().max() <= bound


def test_uneven_depthwise_layers_are_drawn_group_by_group():
    """MobileNetV2 in 7 groups: what one channel reads and gives has the spread of its group, not of all 960."""
    base = torchvision_model((3, 32, 32), 10, arch="mobilenet_v2")
    spread = {}
    for policy in ("nearest", "uneven"):
        form = GroupSeparation(groups=7, width_policy=policy)
        layers = [
            m for m in form(base, form.sets(base)).modules() if is_depthwise(m) and m.weight.shape[0] > 900
        ]
        spread[policy] = float(
            torch.cat([m.weight.detach().flatten() for m in layers if hasattr(m, "group_of_row")]).std()
        )
    assert spread["uneven"] == pytest.approx(spread["nearest"], rel=0.1)
