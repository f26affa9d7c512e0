"""Fusion in group-separated networks: groups never meet, and every row of the fusion belongs to its group."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from fedfeat.models.blocks import conv_block, fc_blocks
from fedfeat.models.frozen import frozen_keys
from fedfeat.models.fusion import fuse
from fedfeat.models.grouped import GroupedNetwork, GroupSeparation
from fedfeat.models.network import Network
from fedfeat.models.policy import DROPPED, GROUPED, SHARED, tensor_policies


def inputs(number=6, seed=1):
    return torch.randn(number, 2, 1, 2, generator=torch.Generator().manual_seed(seed))


SETS = ((1,), (0, 3), (2,))


def grouped(depth=1, **options):
    torch.manual_seed(5)
    blocks = [("conv1", conv_block(2, 7, 1)), ("conv2", conv_block(7, 7, 1))]
    network = Network(blocks, fc_blocks(14, [7], 4), (2, 1, 2), 4)
    spec = GroupSeparation(depth=depth, class_map=[list(classes) for classes in SETS], **options)
    return spec(network, SETS)


def encoder_ending_with(*layers):
    """Give a grouped network of (B, 2, 1, 2) whose encoder ends with further layers behind its last norm."""
    torch.manual_seed(5)
    blocks = [("conv1", conv_block(2, 7, 1)), ("conv2", conv_block(7, 7, 1))]
    blocks[1] = ("conv2", nn.Sequential(OrderedDict([*blocks[1][1].named_children(), *layers])))
    network = Network(blocks, fc_blocks(14, [7], 4), (2, 1, 2), 4)
    return GroupSeparation(depth=1, class_map=[list(classes) for classes in SETS])(network, SETS)


@pytest.mark.parametrize(
    ("layers", "size"),
    [
        ([("prelu", nn.PReLU())], 6),
        ([("flatten", nn.Flatten())], 12),
        ([("flatten", nn.Flatten()), ("prelu", nn.PReLU())], 12),
    ],
)
def test_what_follows_the_groups_does_not_hide_them(layers, size):
    network = encoder_ending_with(*layers)
    fuse(network, "conv")
    operator = network.fusion.operator
    assert operator.order is not None
    # Each of three groups fuses its own two channels, or their two pixels each.
    assert operator.conv.weight.shape == (size, 2 * size // 3, 1, 1)
    x = inputs()
    frozen = network.encoder(x).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(network(x, frozen)[:, 2].sum(), frozen)
    by_group = gradient.unflatten(1, (3, -1)).flatten(2).abs().sum((0, 2))
    assert (by_group != 0).tolist() == [False, False, True]


OPTIONS = {
    "even": {},
    "uneven": {"width_policy": "uneven"},
    "no norm": {"norm_group": "none"},
    "uneven without norm": {"width_policy": "uneven", "norm_group": "none"},
    "dense boundary": {"boundary": "dense"},
    "paired boundary behind the encoder": {"depth": 2, "boundary_pairing": "paired"},
    "uneven paired boundary behind the encoder": {
        **{"depth": 2, "boundary_pairing": "paired", "norm_shared": "none"},
        "width_policy": "uneven",
    },
}


@pytest.mark.parametrize("op", ["conv", "multi"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_fusion_never_mixes_groups(op, options):
    """A logit's gradient is zero in all groups but its own, also in what it reads of the frozen extractor."""
    network = grouped(**options)
    fuse(network, op, lambda_init=0.5)
    network.train()
    x = inputs()
    rows = {k: g for k, g in network.group_rows().items() if k in dict(network.named_parameters())}
    rows = {k: g for k, g in rows.items() if not k.startswith("fusion.frozen.")}
    assert any(key.startswith("fusion.operator.") for key in rows)
    channels = network.encoder(x).shape[1]
    frozen = torch.randn(len(x), channels, 1, 2, requires_grad=True)
    widths = [3, 2, 2] if "uneven" in str(options) else [channels // 3] * 3
    of_channel = torch.tensor([g for g, width in enumerate(widths) for _ in range(width)])
    parameters = dict(network.named_parameters())
    for group, classes in enumerate(SETS):
        for c in classes:
            wanted = [frozen, *(parameters[key] for key in rows)]
            slopes = torch.autograd.grad(network(x, frozen)[:, c].square().sum(), wanted)
            for slope, of_row in zip(slopes[1:], rows.values(), strict=True):
                assert (slope[of_row != group] == 0).all()
            fused = [s for s, key in zip(slopes[1:], rows, strict=True) if key.startswith("fusion.operator.")]
            assert any((s != 0).any() for s in fused)
            by_channel = slopes[0].abs().sum((0, 2, 3))
            assert (by_channel[of_channel != group] == 0).all()
            assert (by_channel[of_channel == group] > 0).any()


@pytest.mark.parametrize(("op", "names"), [("conv", ("conv.weight", "conv.bias")), ("multi", ("lambdas",))])
def test_rows_of_a_grouped_fusion(op, names):
    """7 channels in three groups are the next multiple, 6."""
    network = grouped()
    fuse(network, op)
    found = network.group_rows()
    policies = tensor_policies(network)
    for name in names:
        assert found[f"fusion.operator.{name}"].tolist() == [0, 0, 1, 1, 2, 2]
        assert policies[f"fusion.operator.{name}"] == GROUPED
    assert {policies[key] for key in frozen_keys(network)} == {DROPPED}


def test_rows_of_an_uneven_grouped_fusion():
    network = grouped(width_policy="uneven")
    fuse(network, "multi")
    assert network.group_rows()["fusion.operator.lambdas"].tolist() == [0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("op", ["conv", "multi", "single"])
def test_features_of_no_group_are_fused_as_a_whole(op):
    network = grouped(depth=2)
    assert isinstance(network, GroupedNetwork)
    fusion = fuse(network, op)
    policies = tensor_policies(network)
    of_operator = {key for key in policies if key.startswith("fusion.operator.")}
    assert of_operator
    assert {policies[key] for key in of_operator} == {SHARED}
    if op == "conv":
        # 6 of 7 channels, so that the groups behind them read equal slices.
        assert fusion.operator.conv.weight.shape == (6, 12, 1, 1)
        assert fusion.operator.conv.groups == 1


def test_one_lambda_for_all_belongs_to_no_group():
    network = grouped()
    fuse(network, "single")
    assert tensor_policies(network)["fusion.operator.lambdas"] == SHARED


@pytest.mark.parametrize("kept", [SETS[:1], (SETS[2], SETS[1])])
def test_a_trimmed_network_fuses_the_groups_that_it_has(kept):
    torch.manual_seed(5)
    blocks = [("conv1", conv_block(2, 6, 1)), ("conv2", conv_block(6, 6, 1))]
    spec = GroupSeparation(depth=1, class_map=[list(classes) for classes in SETS], trim=True)
    network = spec(Network(blocks, fc_blocks(12, [6], 4), (2, 1, 2), 4), SETS, kept)
    fusion = fuse(network, "conv")
    rows = network.group_rows()["fusion.operator.conv.weight"]
    assert rows.tolist() == [g for g in range(len(kept)) for _ in range(2)]
    assert fusion.operator.conv.weight.shape == (2 * len(kept), 4, 1, 1)
    held = {c for classes in kept for c in classes}
    assert network(inputs()).isfinite().all(0).tolist() == [c in held for c in range(4)]
