"""What a group-separated network keeps of the layers that it was made of."""

import itertools
from collections import OrderedDict

import pytest
import torch
from isolation import assert_isolated
from torch import nn

from fedfeat.errors import ConfigError
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.grouped_conv import GroupedConv2d
from fedfeat.models.mobilenet import mobilenet_v1_cifar
from fedfeat.models.network import Network
from fedfeat.models.resnet import resnet_cifar
from fedfeat.models.torchvision_adapter import torchvision_model

SMALL = (3, 8, 8)


def separate(dense, **options):
    spec = GroupSeparation(**options)
    return spec(dense, spec.sets(dense))


def convolutions(network):
    return {name: part for name, part in network.named_modules() if isinstance(part, nn.Conv2d)}


@pytest.mark.parametrize("build", [mobilenet_v1_cifar, resnet_cifar])
def test_without_norms_convolutions_have_a_bias(build):
    """Those in front of a norm need none, which leaves a network without norms without any."""
    dense = build(SMALL, 4)
    assert all(conv.bias is None for conv in convolutions(dense).values())
    network = separate(dense, depth=3, norm_group="none")
    shared = {name: conv.bias is None for name, conv in convolutions(network).items()}
    assert set(shared.values()) == {True, False}
    of_group = {
        name: getattr(conv, "group_of_row", None) is not None for name, conv in convolutions(network).items()
    }
    assert all(without != of_group[name] for name, without in shared.items())
    bare = separate(dense, depth=3, norm_group="none", norm_shared="none")
    assert all(conv.bias is not None for conv in convolutions(bare).values())
    assert all(conv.bias is None for conv in convolutions(dense).values())  # as it was
    assert_isolated(network)


def test_a_network_that_never_had_norms_keeps_its_convolutions_without_bias():
    block = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 8, 3, bias=False), relu=nn.ReLU()))
    head = nn.Sequential(OrderedDict(flatten=nn.Flatten(), linear=nn.Linear(8 * 36, 4)))
    network = separate(Network([("a", block)], [("fc", head)], SMALL, 4), depth=1, norm_shared="none")
    assert [conv.bias for conv in convolutions(network).values()] == [None]


def test_batch_norms_keep_their_constants():
    dense = torchvision_model((3, 32, 32), 4, arch="mobilenet_v3_small")
    network = separate(dense, depth=3, norm_group="bn")
    norms = [part for part in network.modules() if isinstance(part, nn.BatchNorm2d)]
    assert len(norms) > 10
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-3, 1e-2)}
    plain = separate(resnet_cifar(SMALL, 4, norm="gn"), depth=3, norm_group="bn")
    norms = [part for part in plain.modules() if isinstance(part, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-5, 1e-1)}


@pytest.mark.parametrize("policy", ["nearest", "uneven"])
@pytest.mark.parametrize("boundary", ["slice", "dense"])
def test_linear_layers_without_bias_stay_without(policy, boundary):
    sizes = (6, 12, 13, 12)
    blocks = [
        (
            f"fc{i}",
            nn.Sequential(OrderedDict(linear=nn.Linear(n_in, n_out, bias=False), relu=nn.ReLU())),
        )
        for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes), start=1)
    ]
    last = nn.Sequential(OrderedDict(linear=nn.Linear(12, 4, bias=False)))
    dense = Network(blocks, [("fc", last)], (6,), 4)
    network = separate(
        dense, depth=1, groups=3, width_policy=policy, boundary=boundary, class_map="contiguous"
    )
    assert not [name for name, _ in network.named_parameters() if name.endswith("bias")]
    x = torch.randn(5, 6)
    rows, sets = network.group_rows(), network.class_sets
    assert network(x).shape == (5, 4)
    for group, classes in enumerate(sets):
        network.zero_grad()
        network(x)[:, list(classes)].sum().backward()
        for key, of_row in rows.items():
            gradient = network.get_parameter(key).grad.flatten(1)
            assert not gradient[of_row != group].any(), key
    assert network.last_layer.weight.grad is not None


class Halved(nn.Conv2d):
    """A convolution with a way of its own."""

    def forward(self, x):
        return super().forward(x) / 2


def test_layers_with_a_way_of_their_own_are_refused():
    block = nn.Sequential(OrderedDict(conv=Halved(3, 8, 3)))
    head = nn.Sequential(OrderedDict(flatten=nn.Flatten(), linear=nn.Linear(8 * 36, 4)))
    rule = r"^structure must separate plain convolutions and linear layers, but this network has a Halved, whose own"
    with pytest.raises(ConfigError, match=rule):
        separate(Network([("a", block)], [("fc", head)], SMALL, 4), depth=1)


def test_grouped_convolutions_are_plain():
    block = nn.Sequential(OrderedDict(conv=GroupedConv2d(4, 8, 3, groups=2)))
    head = nn.Sequential(OrderedDict(flatten=nn.Flatten(), linear=nn.Linear(8 * 36, 4)))
    assert separate(Network([("a", block)], [("fc", head)], (4, 8, 8), 4), depth=1).num_shared == 1


def test_a_norm_of_single_numbers_is_refused():
    """At the end of a MobileNet an image is 1x1, so that 100 groups of one channel each are single numbers."""
    dense = torchvision_model((3, 32, 32), 100, arch="mobilenet_v3_small")
    rule = r"^structure\.groups must leave a group more than one number at .*norm.*, but it is 100\.$"
    with pytest.raises(ConfigError, match=rule):
        separate(dense, groups=100)
    separate(dense, groups=100, norm_group="bn")
    separate(dense, groups=20)
