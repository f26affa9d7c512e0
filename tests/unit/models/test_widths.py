"""Networks of fewer channels: they are the whole network whose other channels are 0; what cannot be cut is refused."""

import pytest
import torch
from torch import nn

from fedfeat.algorithms.static_norm import batch_norms, begin_statistics
from fedfeat.errors import ConfigError
from fedfeat.models.blocks import conv_block, fc_blocks
from fedfeat.models.cnn import digits_cnn, heterofl_cnn, valid_cnn
from fedfeat.models.lstm import sent140_lstm
from fedfeat.models.mlp import mlp
from fedfeat.models.mobilenet import mobilenet_v1_cifar
from fedfeat.models.network import Network
from fedfeat.models.resnet import resnet_cifar
from fedfeat.models.torchvision_adapter import torchvision_model
from fedfeat.models.vgg import vgg9
from fedfeat.models.widths import axes_of, kept_channels, narrowed, part_of, places, scale_in_eval
from fedfeat.params import copy_into
from fedfeat.types import Vocabulary

IMAGE = (3, 16, 16)
# Batch norm of a channel that is 0 gives its shift, at first 0, as long as nothing has passed through it.
NETWORKS = {
    "mlp": lambda: mlp((7,), 3, hidden=[8, 6]),
    "digits_cnn": lambda: digits_cnn((1, 8, 8), 4, width=4, hidden=6),
    "digits_cnn, batch norm": lambda: digits_cnn((1, 8, 8), 4, width=4, hidden=6, norm="bn"),
    "simple_cnn": lambda: valid_cnn(IMAGE, 5),
    "vgg9": lambda: vgg9(IMAGE, 10),
    "vgg9, batch norm": lambda: vgg9(IMAGE, 10, norm="bn"),
    "mobilenet": lambda: mobilenet_v1_cifar(IMAGE, 4, norm="none", width_multiplier=0.25),
    "mobilenet, batch norm": lambda: mobilenet_v1_cifar(IMAGE, 4, width_multiplier=0.25),
    "resnet18": lambda: torchvision_model(IMAGE, 4, small_input=True),
    "resnet_cifar": lambda: resnet_cifar(IMAGE, 4, depth=8),
    "mobilenet_v2": lambda: torchvision_model(IMAGE, 4, arch="mobilenet_v2"),
    "efficientnet_b0": lambda: torchvision_model(IMAGE, 4, arch="efficientnet_b0"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_part_computes_what_the_whole_does_with_other_channels_at_zero(name):
    torch.manual_seed(0)
    whole = NETWORKS[name]().double().eval()
    axes = axes_of(whole)
    x = torch.randn(2, *whole.input_shape, dtype=torch.float64)
    before = whole(x)
    for rate, start in ((0.5, 0), (0.3, 5)):
        where = places(axes, rate, start)
        small = narrowed(whole, axes, rate).eval()
        scale_in_eval(small, False)
        copy_into(small, part_of(whole.state_dict(), where))
        zeroed = {}
        for key, tensor in whole.state_dict().items():
            kept = tensor
            for dim, index in enumerate(where.get(key, ())):
                if index is not None:
                    lacks = sorted(set(range(tensor.shape[dim])) - set(index.tolist()))
                    fill = 1.0 if key.endswith("running_var") else 0.0
                    kept = kept.index_fill(dim, torch.tensor(lacks, dtype=torch.int64), fill)
            zeroed[key] = kept
        masked = NETWORKS[name]().double().eval()
        copy_into(masked, zeroed)
        torch.testing.assert_close(small(x), masked(x), rtol=0, atol=1e-10)
        assert small(x).abs().max() > 0
        assert sum(p.numel() for p in small.parameters()) < 0.7 * sum(p.numel() for p in whole.parameters())
    assert torch.equal(whole(x), before)


def test_a_part_says_its_sizes():
    whole = mobilenet_v1_cifar(IMAGE, 4, norm="gn", norm_groups=1, width_multiplier=0.25)
    small = narrowed(whole, axes_of(whole), 0.5)
    stem, depthwise = (
        small.get_submodule("encoder.stem.conv"),
        small.get_submodule("encoder.block1.depthwise_conv"),
    )
    assert (stem.in_channels, stem.out_channels) == (3, 4)
    assert depthwise.groups == depthwise.in_channels == depthwise.out_channels == 4
    assert small.get_submodule("encoder.stem.norm").num_channels == 4
    assert (small.last_layer.in_features, small.last_layer.out_features) == (128, 4)
    assert (small.rate, whole.rate) == (0.5, None)
    assert whole.get_submodule("encoder.stem.conv").out_channels == 8


def test_the_levels_have_the_sizes_that_are_published():
    """Flower's table of HeteroFL's levels a to e: 1556.874, 391.37, 98.922, 25.274 and 6.594 thousand."""
    whole = heterofl_cnn((1, 28, 28), 10)
    axes, sizes = axes_of(whole), {}
    for rate in (1.0, 0.5, 0.25, 0.125, 0.0625):
        sizes[rate] = sum(p.numel() for p in narrowed(whole, axes, rate).parameters())
    assert list(sizes.values()) == [1_556_874, 391_370, 98_922, 25_274, 6_594]


def test_the_part_begins_with_the_first_channels():
    whole = digits_cnn((1, 8, 8), 4, width=4, hidden=6)
    small = narrowed(whole, axes_of(whole), 0.5)
    own, all_of = small.state_dict(), whole.state_dict()
    assert torch.equal(own["encoder.conv2.conv.weight"], all_of["encoder.conv2.conv.weight"][:4, :2])
    # Four pixels of each channel.
    assert torch.equal(own["head.fc1.linear.weight"], all_of["head.fc1.linear.weight"][:3, : 4 * 4])
    assert torch.equal(own["head.fc2.linear.weight"], all_of["head.fc2.linear.weight"][:, :3])
    own["encoder.conv2.conv.weight"].zero_()
    assert all_of["encoder.conv2.conv.weight"].abs().max() > 0


def test_windows_go_on_with_the_first_channel_and_take_all_pixels_of_one():
    axes = axes_of(Network([("conv", conv_block(1, 3, 1))], fc_blocks(6, [5], 2), (1, 1, 2), 2))
    where = places(axes, 0.5, 5)
    assert [None if i is None else i.tolist() for i in where["encoder.conv.conv.weight"]] == [[2, 0], None]
    assert [i.tolist() for i in where["head.fc1.linear.weight"]] == [[0, 1, 2], [4, 5, 0, 1]]
    assert [None if i is None else i.tolist() for i in where["head.fc2.linear.weight"]] == [None, [0, 1, 2]]
    assert "head.fc2.linear.bias" not in where
    assert places(axes, 1.0, 5) == {}


def test_channels_are_rounded_up_but_not_because_of_a_rounding():
    assert [kept_channels(width, 0.0625) for width in (64, 16, 10, 1)] == [4, 1, 1, 1]
    assert kept_channels(100, 0.07) == 7  # a product of 7.000000000000001
    assert kept_channels(10, 0.31) == 4


def test_the_scaler_divides_nothing_of_the_last_layer():
    whole = mlp((4,), 3, hidden=[6]).double()
    axes = axes_of(whole)
    scaled, plain = (narrowed(whole, axes, 0.5, scaler) for scaler in (True, False))
    x = torch.randn(5, 4, dtype=torch.float64)
    hidden = (x @ plain.encoder.fc1.linear.weight.T + plain.encoder.fc1.linear.bias) / 0.5
    expected = plain.head(hidden.relu())
    torch.testing.assert_close(scaled(x), expected)
    torch.testing.assert_close(scaled.eval()(x), expected)
    scale_in_eval(scaled, False)
    torch.testing.assert_close(scaled(x), plain(x))
    torch.testing.assert_close(scaled.train()(x), expected)
    # A depthwise convolution goes on with channels that were scaled before it.
    small = narrowed(vgg9(IMAGE, 10), axes_of(vgg9(IMAGE, 10)), 0.5)
    mobile = mobilenet_v1_cifar(IMAGE, 4, norm="none", width_multiplier=0.25)
    counts = [
        sum(bool(m._forward_hooks) for m in one.modules())
        for one in (small, narrowed(mobile, axes_of(mobile), 0.5))
    ]
    assert counts == [8, 14]


@pytest.mark.parametrize("name", ["mlp", "digits_cnn", "digits_cnn, batch norm", "mobilenet", "resnet18"])
def test_in_eval_mode_a_part_is_the_function_that_was_trained(name):
    """On the batch of which batch norms have their statistics, which are those of scaled numbers."""
    torch.manual_seed(0)
    whole = NETWORKS[name]().double()
    small = narrowed(whole, axes_of(whole), 0.25).train()
    x = torch.randn(8, *whole.input_shape, dtype=torch.float64)
    begin_statistics(small)
    counts = {}
    for norm in batch_norms(small):
        norm.register_forward_pre_hook(lambda own, inputs: counts.update({own: inputs[0][:, 0].numel()}))
    trained = small(x)
    for norm, count in counts.items():
        # Running variances are unbiased, those of the batch are not.
        norm.running_var.mul_((count - 1) / count)
    torch.testing.assert_close(small.eval()(x), trained, rtol=0, atol=1e-10)


def with_layer(layer):
    return Network(
        [("conv", nn.Sequential(nn.Conv2d(3, 4, 1), layer))],
        [("last", nn.Sequential(nn.Flatten(), nn.Linear(4 * 16 * 16, 3)))],
        IMAGE,
        3,
    )


class FromInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        return x + self.conv(x)


REFUSED = {
    "lstm": (lambda: sent140_lstm((25,), 2, vocabulary=Vocabulary(30)), "it is not known"),
    "layer norm": (lambda: with_layer(nn.LayerNorm(16)), "it is not known"),
    "group norm without scales": (lambda: with_layer(nn.GroupNorm(2, 4, affine=False)), "no tensor by which"),
    "channel shuffle": (lambda: with_layer(nn.ChannelShuffle(2)), "it is not known"),
    "own groups": (lambda: torchvision_model(IMAGE, 4, arch="resnext50_32x4d"), "groups of channels"),
    "a sum with the input": (
        lambda: Network([("a", nn.Sequential(FromInput()))], fc_blocks(768, [4], 3), IMAGE, 3),
        "a fixed width",
    ),
}


def test_a_norm_behind_flattening_keeps_the_positions_of_its_channels():
    head = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4 * 256), nn.Linear(4 * 256, 3))
    network = Network([("conv", nn.Sequential(nn.Conv2d(3, 4, 1)))], [("last", head)], IMAGE, 3)
    small = narrowed(network, axes_of(network), 0.5)
    assert small(torch.randn(2, *IMAGE)).shape == (2, 3)
    assert small.state_dict()["head.last.1.weight"].shape == (512,)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_is_refused(name):
    build, reason = REFUSED[name]
    with pytest.raises(ConfigError, match=rf"^structure must .*{reason}.* but it is 'widths'\.$"):
        axes_of(build())


def test_groups_that_do_not_divide_what_is_left_are_refused():
    network = digits_cnn((1, 8, 8), 4, width=4, hidden=6, norm="gn", norm_groups=2)
    assert narrowed(network, axes_of(network), 0.5).rate == 0.5
    with pytest.raises(
        ConfigError, match=r"^structure\.levels must leave encoder\.conv1\.norm channels that its 2"
    ):
        narrowed(network, axes_of(network), 0.25)


def test_begun_statistics_are_the_old_ones_until_the_first_batch_which_replaces_them():
    """Who is scored before its first step, as one who joins, is scored by those that it has received."""
    norm, other = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    norm.running_mean.fill_(5.0)
    norm.running_var.fill_(3.0)
    begin_statistics(norm)
    begin_statistics(other)
    assert norm.running_mean.tolist() == [5, 5]
    x = torch.randn(7, 2)
    norm(x), other(x)
    assert all(torch.equal(one, two) for one, two in zip(norm.buffers(), other.buffers(), strict=True))
