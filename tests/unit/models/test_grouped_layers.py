"""Grouped layers against a loop over the groups."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedfeat.models import grouped_layers as layers

WIDTHS = ([4, 4, 4], [3, 3, 2], [3, 2, 2], [5, 3, 4])


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def randomised(module):
    """Every parameter drawn anew, so that scales of 1 and biases of 0 do not hide anything."""
    for i, parameter in enumerate(module.parameters()):
        parameter.data = draw(*parameter.shape, seed=i)
    return module


def by_group(module):
    """The parts of a grouped layer: what each run of equal groups is."""
    return module.runs if isinstance(module, layers.Runs) else [module]


def rows_of_group(module, group):
    """The parameters of one group: weight and bias rows, found by what the layer says of them."""
    for layer in by_group(module):
        if group in layer.group_of_row:
            mine = layer.group_of_row == group
            return layer.weight[mine], layer.bias[mine]
    raise AssertionError(f"no layer owns group {group}")


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("widths_in", WIDTHS)
@pytest.mark.parametrize("widths_out", WIDTHS)
def test_linear_maps(widths_in, widths_out):
    linear = randomised(layers.grouped_linear(widths_in, widths_out))
    x = draw(6, sum(widths_in))
    expected = []
    for group, part in enumerate(x.split(widths_in, 1)):
        weight, bias = rows_of_group(linear, group)  # (1, d', d) and (1, d')
        assert weight.shape == (1, widths_out[group], widths_in[group])
        expected.append(part @ weight[0].T + bias[0])
    close(linear(x), torch.cat(expected, 1))


def test_every_map_is_drawn_as_a_linear_layer_of_its_own_is():
    """16 inputs each: within 1 / sqrt(16) = 0.25, and with so many draws close to it."""
    torch.manual_seed(0)
    for drawn in layers.grouped_linear([16] * 4, [64] * 4).parameters():
        assert 0.97 * 0.25 < drawn.abs().max() <= 0.25


@pytest.mark.parametrize("widths_in", WIDTHS)
@pytest.mark.parametrize("widths_out", WIDTHS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions(widths_in, widths_out, channels_last):
    like = nn.Conv2d(1, 1, (3, 1), stride=2, padding=(2, 1), dilation=(2, 1))
    conv = randomised(layers.grouped_conv(like, widths_in, widths_out))
    x = draw(2, sum(widths_in), 7, 6)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    expected = [
        functional.conv2d(part, *rows_of_group(conv, group), stride=2, padding=(2, 1), dilation=(2, 1))
        for group, part in enumerate(x.split(widths_in, 1))
    ]
    close(conv(x), torch.cat(expected, 1))


def test_a_convolution_without_bias_stays_without():
    conv = layers.grouped_conv(nn.Conv2d(1, 1, 3, bias=False), [2, 2], [3, 3])
    assert [name for name, _ in conv.named_parameters()] == ["weight"]


@pytest.mark.parametrize("widths", WIDTHS)
def test_norms_never_look_across_groups(widths):
    norm = randomised(layers.grouped_norm(widths))
    x = draw(2, sum(widths), 3, 3)
    expected = []
    for group, part in enumerate(x.split(widths, 1)):
        weight, bias = rows_of_group(norm, group)
        # (x - mean) / sqrt(var + 1e-5) over the channels and places of the group.
        mean, var = part.mean((1, 2, 3), keepdim=True), part.var((1, 2, 3), keepdim=True, correction=0)
        normal = (part - mean) / (var + 1e-5).sqrt()
        expected.append(normal * weight[:, None, None] + bias[:, None, None])
    close(norm(x), torch.cat(expected, 1))


@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_convolutions(stride):
    conv = layers.depthwise_conv(nn.Conv2d(4, 4, 3, stride=stride, padding=1, groups=4), [3, 2])
    x = draw(2, 5, 4, 4)
    close(conv(x), functional.conv2d(x, conv.weight, conv.bias, stride=stride, padding=1, groups=5))
    assert conv.group_of_row.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(("own", "expected"), [(8, 8), (4, 4), (2, 2)])
def test_groups_of_a_convolutions_own_are_kept(own, expected):
    """Depthwise and ResNeXt's: 8 channels in two groups of the network, one of which is built."""
    whole = layers.grouped_conv(nn.Conv2d(8, 8, 3, groups=own), [4, 4], [4, 4])
    part = layers.grouped_conv(nn.Conv2d(8, 8, 3, groups=own), [4], [4])
    assert (whole.groups, part.groups) == (expected, expected // 2)
    assert whole.weight.shape == (8, 8 // expected, 3, 3)


def test_what_reads_everything_is_owned_all_the_same():
    conv = layers.fan_out_conv(nn.Conv2d(2, 7, 1), 5, [2, 1])
    linear = layers.fan_out_linear(5, [2, 1])
    assert conv.weight.shape == (3, 5, 1, 1)
    assert linear.weight.shape == (3, 5)
    assert conv.group_of_row.tolist() == linear.group_of_row.tolist() == [0, 0, 1]


def expected_logits(last, sets, x, widths, num_classes):
    """Every class by itself: the features of its group times its row."""
    logits = torch.full((len(x), num_classes), -torch.inf)
    parts = x.split(widths, 1) if len(widths) > 1 else [x] * len(sets)
    row = 0
    for classes, part in zip(sets, parts, strict=True):
        for c in classes:
            logits[:, c] = part @ last.weight[row, : part.shape[1]] + last.bias[row]
            row += 1
    return logits


@pytest.mark.parametrize(
    ("sets", "widths", "num_classes"),
    [
        (((0, 1), (2, 3), (4, 5)), [3, 3, 3], 6),
        (((0, 3), (1, 4), (2, 5)), [3, 3, 3], 6),
        (((4, 5), (0, 1)), [3, 3], 6),
        (((0,), (1, 2, 4), (3,)), [3, 3, 3], 5),
        (((0, 1), (2, 3)), [4, 2], 4),
        (((2,), (0, 5), (1, 3, 4)), [2, 4, 3], 7),
        (((2, 5),), [4], 6),
        (((1,), (0, 3)), [5], 4),
    ],
    ids=[
        "even",
        "strided",
        "trimmed",
        "unequal-sets",
        "unequal-widths",
        "all-unequal",
        "one-group",
        "all-read-the-same",
    ],
)
def test_logits_of_a_class_read_its_group_alone(sets, widths, num_classes):
    last = randomised(layers.ClassLinear(sets, widths, num_classes))
    x = draw(6, sum(widths)).requires_grad_()
    logits, expected = last(x), expected_logits(last, sets, x, widths, num_classes)
    close(logits, expected)
    inside = expected.isfinite()
    gradients = [
        torch.autograd.grad(found[inside].square().sum(), [x, *last.parameters()])
        for found in (logits, expected)
    ]
    for found, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)


def test_behind_the_weights_of_a_narrow_group_are_zeros_that_never_learn():
    last = layers.ClassLinear(((0,), (1, 2)), [2, 4], 3)
    assert last.weight[0, 2:].tolist() == [0, 0]
    last(draw(5, 6)).sum().backward()
    assert last.weight.grad[0, 2:].tolist() == [0, 0]
    assert last.weight.grad[0, :2].all()


def test_channels_are_taken_in_the_order_asked_for():
    take = layers.TakeChannels(torch.tensor([2, 0]))
    assert torch.equal(take(torch.tensor([[1.0, 2.0, 3.0]])), torch.tensor([[3.0, 1.0]]))
    assert not take.state_dict()


def test_uneven_widths_make_at_most_three_runs_whose_rows_name_their_groups():
    """7 = 2 + 2 + 2 + 1 in, 9 = 3 + 2 + 2 + 2 out: runs (2, 3), (2, 2) twice, (1, 2)."""
    network = nn.Sequential(layers.grouped_linear([2, 2, 2, 1], [3, 2, 2, 2]))
    rows = layers.group_rows(network)
    assert {key: groups.tolist() for key, groups in rows.items()} == {
        f"0.runs.{i}.{name}": groups
        for i, groups in enumerate([[0], [1, 2], [3]])
        for name in ("weight", "bias")
    }
    assert {key: len(network.state_dict()[key]) for key in rows} == {k: len(v) for k, v in rows.items()}


@pytest.mark.parametrize("kind", ["conv", "strided depthwise", "small depthwise", "norm", "linear", "last"])
def test_bf16_autocast_stays_close(kind):
    layer, shape = {
        "conv": (layers.grouped_conv(nn.Conv2d(1, 1, 3, padding=1), [4, 4], [5, 5]), (2, 8, 4, 4)),
        "strided depthwise": (
            layers.depthwise_conv(nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4), [4, 4]),
            (2, 8, 4, 4),
        ),
        "small depthwise": (
            layers.depthwise_conv(nn.Conv2d(4, 4, 3, padding=1, groups=4), [4, 4]),
            (2, 8, 2, 2),
        ),
        "norm": (layers.grouped_norm([4, 4]), (2, 8, 4, 4)),
        "linear": (layers.grouped_linear([4, 4], [3, 3]), (2, 8)),
        "last": (layers.ClassLinear(((0, 2), (1,)), [4, 4], 3), (2, 8)),
    }[kind]
    x = draw(*shape)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = layer(x.bfloat16())
    torch.testing.assert_close(half.float(), layer(x), rtol=0.03, atol=0.03)
