"""Class preferences: hand-computed vectors, every switch, and a network that stays as it was."""

import copy
import itertools
import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedfeat.features.capture import captured, layer_points
from fedfeat.features.preference import (
    NO_CLASS,
    alignment,
    alignment_distance,
    choose_depth,
    class_preferences,
    normalise,
    primary_classes,
    total_variance,
)
from fedfeat.models.blocks import conv_block, conv_net
from fedfeat.models.lstm import sent140_lstm
from fedfeat.models.mobilenet import mobilenet_v1_cifar
from fedfeat.models.network import Network
from fedfeat.models.torchvision_adapter import torchvision_model
from fedfeat.types import Vocabulary


def block(name, **layers):
    return name, nn.Sequential(OrderedDict(layers))


def linear(weight):
    weight = torch.tensor(weight)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight
    return layer


def two_units():
    """Two hidden units: A = relu(x_0, -x_1); Z = (2 A_0 - A_1, A_0 / 2 + 4 A_1)."""
    hidden = block("fc1", linear=linear([[1.0, 0.0], [0.0, -1.0]]), relu=nn.ReLU())
    return Network([], [hidden, block("fc2", linear=linear([[2.0, -1.0], [0.5, 4.0]]))], (2,), 2)


# Before the ReLU (1, -2), (3, 2) for class 0 and (2, 1) for class 1; behind it (1, 0), (3, 2) and (2, 1).
POINTS = [torch.tensor([[1.0, 2.0], [3.0, -2.0]]), torch.tensor([[2.0, -1.0]])]


def tiny_conv(pool):
    """Filters x and -x, ReLU, pool to one pixel, Z = (3 F_0 + F_1, F_0 + 2 F_1)."""
    conv = nn.Conv2d(1, 2, 1, bias=False)
    conv.weight.data = torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)
    encoder = block("conv", conv=conv, relu=nn.ReLU(), pool=pool)
    head = block("fc", flatten=nn.Flatten(), linear=linear([[3.0, 1.0], [1.0, 2.0]]))
    return Network([encoder], [head], (1, 2, 2), 2)


IMAGE = torch.tensor([[[[1.0, -1.0], [2.0, 0.0]]]])


def small_net(norm="bn", seed=0):
    torch.manual_seed(seed)
    encoder = [
        ("conv1", conv_block(2, 4, 3, padding=1, norm=norm, pool=nn.MaxPool2d(2), dropout=0.5)),
        ("conv2", conv_block(4, 6, 3, padding=1, norm=norm)),
    ]
    return conv_net("small", encoder, (2, 6, 6), 3, hidden=(8,), dropout=(0.5,))


def small_images(seed=1):
    return torch.randn((3, 5, 2, 6, 6), generator=torch.Generator().manual_seed(seed))


def test_two_linear_units_by_hand():
    """Class 0: mean A = (2, 1) times (2, -1). Class 1: (2, 1) times (1/2, 4). Last layer: mean Z_c."""
    found = class_preferences(two_units(), POINTS)
    assert found.layers == ("head.fc1.linear", "head.fc2.linear")
    assert found.vectors[0].tolist() == [[4.0, 1.0], [-1.0, 4.0]]
    assert found.vectors[1].tolist() == [[3.0, 0.0], [0.0, 5.0]]
    assert all(p.dtype == torch.float32 and not p.requires_grad for p in found.vectors)


def test_pre_act_by_hand():
    """Class 0: mean A = (2, 0); gradients (2, 0) and (2, -1), as the ReLU is off for (1, -2)."""
    found = class_preferences(two_units(), POINTS, "pre_act", "mean_then_product")
    assert found.vectors[0].tolist() == [[4.0, 1.0], [0.0, 4.0]]
    after = class_preferences(two_units(), POINTS, "post_act", "mean_then_product")
    assert after.vectors[0].tolist() == [[4.0, 1.0], [-1.0, 4.0]]


def test_pre_act_times_gradient_is_post_act_times_gradient_under_relu():
    """Because relu'(a) a = relu(a); under a sigmoid it is not."""
    pre, post = (class_preferences(two_units(), POINTS, at).vectors[0] for at in ("pre_act", "post_act"))
    assert pre.tolist() == post.tolist()
    network = two_units()
    network.head.fc1.relu = nn.Sigmoid()
    pre, post = (class_preferences(network, POINTS, at).vectors[0] for at in ("pre_act", "post_act"))
    a = torch.tensor([2.0, 1.0])  # class 1
    s = a.sigmoid()
    torch.testing.assert_close(post[:, 1], s * torch.tensor([0.5, 4.0]))
    torch.testing.assert_close(pre[:, 1], a * s * (1 - s) * torch.tensor([0.5, 4.0]))


def test_prob_by_hand():
    """Class 1 has Z = (3, 5): d softmax_1 / dZ = y_1 y_0 (-1, 1)."""
    y = 1 / (1 + math.exp(-2))
    last = class_preferences(two_units(), POINTS, pref_score="prob").vectors[1]
    assert last[:, 1].tolist() == pytest.approx([-3 * y * (1 - y), 5 * y * (1 - y)])


@pytest.mark.parametrize(
    ("pool", "how", "expected", "logit"),
    [
        # F_0 = (1, 0, 2, 0), F_1 = (0, 1, 0, 0). The maximum passes its gradient to one of four positions.
        (nn.MaxPool2d(2), "product_then_mean", [2 * 3 / 4, 1 * 1 / 4], 7.0),
        (nn.MaxPool2d(2), "mean_then_product", [3 / 4 * 3 / 4, 1 / 4 * 1 / 4], 7.0),
        (nn.AvgPool2d(2), "product_then_mean", [3 / 4 * 3 / 4, 1 / 4 * 1 / 4], 2.5),
    ],
)
def test_tiny_convolution_by_hand(pool, how, expected, logit):
    found = class_preferences(tiny_conv(pool), [IMAGE, IMAGE[:0]], pref_reduce=how)
    assert found.layers == ("encoder.conv.conv", "head.fc.linear")
    assert found.vectors[0][:, 0].tolist() == expected
    assert found.vectors[0][:, 1].tolist() == [0.0, 0.0]  # no image of class 1
    assert found.vectors[1].tolist() == [[logit, 0.0], [0.0, 0.0]]


def test_a_layer_in_front_of_the_last_has_weight_times_mean_activation():
    network, images = small_net().eval(), small_images()
    p = class_preferences(network, images).vectors[2]
    with torch.no_grad():
        means = torch.stack([network.representation(x).mean(0) for x in images], dim=1)
    torch.testing.assert_close(p, network.last_layer.weight.detach().T * means)


@pytest.mark.parametrize("pref_at", ["post_act", "pre_act"])
def test_vectors_go_with_their_neurons(pref_at):
    """Filters of conv2 in another order, with its norm and the columns behind them: only its vectors move."""
    network, order = small_net(), torch.tensor([3, 0, 5, 1, 4, 2])
    moved = copy.deepcopy(network)
    norm = moved.encoder.conv2.norm
    for tensor in (*moved.encoder.conv2.conv.parameters(), *norm.parameters(), norm.running_mean):
        tensor.data = tensor.data[order]
    columns = moved.head.fc1.linear.weight
    columns.data = columns.data.view(8, 6, -1)[:, order].reshape(8, -1)
    before = class_preferences(network, small_images(), pref_at).vectors
    after = class_preferences(moved, small_images(), pref_at).vectors
    torch.testing.assert_close(after[1], before[1][order])
    for i in (0, 2, 3):
        torch.testing.assert_close(after[i], before[i])
    assert not torch.allclose(before[1], before[1][order])


@pytest.mark.parametrize("inference", [False, True])
def test_the_network_stays_as_it_was(inference):
    network = small_net().train()
    network.encoder.conv1.norm.eval()  # a part that a caller has frozen
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    modes = {name: module.training for name, module in network.named_modules()}
    draws, expected = torch.get_rng_state(), class_preferences(copy.deepcopy(network), small_images())
    with torch.inference_mode(inference):
        found = class_preferences(network, small_images())
    assert all(map(torch.equal, found.vectors, expected.vectors))
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())
    assert {name: module.training for name, module in network.named_modules()} == modes
    assert all(p.grad is None and p.requires_grad for p in network.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())
    assert torch.equal(torch.get_rng_state(), draws)


def test_hooks_and_mode_are_restored_after_an_error():
    network = small_net().train()
    with pytest.raises(RuntimeError):
        class_preferences(network, torch.zeros(3, 1, 7, 6, 6))
    assert network.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())


def test_frozen_weights_give_the_same():
    expected = class_preferences(small_net(), small_images()).vectors
    found = class_preferences(small_net().requires_grad_(False), small_images()).vectors
    assert all(map(torch.equal, found, expected))


def test_points_of_a_plain_block_are_norm_and_relu():
    points = layer_points(small_net("gn"))
    assert list(points) == ["encoder.conv1.conv", "encoder.conv2.conv", "head.fc1.linear", "head.fc2.linear"]
    first, last = points["encoder.conv1.conv"], points["head.fc2.linear"]
    assert first.pre_act == ("encoder.conv1.norm", 0, 4)
    assert first.post_act == ("encoder.conv1.relu", 0, 4)
    assert last.pre_act == last.post_act == ("head.fc2.linear", 0, 3)


def test_points_of_a_residual_block():
    """Its two ReLUs are one module, and the second belongs to the sum, which is made in place."""
    network = torchvision_model((3, 8, 8), 4, small_input=True)
    points = layer_points(network)
    prefix = "encoder.layer2_1.residual"
    assert points[f"{prefix}.conv1"].post_act == (f"{prefix}.relu", 0, 128)
    assert points[f"{prefix}.conv2"].post_act == (f"{prefix}.bn2", 0, 128)
    assert points[f"{prefix}.downsample.0"].post_act == (f"{prefix}.downsample.1", 0, 128)
    convolutions = [name for name, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert sorted(points) == sorted(convolutions)
    vectors = class_preferences(network, torch.rand(4, 2, 3, 8, 8)).vectors
    assert all(p.isfinite().all() and p.any(dim=0).all() for p in vectors)


def test_changes_in_place_do_not_reach_what_was_captured():
    """torchvision's ReLU and its addition both overwrite the norm's output."""
    network = torchvision_model((3, 8, 8), 4, small_input=True).eval()
    seen, x = {}, torch.rand(2, 3, 8, 8)
    for name, module in network.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(lambda _m, _a, y, name=name: seen.update({name: y.detach().clone()}))
    points = {layer: found.pre_act for layer, found in layer_points(network).items()}
    expected = network(x)
    with captured(network, points) as taken:
        logits = network(x)
    assert torch.equal(logits, expected)
    norms = [layer for layer, point in points.items() if point.module in seen]
    assert len(norms) == 20  # all convolutions
    assert all(torch.equal(taken[layer], seen[points[layer].module]) for layer in norms)


class Twice(nn.Module):
    """relu(fc2(relu(fc1(x)))) with one ReLU, as torchvision's bottlenecks have it."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.relu = linear([[1.0], [-1.0]]), linear([[1.0, 2.0], [-3.0, 1.0]]), nn.ReLU()

    def forward(self, x):
        return self.relu(self.fc2(self.relu(self.fc1(x))))


def test_each_call_of_a_module_is_a_point_of_its_own():
    network = Network([], [block("a", twice=Twice()), block("b", linear=linear([[1.0, 1.0]]))], (1,), 1)
    points = {layer: found.post_act for layer, found in layer_points(network).items()}
    path = "head.a.twice"
    assert points[f"{path}.fc1"] == (f"{path}.relu", 0, 2)
    assert points[f"{path}.fc2"] == (f"{path}.relu", 1, 2)
    with captured(network, points) as taken:
        network(torch.tensor([[2.0]]))
    assert taken[f"{path}.fc1"].tolist() == [[2.0, 0.0]]
    assert taken[f"{path}.fc2"].tolist() == [[2.0, 0.0]]
    with captured(network, points) as taken:
        network(torch.tensor([[-2.0]]))
    assert taken[f"{path}.fc1"].tolist() == [[0.0, 2.0]]
    assert taken[f"{path}.fc2"].tolist() == [[4.0, 2.0]]


class Gate(nn.Module):
    """relu(z) * sigmoid(z) of z = fc(x)."""

    def __init__(self):
        super().__init__()
        self.fc, self.relu, self.gate = linear([[1.0], [-1.0]]), nn.ReLU(), nn.Sigmoid()

    def forward(self, x):
        z = self.fc(x)
        return self.relu(z) * self.gate(z)


def test_of_two_activations_behind_a_layer_the_first_counts():
    network = Network([], [block("a", gated=Gate()), block("b", linear=linear([[1.0, 1.0]]))], (1,), 1)
    assert layer_points(network)["head.a.gated.fc"].post_act == ("head.a.gated.relu", 0, 2)


def test_behind_a_flattening_are_other_neurons():
    """The ReLU reads 8 features of 2 channels."""
    conv = nn.Conv2d(1, 2, 1)
    head = block("fc", flatten=nn.Flatten(), relu=nn.ReLU(), linear=nn.Linear(8, 3))
    points = layer_points(Network([block("conv", conv=conv)], [head], (1, 2, 2), 3))
    assert points["encoder.conv.conv"].post_act == ("encoder.conv.conv", 0, 2)


def test_every_layer_of_a_mobilenet_has_its_relu():
    points = layer_points(mobilenet_v1_cifar((3, 8, 8), 2, width_multiplier=0.125))
    assert len(points) == 28
    assert [found.post_act.module[-4:] for found in points.values()] == ["relu"] * 27 + ["near"]


class GroupedLinear(nn.Module):
    """Independent linear maps: (B, groups * d) to (B, groups * d_out)."""

    def __init__(self, groups, d_out, d):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(groups, d_out, d))

    def forward(self, x):
        groups = len(self.weight)
        return torch.einsum("bgd,god->bgo", x.view(len(x), groups, -1), self.weight).flatten(1)


class SideBySide(nn.Module):
    """Several layers, each over its share of the channels."""

    def __init__(self, *parts, widths):
        super().__init__()
        self.parts, self.widths = nn.ModuleList(parts), widths

    def forward(self, x):
        return torch.cat([part(y) for part, y in zip(self.parts, x.split(self.widths, 1), strict=True)], 1)


class LastLinear(nn.Linear):
    """A last layer of a network that lacks its last class: logit -inf."""

    def forward(self, x):
        logits = super().forward(x)
        return logits.new_full(logits.shape, -torch.inf).index_copy(1, torch.arange(2), logits[:, :2])


def test_a_layer_of_separate_groups_is_a_block_diagonal_one():
    torch.manual_seed(0)
    grouped, last = GroupedLinear(2, 3, 4), nn.Linear(6, 2, bias=False)
    last.weight.data[0, 3:] = 0  # class 0 reads group 0 alone
    dense = linear(torch.block_diag(*grouped.weight.detach()).tolist())
    images = torch.randn(2, 7, 8)
    found, expected = (
        class_preferences(
            Network([], [block("a", linear=layer, relu=nn.ReLU()), block("b", linear=last)], (8,), 2), images
        )
        for layer in (grouped, dense)
    )
    assert found.layers == expected.layers
    torch.testing.assert_close(found.vectors[0], expected.vectors[0])
    assert not found.vectors[0][3:, 0].any()
    assert found.vectors[0][:3, 0].any()


def test_layers_side_by_side_are_one_layer():
    """Convolutions and norms over 1 and 2 channels, against one layer with the same weights."""
    torch.manual_seed(0)
    parts, norms = (
        [nn.Conv2d(1, 1, 3), nn.Conv2d(2, 4, 3, groups=2)],
        [nn.GroupNorm(1, 1), nn.GroupNorm(2, 4)],
    )
    dense = nn.Conv2d(3, 5, 3)
    nn.init.zeros_(dense.weight)
    for row, column in enumerate((0, 1, 1, 2, 2)):
        dense.weight.data[row, column] = torch.cat([part.weight.data for part in parts])[row, 0]
    dense.bias.data = torch.cat([part.bias.data for part in parts])
    split = block("a", conv=SideBySide(*parts, widths=[1, 2]), norm=SideBySide(*norms, widths=[1, 4]))
    whole = block("a", conv=dense, norm=SideBySide(*norms, widths=[1, 4]))
    head = block("fc", relu=nn.ReLU(), pool=nn.MaxPool2d(2), flatten=nn.Flatten(), linear=nn.Linear(5, 2))
    found, expected = (Network([one], [head], (3, 4, 4), 2) for one in (split, whole))
    points = layer_points(found)
    assert points == layer_points(expected)
    assert points["encoder.a.conv"] == (("encoder.a.norm", 0, 5), ("head.fc.relu", 0, 5))
    images = torch.randn(2, 6, 3, 4, 4)
    for p, q in zip(class_preferences(found, images)[1], class_preferences(expected, images)[1], strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("how", ["product_then_mean", "mean_then_product"])
@pytest.mark.parametrize("score", ["logit", "prob"])
def test_a_class_that_the_network_lacks_has_no_preference(score, how):
    blocks = [block("fc1", linear=nn.Linear(4, 5), relu=nn.ReLU()), block("fc2", linear=LastLinear(5, 3))]
    network = Network([], blocks, (4,), 3)
    hidden, last = class_preferences(network, torch.randn(3, 6, 4), "post_act", how, score).vectors
    for p in (hidden, last):
        assert p.isfinite().all()
        assert not p[:, 2].any()
        assert p[:, :2].any(dim=0).all()
    assert not last[2].any()


def test_numbers_that_are_none_stay_visible():
    network = two_units()
    network.head.fc1.linear.weight.data[0] = math.nan
    assert class_preferences(network, POINTS).vectors[0][0].isnan().all()


def test_a_layer_that_no_logit_reads_has_no_preference():
    class Aside(Network):
        def forward(self, x):
            self.aside(x)
            return super().forward(x)

    network = Aside([], [block("fc", linear=nn.Linear(4, 2))], (4,), 2)
    network.aside = nn.Linear(4, 3)
    found = class_preferences(network, torch.ones(2, 1, 4))
    assert found.layers[0] == "aside"
    assert found.vectors[0].tolist() == [[0.0, 0.0]] * 3


def test_every_class_needs_an_entry():
    with pytest.raises(ValueError, match="each of the 2 classes, but it has 1"):
        class_preferences(two_units(), POINTS[:1])


@pytest.mark.parametrize(
    ("neg", "expected"),
    [
        ("clamp", [[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]]),
        ("abs", [[0.75, 0.25], [0.5, 0.5], [0.2, 0.8]]),
        ("keep", [[1.5, -0.5], [0.5, 0.5], [0.2, 0.8]]),
    ],
)
def test_normalise_by_hand(neg, expected):
    found = normalise(torch.tensor([[3.0, -1.0], [0.0, 0.0], [-1.0, -4.0]]), neg)
    torch.testing.assert_close(found, torch.tensor(expected))


def test_primary_class_is_the_largest_if_it_is_not_zero():
    """The last two: a dead neuron, and one of a group that holds class 1 alone and works against it."""
    p = torch.tensor([[1.0, 3.0, 2.0], [-3.0, -2.0, -1.0], [0.0, 0.0, 0.0], [0.0, -2.0, 0.0]])
    assert primary_classes(p).tolist() == [1, 2, NO_CLASS, NO_CLASS]
    assert primary_classes(torch.full((2, 3), float("nan"))).tolist() == [NO_CLASS, NO_CLASS]


def test_total_variance_by_hand():
    """Vectors (1, 0) and (0, 1) are sqrt(1/2) from their mean; (3/4, 1/4) twice are 0 from theirs."""
    assert total_variance(torch.tensor([[2.0, 0.0], [0.0, 5.0]])) == pytest.approx(math.sqrt(0.5))
    assert total_variance(torch.tensor([[3.0, 1.0], [6.0, 2.0]])) == pytest.approx(0.0, abs=1e-7)
    assert total_variance(torch.tensor([[3.0, -1.0], [1.0, 0.0]]), "abs") == pytest.approx(math.sqrt(2) / 8)


CLIENTS = st.integers(2, 6).flatmap(
    lambda clients: st.lists(
        st.lists(st.integers(NO_CLASS, 3), min_size=clients, max_size=clients), min_size=1, max_size=5
    )
)


@given(CLIENTS)
def test_alignment_counts_pairs(table):
    """Brute force over the pairs of clients that both have a class."""
    expected = []
    for neuron in table:
        pairs = [a == b for a, b in itertools.combinations(neuron, 2) if NO_CLASS not in (a, b)]
        expected.append(np.mean(pairs) if pairs else np.nan)
    found = alignment(torch.tensor(table).unbind(dim=1))
    np.testing.assert_allclose(found.numpy(), expected)


@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 2**31))
def test_alignment_distance_is_the_mean_over_pairs_and_neurons(clients, neurons, seed):
    p = torch.rand((clients, neurons, 3), generator=torch.Generator().manual_seed(seed))
    pairs = [(a - b).square().sum(dim=1) for a, b in itertools.combinations(p, 2)]
    expected = float(torch.stack(pairs).mean())
    assert alignment_distance(iter(p)) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_alignment_distance_of_equal_and_of_opposite_clients():
    one, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert alignment_distance([one, one, one]) == 0.0
    assert alignment_distance([one, other]) == 2.0
    with pytest.raises(ValueError, match="at least two clients, but it got 1"):
        alignment_distance([one])


@given(st.integers(2, 5), st.integers(1, 6), st.integers(0, 2**31))
def test_alignment_distance_counts_pairs_that_both_have_the_neuron(clients, neurons, seed):
    """Brute force; whatever stands at neurons that a client lacks has no influence."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand((clients, neurons, 3), generator=generator)
    here = torch.rand((clients, neurons), generator=generator) < 0.6
    means = []
    for i in range(neurons):
        pairs = itertools.combinations(p[here[:, i], i], 2)
        distances = [float((a - b).square().sum()) for a, b in pairs]
        means += [np.mean(distances)] if distances else []
    expected = np.mean(means) if means else np.nan
    p[~here] = math.nan
    assert alignment_distance(iter(p), iter(here)) == pytest.approx(expected, rel=1e-5, abs=1e-6, nan_ok=True)


def test_alignment_distance_needs_a_mask_for_every_client():
    p = torch.rand(3, 2, 4)
    assert alignment_distance(p, torch.ones(3, 2, dtype=torch.bool)) == alignment_distance(p)
    with pytest.raises(ValueError, match="shorter"):
        alignment_distance(p, torch.ones(2, 2, dtype=torch.bool))


@pytest.mark.parametrize(
    ("tv", "tau", "depth"),
    [
        ([0.1, 0.2, 0.3, 0.8, 0.2, 0.9], 0.5, 3),  # threshold 0.5; that it sinks again does not matter
        ([0.0, 0.5, 1.0], 0.5, 2),  # 0.5 does not exceed 0.5
        ([1.0, 0.0], 0.5, 0),
        ([0.3, 0.3, 0.3], 0.5, 3),  # none exceeds
        ([0.0, 0.1, 1.0], 0.0, 1),
        ([0.0, 0.1, 1.0], 1.0, 3),
    ],
)
def test_choose_depth(tv, tau, depth):
    assert choose_depth(tv, tau) == depth


def test_choose_depth_refuses_what_has_no_answer():
    for tv in ([], [0.1, math.nan]):
        with pytest.raises(ValueError, match="finite"):
            choose_depth(tv)


def test_numbers_of_words_are_read_as_they_are_in_half_precision():
    """bfloat16 has no 257: it would read word 256."""
    network, seen = sent140_lstm((3,), 2, Vocabulary(5000), embed_dim=4, hidden=4).to(torch.bfloat16), []
    network.encoder.embed.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs[0].tolist()))
    class_preferences(network, [torch.tensor([[257, 4001, 0]]), torch.tensor([[4999, 1, 2]])])
    assert seen[-2:] == [[257, 4001, 0], [4999, 1, 2]]
