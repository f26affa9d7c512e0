"""Sizes, costs and special cases of group-separated networks."""

from functools import partial

import pytest
import torch
from torch import nn

from fedfeat.errors import ConfigError
from fedfeat.models.cnn import digits_cnn, heterofl_cnn, mnist_cnn
from fedfeat.models.draws import xavier
from fedfeat.models.flops import forward_flops
from fedfeat.models.grouped import GroupedNetwork, GroupSeparation
from fedfeat.models.grouped_layers import GroupedLinear
from fedfeat.models.mlp import mlp
from fedfeat.models.mobilenet import mobilenet_v1_cifar
from fedfeat.models.torchvision_adapter import torchvision_model
from fedfeat.models.vgg import vgg9, vgg16_cifar

CIFAR = (3, 32, 32)
PLAIN = {"norm_shared": "none", "norm_group": "none"}


def separate(dense, **options):
    spec = GroupSeparation(**options)
    return spec(dense, spec.sets(dense))


def on_meta(builder, shape=CIFAR, num_classes=10, **options):
    with torch.device("meta"):
        dense = builder(shape, num_classes)
        return dense, separate(dense, **options)


def num_params(network):
    return sum(parameter.numel() for parameter in network.parameters())


def widths(network):
    """Outputs of every convolution and hidden linear layer, over all groups."""
    found = {}
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear | GroupedLinear):
            layer = name.split(".")[1]
            outputs = module.bias.numel() if module.bias is not None else module.out_channels
            found[layer] = found.get(layer, 0) + outputs
    return list(found.values())[:-1]


@pytest.mark.parametrize(("boundary", "count"), [("slice", 441_232), ("dense", 574_628)])
def test_parameters_of_vgg9(boundary, count):
    """methods/fed2.md#boundary; 3,491,530 without groups."""
    assert num_params(on_meta(vgg9, groups=10, boundary=boundary, **PLAIN)[1]) == count


def test_norms_add_a_scale_and_a_shift_per_channel():
    # 32 + 64 + 130 shared and 130 + 260 + 260 grouped channels.
    assert num_params(on_meta(vgg9, groups=10)[1]) == 441_232 + 2 * 876


@pytest.mark.parametrize(
    ("num_classes", "groups", "policy", "expected"),
    [
        (10, 10, "nearest", [32, 64, 130, 130, 260, 260, 510, 510]),
        (100, 20, "nearest", [32, 64, 120, 120, 260, 260, 520, 520]),
        (100, 100, "nearest", [32, 64, 100, 100, 300, 300, 500, 500]),
        (10, 10, "ceil", [32, 64, 130, 130, 260, 260, 520, 520]),
        (100, 20, "ceil", [32, 64, 140, 140, 260, 260, 520, 520]),
        (100, 100, "ceil", [32, 64, 200, 200, 300, 300, 600, 600]),
        (10, 10, "floor", [32, 64, 120, 120, 250, 250, 510, 510]),
        (100, 20, "floor", [32, 64, 120, 120, 240, 240, 500, 500]),
        (100, 100, "floor", [32, 64, 100, 100, 200, 200, 500, 500]),
        (10, 10, "uneven", [32, 64, 128, 128, 256, 256, 512, 512]),
    ],
)
@pytest.mark.parametrize("separated", [True, False])
def test_widths_are_multiples_of_the_groups(num_classes, groups, policy, expected, separated):
    """methods/fed2.md#widths; the control without groups has the same."""
    options = {"groups": groups, "width_policy": policy, "separate": separated}
    network = on_meta(vgg9, num_classes=num_classes, **options)[1]
    assert widths(network) == expected
    assert network.last_layer.out_features == num_classes


def test_mobilenet_rounds_1024_to_1020():
    network = on_meta(mobilenet_v1_cifar, groups=10)[1]
    assert [m.out_channels for m in network.modules() if isinstance(m, nn.Conv2d)][-3:] == [1020, 1020, 1020]
    assert network.last_layer.in_features == 102


def test_dense_boundary_keeps_the_shared_widths():
    assert widths(on_meta(vgg9, groups=10, boundary="dense")[1])[:4] == [32, 64, 128, 130]


@pytest.mark.parametrize(("boundary", "ratio"), [("slice", 0.36), ("dense", 0.61)])
def test_flops_of_vgg9(boundary, ratio):
    dense, network = on_meta(vgg9, groups=10, boundary=boundary, **PLAIN)
    assert forward_flops(network) / forward_flops(dense) == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize(
    ("builder", "shape", "groups", "boundary"),
    [
        (vgg9, CIFAR, 10, "slice"),
        (vgg9, CIFAR, 10, "dense"),
        (vgg9, CIFAR, 100, "slice"),
        # Its grouped layers read shared features or are the last: the factor must be about G.
        (partial(mlp, hidden=[200, 200]), (8,), 20, "slice"),
    ],
    ids=["vgg9-10", "vgg9-10-dense", "vgg9-100", "mlp"],
)
def test_matching_widths_give_the_parameters_of_the_dense_network(builder, shape, groups, boundary):
    options = {"groups": groups, "boundary": boundary, "width_factor": "match"}
    dense, network = on_meta(builder, shape, groups, **options, **PLAIN)
    assert num_params(network) == pytest.approx(num_params(dense), rel=0.02)


def test_matched_widths_are_those_of_all_groups_where_some_are_trimmed():
    """Two of five groups: else their weights would not fit beside those of clients with more groups."""
    spec = GroupSeparation(groups=5, width_factor="match", norm_group="none")
    with torch.device("meta"):
        dense = mlp((8,), 10, hidden=[40, 40])
        sets = spec.sets(dense)
        whole, trimmed = spec(dense, sets), spec(dense, sets, sets[1:3])
    of_group, state = whole.group_rows(), whole.state_dict()
    assert trimmed.class_sets == sets[1:3]
    for key, own in trimmed.state_dict().items():
        kept = (of_group[key] == 1) | (of_group[key] == 2) if key in of_group else slice(None)
        assert own.shape == torch.empty_like(state[key], device="cpu")[kept].shape, key


def test_a_width_factor_widens_grouped_layers_alone():
    network = on_meta(vgg9, groups=10, width_factor=2.0)[1]
    assert widths(network) == [32, 64, 130, 260, 510, 510, 1020, 1020]


@pytest.mark.parametrize("policy", ["nearest", "uneven"])
@pytest.mark.parametrize("builder", [vgg9, digits_cnn, partial(mobilenet_v1_cifar, width_multiplier=0.25)])
def test_the_control_has_norms_per_group_and_no_groups(builder, policy):
    _, network = on_meta(builder, groups=4, width_policy=policy)
    _, control = on_meta(builder, groups=4, width_policy=policy, separate=False)
    assert not isinstance(control, GroupedNetwork)
    assert widths(control) == widths(network)
    of_norms = [{n: p.shape for n, p in net.named_parameters() if "norm" in n} for net in (network, control)]
    assert of_norms[0] == of_norms[1] != {}
    assert {m.groups for m in control.modules() if isinstance(m, nn.Conv2d) and m.groups < m.in_channels} <= {
        1
    }
    assert not any(isinstance(module, GroupedLinear) for module in control.modules())


@pytest.mark.parametrize(
    ("builder", "shape"),
    [
        (vgg9, (3, 8, 8)),
        (partial(mobilenet_v1_cifar, norm="none", width_multiplier=0.25), (3, 16, 16)),
        (mnist_cnn, (1, 12, 12)),
        (digits_cnn, (1, 8, 8)),
        (partial(mlp, hidden=[8, 7, 6]), (5,)),
    ],
    ids=["vgg9", "mobilenet", "mnist", "digits", "mlp"],
)
def test_one_group_is_the_dense_network(builder, shape):
    """Same shapes, logits and gradients; to 1e-5, since a batched product rounds in another order than a single one."""
    torch.manual_seed(0)
    dense = builder(shape, 10)
    network = separate(dense, groups=1, **PLAIN)
    state = dense.state_dict()
    assert list(network.state_dict()) == list(state)
    # A grouped linear layer has the group as a dimension of its own.
    assert all(value.numel() == state[key].numel() for key, value in network.state_dict().items())
    network.load_state_dict({key: state[key].view_as(v) for key, v in network.state_dict().items()})
    x = torch.randn(4, *shape)
    outputs = [net.eval()(x) for net in (dense, network)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
    for logits in outputs:
        nn.functional.cross_entropy(logits, torch.tensor([1, 0, 7, 3])).backward()
    for (key, parameter), own in zip(dense.named_parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(own.grad.view_as(parameter), parameter.grad, rtol=1e-4, atol=1e-6, msg=key)


def test_xavier_networks_stay_xavier():
    network = separate(mnist_cnn((1, 12, 12), 10), groups=10)
    assert network.draw is xavier
    assert not network.get_parameter("head.fc1.linear.bias").any()
    # 64 -> 60 channels of 3 x 3 places: each of ten maps takes 54 features to 51.
    weight = network.get_parameter("head.fc1.linear.weight")
    assert weight.shape == (10, 51, 54)
    bound = (6 / (51 + 54)) ** 0.5
    assert 0.95 * bound < weight.abs().max() <= bound
    assert separate(digits_cnn((1, 8, 8), 10)).draw is None


@pytest.mark.parametrize(
    ("builder", "unit", "shared"),
    [
        (vgg9, "block", 3),
        (vgg16_cifar, "block", 10),
        (mobilenet_v1_cifar, "block", 9),
        (mobilenet_v1_cifar, "conv", 22),
        (torchvision_model, "block", 4),
        (partial(mlp, hidden=[9]), "block", 1),
    ],
    ids=["vgg9", "vgg16", "mobilenet-blocks", "mobilenet-convs", "resnet18", "mlp"],
)
def test_the_last_six_are_grouped(builder, unit, shared):
    """methods/fed2.md#settings: VGG9 shares conv1-3, VGG16 C1-1 to C4-3, MobileNet up to block 8 (or its pointwise
    layer 10)."""
    network = on_meta(builder, groups=2, layer_unit=unit)[1]
    assert network.num_shared == shared


@pytest.mark.parametrize("policy", ["nearest", "ceil", "floor", "uneven"])
def test_widths_that_are_too_narrow_to_build_are_not_what_is_matched(policy):
    """On the way to the match some factors leave a norm a single number; the match is above those that do."""
    builder = partial(heterofl_cnn, widths=(10, 10, 10, 10))
    options = {"boundary": "dense", "width_policy": policy}
    dense, network = on_meta(builder, (1, 8, 8), width_factor="match", **options)
    _, wide = on_meta(builder, (1, 8, 8), width_factor=2.0, **options)
    assert num_params(dense) < num_params(network) <= num_params(wide)
    with pytest.raises(ConfigError, match=r"^structure.depth must be between 0 and 4"):
        on_meta(builder, (1, 8, 8), width_factor="match", depth=9, **options)
