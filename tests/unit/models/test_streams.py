"""Which layers share a stream of channels, and what cannot be cut into groups."""

import re
from functools import partial

import pytest
import torch
from isolation import assert_isolated
from torch import nn
from torch.nn import functional

from fedfeat.errors import ConfigError
from fedfeat.models.blocks import fc_blocks, named_layers
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.network import Network
from fedfeat.models.streams import flow_of
from fedfeat.models.torchvision_adapter import torchvision_model
from fedfeat.models.vgg import vgg9


def streams(network):
    """The sets of convolutions and linear layers, by path, that write to one stream."""
    flow, paths = flow_of(network), {id(module): name for name, module in network.named_modules()}
    found = {}
    for number, step in enumerate(flow.steps):
        if step.kind == "weighted":
            found.setdefault(flow.stream(number), set()).add(paths[id(step.module)])
    return list(found.values())


def torchvision_streams(arch):
    with torch.device("meta"):
        return streams(torchvision_model((3, 32, 32), 10, arch=arch))


def test_a_plain_chain_has_a_stream_for_every_layer():
    with torch.device("meta"):
        found = streams(vgg9((3, 32, 32), 10))
    assert [len(one) for one in found] == [1] * 9


def test_a_stage_of_resnet18_is_one_stream():
    found = torchvision_streams("resnet18")
    first = {"stem.conv", "layer1_1.residual.conv2", "layer1_2.residual.conv2"}
    second = {"layer2_1.residual.conv2", "layer2_1.residual.downsample.0", "layer2_2.residual.conv2"}
    for stage in (first, second):
        assert {f"encoder.{name}" for name in stage} in found
    # Four stages, the first convolution of each of the eight blocks, the logits.
    assert len(found) == 4 + 8 + 1


def test_inverted_residuals_of_one_width_are_one_stream():
    found = torchvision_streams("mobilenet_v2")
    ends = {f"encoder.conv{n}.invertedresidual0.conv.2" for n in (8, 9, 10, 11)}
    assert ends in found


def test_a_squeeze_excitation_belongs_to_what_it_scales():
    found = torchvision_streams("efficientnet_b0")
    block = "encoder.conv3.sequential0.0.block"
    assert {f"{block}.0.0", f"{block}.2.fc2"} in found
    assert {f"{block}.2.fc1"} in found
    assert {f"{block}.3.0", "encoder.conv3.sequential0.1.block.3.0"} in found


class Block(nn.Module):
    """A residual block whose gate has linear layers, and something in between."""

    def __init__(self, between=None, channels=12):
        super().__init__()
        self.between = between or nn.Tanh()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.squeeze, self.excite = nn.Linear(channels, 4), nn.Linear(4, channels)

    def forward(self, x):
        out = self.between(functional.relu(self.norm(self.conv(x))))
        gate = self.excite(functional.relu(self.squeeze(out.mean((2, 3)))))
        return x + out * torch.sigmoid(gate)[:, :, None].unsqueeze(-1)


def of_blocks(*blocks, channels=12):
    stem = nn.Conv2d(2, channels, 1) if channels != 2 else nn.Identity()
    encoder = [("stem", named_layers([("conv", stem)]))]
    encoder += [(f"block{i}", named_layers([("residual", block)])) for i, block in enumerate(blocks, 1)]
    return Network(encoder, fc_blocks(channels * 16, [20, 20], 10), (2, 4, 4), 10)


def separate(network, **options):
    spec = GroupSeparation(**({"groups": 5, "depth": 1} | options))
    return spec(network, spec.sets(network))


@pytest.mark.parametrize("boundary", ["slice", "dense"])
@pytest.mark.parametrize("depth", range(1, 7))
def test_blocks_of_ones_own_are_separated(boundary, depth):
    torch.manual_seed(0)
    network = of_blocks(Block(), Block(nn.Dropout(0.1)))
    assert {"encoder.stem.conv"} not in streams(network)
    assert_isolated(separate(network, boundary=boundary, depth=depth, layer_unit="conv"))


@pytest.mark.parametrize(
    ("between", "what"),
    [
        (nn.LayerNorm([12, 4, 4]), "between in block1"),
        (nn.ChannelShuffle(3), "between in block1"),
        (nn.ConvTranspose2d(12, 12, 1), "between in block1"),
        (torch.fft.fft, "fft_fft in block1"),
        (partial(functional.dropout, p=0.5), "dropout in block1"),
        (lambda x: x if x.sum() > 0 else -x, "residual in block1"),
    ],
)
def test_what_might_mix_groups_is_refused_behind_the_boundary_alone(between, what):
    network = of_blocks(Block(between), Block())
    rule = f"be one of 4, 5 for this network (elsewhere {what} might mix groups)"
    with pytest.raises(ConfigError, match=rf"^structure\.depth must {re.escape(rule)}, but it is 1\.$"):
        separate(network)
    assert separate(network, depth=4).num_shared == 4


def test_what_has_a_fixed_width_is_not_cut():
    """Of the two blocks of twelve channels neither can be widened to fifteen, nor can images."""
    gated = Block(nn.LayerNorm([12, 4, 4]))
    rule = r"be one of 4, 5 for this network \(elsewhere conv in block2 would read slices of what has a fixed width\)"
    with pytest.raises(ConfigError, match=rf"^structure\.depth must {rule}, but it is 2\.$"):
        separate(of_blocks(gated, Block()), depth=2)
    network = separate(of_blocks(gated, nn.LayerNorm([12, 4, 4]), Block(), nn.LayerNorm([12, 4, 4])), depth=5)
    assert_isolated(network)
    network = of_blocks(Block(channels=2), channels=2)
    rule = r"be one of 1, 2, 3 for this network \(elsewhere add in block1 would read slices of what has a fixed width\)"
    with pytest.raises(ConfigError, match=rf"^structure\.depth must {rule}, but it is 0\.$"):
        separate(network, depth=0, boundary="dense")
    encoder = [("stem", named_layers([("conv", nn.Conv2d(2, 12, 1)), ("norm", nn.LayerNorm([12, 4, 4]))]))]
    normed = Network(encoder, fc_blocks(192, [], 10), (2, 4, 4), 10)
    with pytest.raises(
        ConfigError, match=r"^structure cannot separate this network at any depth: linear in fc1 "
    ):
        separate(normed)
    assert_isolated(separate(normed, boundary="dense"))


class Own(nn.Module):
    """A layer of one's own without weights."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def ending_with(layer):
    """Two convolutions and two linear layers, with a layer after the first of these."""
    encoder = [(f"conv{i}", named_layers([("conv", nn.Conv2d(2 if i == 1 else 12, 12, 1))])) for i in (1, 2)]
    head = [
        ("fc1", named_layers([("flatten", nn.Flatten()), ("linear", nn.Linear(192, 20)), ("own", layer)])),
        ("fc2", named_layers([("linear", nn.Linear(20, 10))])),
    ]
    return Network(encoder, head, (2, 4, 4), 10)


@pytest.mark.parametrize(
    "layer",
    [
        *(nn.LogSoftmax(dim=1), nn.Softmin(dim=1), nn.Softmax(dim=1), nn.CircularPad1d(0)),
        Own(lambda x: functional.normalize(x, dim=1)),
        Own(lambda x: x - x.mean(1, keepdim=True)),
        Own(lambda x: x - x.mean(-1, keepdim=True)),
        Own(lambda x: x - x.mean((-2,), keepdim=True)),
        Own(lambda x: x if x.sum() > 0 else -x),
        nn.Sequential(nn.ReLU(), Own(lambda x: functional.normalize(x, dim=1))),
    ],
)
def test_a_layer_without_weights_that_might_mix_groups_is_refused(layer):
    with pytest.raises(ConfigError, match=r"own in fc1 might mix groups"):
        separate(ending_with(layer), depth=2, norm_shared="none", norm_group="none")


@pytest.mark.parametrize(
    "layer",
    [
        *(nn.Mish(), nn.Identity(), nn.AlphaDropout(0.1), nn.Sequential(nn.ReLU(), nn.Dropout(0.1))),
        Own(torch.relu),
        Own(lambda x: x + x.clamp(0, 1)),
        nn.Sequential(Own(functional.gelu), nn.Sequential(nn.Tanh())),
    ],
)
def test_one_that_treats_every_feature_alike_is_not(layer):
    torch.manual_seed(0)
    assert_isolated(separate(ending_with(layer), depth=2, norm_shared="none", norm_group="none"))
