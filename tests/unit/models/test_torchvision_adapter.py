from functools import partial

import pytest
import torch
import torchvision.models as zoo
from torch import nn

from fedfeat.config.arguments import check_targets
from fedfeat.errors import ConfigError
from fedfeat.models.torchvision_adapter import torchvision_model

SMALL = (3, 32, 32)


def num_params(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("arch", "shape"),
    [
        ("resnet18", (3, 40, 40)),
        ("mobilenet_v2", (3, 40, 40)),
        ("mobilenet_v3_small", (3, 40, 40)),
        ("efficientnet_b0", (3, 40, 40)),
    ],
)
def test_the_cut_network_computes_what_torchvision_computes(arch, shape):
    network = torchvision_model(shape, 10, arch=arch).eval()
    original = zoo.get_model(arch, weights=None, num_classes=10).eval()
    state = zip(original.state_dict(), network.state_dict().values(), strict=True)
    original.load_state_dict(dict(state))
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(network(x), original(x))
    assert torch.equal(network.last_layer(network.representation(x)), network(x))


@pytest.mark.parametrize(
    "arch", ["resnet50", "resnext50_32x4d", "wide_resnet50_2", "vgg11", "vgg11_bn", "alexnet"]
)
def test_large_networks_have_the_parameters_of_torchvision(arch):
    with torch.device("meta"):
        network = torchvision_model((3, 64, 64), 10, arch=arch)
        original = zoo.get_model(arch, weights=None, num_classes=10)
        assert network(torch.empty(2, 3, 64, 64)).shape == (2, 10)
    mine = [tuple(value.shape) for value in network.state_dict().values()]
    assert mine == [tuple(value.shape) for value in original.state_dict().values()]


def test_resnet18_with_group_norm_and_small_stem():
    network = torchvision_model(SMALL, 10, norm="gn", small_input=True)
    norms = [m for m in network.modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 20
    assert {m.num_groups for m in norms} == {2}
    assert not any(isinstance(m, nn.BatchNorm2d) for m in network.modules())
    assert not list(network.buffers())
    # torchvision's 11,181,642 for 10 classes, with a 3x3 instead of a 7x7 kernel in the stem.
    assert num_params(network) == 11_181_642 - 64 * 3 * (49 - 9) == 11_173_962
    x = torch.randn(2, *SMALL, generator=torch.Generator().manual_seed(0))
    assert network.encoder[0](x).shape == (2, 64, 32, 32)
    assert network.features(x).shape == (2, 512, 4, 4)
    assert network.representation(x).shape == (2, 512)


def test_resnet18_blocks_and_keys():
    with torch.device("meta"):
        network = torchvision_model(SMALL, 10)
    stages = [f"layer{stage}_{i}" for stage in (1, 2, 3, 4) for i in (1, 2)]
    assert [name for name, _ in network.blocks()] == ["stem", *stages, "fc"]
    assert network.last_layer_name == "head.fc.linear"
    keys = list(network.state_dict())
    assert keys[0] == "encoder.stem.conv.weight"
    assert "encoder.layer2_1.residual.downsample.0.weight" in keys


@pytest.mark.parametrize("arch", ["resnet18", "mobilenet_v2", "vgg11"])
def test_other_numbers_of_input_channels(arch):
    with torch.device("meta"):
        network = torchvision_model((1, 32, 32), 10, arch=arch)
        reference = torchvision_model(SMALL, 10, arch=arch)
    first, before = next(network.parameters()), next(reference.parameters())
    assert tuple(first.shape) == (before.shape[0], 1, *before.shape[2:])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (partial(torchvision_model, arch="resnet19"), "model.arch must be .*resnet.*, but it is 'resnet19'"),
        (partial(torchvision_model, arch="vit_b_16"), "model.arch must be .*, but it is 'vit_b_16'"),
        (partial(torchvision_model, arch="alexnet", norm="gn"), "model.norm must be bn for alexnet"),
        (
            partial(torchvision_model, norm="gn", norm_groups=5),
            "model.norm_groups must divide the 64 channels",
        ),
        (
            partial(torchvision_model, arch="vgg11", small_input=True),
            "model.small_input must be false for vgg11",
        ),
    ],
)
def test_bad_options_are_refused(build, message):
    with torch.device("meta"), pytest.raises(ConfigError, match=message):
        build(SMALL, 10)


def test_a_norm_that_no_network_is_published_with_is_refused():
    target = {"_target_": "fedfeat.models.torchvision_adapter.torchvision_model", "norm": "none"}
    with pytest.raises(ConfigError, match=r"model\.norm must be one of bn, gn, but it is 'none'"):
        check_targets({"model": target})


def test_images_too_small_are_refused():
    with (
        torch.device("meta"),
        pytest.raises(ConfigError, match="vgg11 needs inputs of at least 32x32 pixels"),
    ):
        torchvision_model((3, 16, 16), 10, arch="vgg11")
