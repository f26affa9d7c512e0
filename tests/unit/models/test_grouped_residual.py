"""Group separation of networks with residual streams, gates and depthwise layers, for any number of groups."""

from functools import partial

import pytest
import torch
from isolation import assert_isolated
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedfeat.models.flops import forward_flops
from fedfeat.models.group_plan import numbered_layers
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.grouped_layers import GroupedLinear
from fedfeat.models.resnet import resnet_cifar
from fedfeat.models.torchvision_adapter import torchvision_model

torch.set_num_threads(1)
NETWORKS = {
    "resnet18": (partial(torchvision_model, small_input=True), (3, 8, 8)),
    "resnet18_gn": (partial(torchvision_model, norm="gn", small_input=True), (3, 8, 8)),
    "resnet_cifar": (partial(resnet_cifar, depth=14, width=20), (3, 8, 8)),
    "resnet50": (partial(torchvision_model, arch="resnet50"), (3, 32, 32)),
    "resnext50": (partial(torchvision_model, arch="resnext50_32x4d"), (3, 32, 32)),
    "mobilenet_v2": (partial(torchvision_model, arch="mobilenet_v2"), (3, 32, 32)),
    "mobilenet_v3": (partial(torchvision_model, arch="mobilenet_v3_small"), (3, 32, 32)),
    "efficientnet": (partial(torchvision_model, arch="efficientnet_b0"), (3, 32, 32)),
}
WEIGHTED = (nn.Conv2d, nn.Linear, GroupedLinear)


def separate(name, num_classes=10, **options):
    torch.manual_seed(0)
    builder, shape = NETWORKS[name]
    dense, spec = builder(shape, num_classes), GroupSeparation(**options)
    return dense, spec(dense, spec.sets(dense))


def on_meta(name, **options):
    with torch.device("meta"):
        return separate(name, **options)


@pytest.mark.parametrize("groups", [7, 10])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_group_learns_from_a_class_of_another(name, groups):
    assert_isolated(separate(name, groups=groups)[1])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        # The first convolution of a block is the last shared layer, then both, with the shortcut behind them.
        ("resnet18", {"layer_unit": "conv", "depth": 6}),
        ("resnet18", {"layer_unit": "conv", "depth": 7}),
        ("resnet18", {"layer_unit": "conv", "depth": 7, "boundary": "dense"}),
        # A block without a layer on its shortcut reads all shared channels; its shortcut is cut.
        ("resnet18", {"depth": 2, "boundary": "dense"}),
        ("resnet18", {"depth": 2, "width_policy": "uneven", "groups": 3, "norm_group": "bn"}),
        ("resnet18", {"depth": 0, "boundary": "dense", "norm_group": "none"}),
        # The shortcut of a stage's first block has a layer, so all that writes to the stream can be the groups'.
        ("resnet18", {"depth": 4, "boundary_pairing": "paired"}),
        ("resnet18", {"depth": 8, "layer_unit": "conv", "boundary_pairing": "paired", "groups": 3}),
        # In front of a squeeze-excitation, inside of it, and behind it.
        ("mobilenet_v3", {"layer_unit": "conv", "depth": 2}),
        ("mobilenet_v3", {"layer_unit": "conv", "depth": 3}),
        ("mobilenet_v3", {"layer_unit": "conv", "depth": 4}),
        ("mobilenet_v3", {"layer_unit": "conv", "depth": 3, "boundary": "dense"}),
        ("mobilenet_v2", {"depth": 8, "boundary": "dense"}),
    ],
)
def test_a_boundary_may_be_anywhere(name, options):
    assert_isolated(separate(name, **({"groups": 10} | options))[1])


@pytest.mark.parametrize(
    ("name", "depths"),
    [("resnet18", range(1, 21)), ("mobilenet_v2", (17,)), ("efficientnet", (6, 33))],
)
def test_as_many_layers_are_shared_as_the_depth_says(name, depths):
    for depth in depths:
        dense, network = on_meta(name, groups=10, depth=depth, layer_unit="conv")
        assert network.num_shared == depth
        paths = {id(module): path for path, module in dense.named_modules()}
        shared = {paths[id(module)] for module, number in numbered_layers(dense, "conv") if number < depth}
        rows = {key.rpartition(".")[0] for key in network.group_rows()}
        assert {p for p, m in network.named_modules() if isinstance(m, WEIGHTED) and p not in rows} == shared


def out_channels(network):
    return {
        name: module.out_channels for name, module in network.named_modules() if isinstance(module, nn.Conv2d)
    }


@pytest.mark.parametrize(("policy", "width"), [("nearest", 60), ("ceil", 70), ("floor", 60), ("uneven", 64)])
def test_all_that_write_to_the_stream_at_the_boundary_have_its_width(policy, width):
    """methods/fed2.md#widths: the second block is grouped, and its shortcut is the stem's and the first block's."""
    dense, network = on_meta("resnet18", groups=10, depth=2, width_policy=policy)
    before, after = out_channels(dense), out_channels(network)
    stream = ("stem.conv", "layer1_1.residual.conv2")
    assert [after[f"encoder.{name}"] for name in stream] == [width] * 2
    assert after["encoder.layer1_1.residual.conv1"] == before["encoder.layer1_1.residual.conv1"] == 64
    if policy != "uneven":
        assert after["encoder.layer1_2.residual.conv2"] == width
        assert after["encoder.layer2_1.residual.downsample.0"] == after["encoder.layer2_2.residual.conv2"]


@pytest.mark.parametrize(("depth", "width"), [(2, 60), (3, 130)])
def test_a_width_factor_leaves_the_stream_of_shared_layers_alone(depth, width):
    network = on_meta("resnet18", groups=10, depth=depth, width_factor=2.0)[1]
    widths = out_channels(network)
    assert widths["encoder.stem.conv"] == 60 if depth == 2 else 64
    assert widths["encoder.layer1_2.residual.conv2"] == 60
    assert widths["encoder.layer2_1.residual.conv1"] == widths["encoder.layer2_1.residual.conv2"] == 260
    assert widths["encoder.layer3_1.residual.downsample.0"] == 510


def test_matching_widths_give_the_parameters_of_the_dense_network():
    dense, network = on_meta("resnet18", groups=10, width_factor="match")
    sizes = [sum(p.numel() for p in one.parameters()) for one in (network, dense)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)


def test_groups_of_a_convolutions_own_stay_as_small_as_they_are():
    """ResNeXt has 4 channels in each of 32 groups: of ten groups each has three of them, of 128 channels 120."""
    _, network = on_meta("resnext50", groups=10, depth=1)
    conv = network.get_submodule("encoder.layer1_1.residual.conv2")
    assert (conv.groups, conv.in_channels, conv.out_channels) == (30, 120, 120)


def test_the_control_without_groups_has_the_same_widths():
    _, network = on_meta("efficientnet", groups=10)
    _, control = on_meta("efficientnet", groups=10, separate=False)
    assert out_channels(control) == out_channels(network)
    assert not any(
        hasattr(module, "group_of_row") for module in control.modules() if isinstance(module, WEIGHTED)
    )


@pytest.mark.parametrize("name", ["resnet18_gn", "mobilenet_v2", "efficientnet"])
def test_flops_are_those_of_torch(name):
    dense, network = on_meta(name, groups=10)
    counter = FlopCounterMode(display=False)
    with torch.device("meta"), counter:
        network(torch.empty(2, *network.input_shape))
    assert forward_flops(network) == counter.get_total_flops() // 2 < forward_flops(dense)


def test_shared_layers_that_keep_their_width_keep_their_weights():
    dense, network = separate("resnet18", groups=10, depth=3)
    for name in ("layer1_1.residual.conv1", "layer1_2.residual.conv1"):
        wide, before = (net.get_parameter(f"encoder.{name}.weight") for net in (network, dense))
        assert wide.shape == (64, 60, 3, 3) != before.shape
    dense, network = separate("resnet18", groups=10, depth=5)
    name = "encoder.layer1_1.residual.conv1.weight"
    assert torch.equal(network.get_parameter(name), dense.get_parameter(name))
