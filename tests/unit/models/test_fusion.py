"""The three operators by hand, what is frozen, and which networks can be fused."""

from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn

from fedfeat.errors import ConfigError
from fedfeat.models.blocks import conv_block, fc_blocks
from fedfeat.models.frozen import frozen_keys
from fedfeat.models.fusion import ConvFusion, Fusion, LambdaFusion, fuse
from fedfeat.models.mlp import mlp
from fedfeat.models.network import Network
from fedfeat.models.policy import sent_keys, tensor_policies

CONFIGS = sorted((Path(__file__).parents[3] / "configs" / "model").glob("*.yaml"))
CONFIGS = [path for path in CONFIGS if path.stem != "sent140_lstm"]  # reads no images

# Two channels at two places; as vectors, the places are two examples.
FROZEN = torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]])
LOCAL = torch.tensor([[[[5.0, 6.0]], [[7.0, 9.0]]]])
SLOPE = torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]])


def laid_out(maps, kind):
    return maps.clone() if kind == "maps" else maps[0, :, 0].t().clone()


def run(operator, kind):
    """Give output and gradient of the local features, both as (C, places); the operator keeps its own gradients."""
    local = laid_out(LOCAL, kind).requires_grad_()
    out = operator(laid_out(FROZEN, kind), local)
    out.backward(laid_out(SLOPE, kind))
    return [t.detach().t() if kind == "vectors" else t.detach()[0, :, 0] for t in (out, local.grad)]


both = pytest.mark.parametrize("kind", ["maps", "vectors"])


@both
def test_multi_by_hand(kind):
    """c_0: 1/4 * 1 + 3/4 * 5 = 4; slope of lambda_0: 1 * (1 - 5) + 2 * (2 - 6) = -12; of E_l: (1 - lambda) * slope."""
    operator = LambdaFusion(2, 0.0)
    with torch.no_grad():
        operator.lambdas.copy_(torch.tensor([0.25, 0.5]))
    out, to_local = run(operator, kind)
    assert out.tolist() == [[4.0, 5.0], [5.0, 6.5]]
    assert to_local.tolist() == [[0.75, 1.5], [1.5, 2.0]]
    assert operator.lambdas.grad.tolist() == [-12.0, -32.0]
    assert operator.global_part().tolist() == [0.25, 0.5]


@both
def test_single_by_hand(kind):
    operator = LambdaFusion(1, 0.25)
    out, to_local = run(operator, kind)
    assert out.tolist() == [[4.0, 5.0], [6.0, 7.75]]
    assert to_local.tolist() == [[0.75, 1.5], [2.25, 3.0]]
    assert operator.lambdas.grad.tolist() == [-12.0 - 32.0]


def conv_fusion(concat):
    operator = ConvFusion([2], False, "default", True, concat)
    with torch.no_grad():
        operator.conv.weight.copy_(torch.arange(1.0, 9.0).view(2, 4, 1, 1))
        operator.conv.bias.copy_(torch.tensor([10.0, 20.0]))
    return operator


@both
def test_conv_by_hand(kind):
    """At the first place [E_g || E_l] = (1, 3, 5, 7), so the first channel is 1 + 6 + 15 + 28 + 10 = 60."""
    operator = conv_fusion("global_first")
    out, to_local = run(operator, kind)
    assert out.tolist() == [[60.0, 74.0], [134.0, 168.0]]
    assert to_local.tolist() == [[3 + 21.0, 6 + 28.0], [4 + 24.0, 8 + 32.0]]
    assert operator.conv.weight.grad.flatten(1).tolist() == [[5, 11, 17, 25], [11, 25, 39, 57]]
    assert operator.conv.bias.grad.tolist() == [3.0, 7.0]


@both
def test_conv_with_the_local_half_first(kind):
    """At the first place [E_l || E_g] = (5, 7, 1, 3): 5 + 14 + 3 + 12 + 10 = 44."""
    operator = conv_fusion("local_first")
    out, to_local = run(operator, kind)
    assert out.tolist() == [[44.0, 56.0], [118.0, 150.0]]
    assert to_local.tolist() == [[1 + 15.0, 2 + 20.0], [2 + 18.0, 4 + 24.0]]
    assert operator.conv.weight.grad.flatten(1).tolist() == [[17, 25, 5, 11], [39, 57, 11, 25]]


def test_the_global_share_of_a_channel_is_that_of_its_half_in_the_norm():
    """Row 0 is (1, 2 | 3, 4), row 1 (5, 6 | 7, 8): sqrt(5) beside 5, and sqrt(61) beside sqrt(113)."""
    expected = torch.tensor([5**0.5 / (5**0.5 + 5), 61**0.5 / (61**0.5 + 113**0.5)])
    torch.testing.assert_close(conv_fusion("global_first").global_part(), expected)
    torch.testing.assert_close(conv_fusion("local_first").global_part(), 1 - expected)


@both
@pytest.mark.parametrize("concat", ["global_first", "local_first"])
@pytest.mark.parametrize(("widths", "grouped"), [([2], False), ([1, 1], True)])
def test_conv_may_start_as_the_mean_of_both(kind, concat, widths, grouped):
    operator = ConvFusion(widths, grouped, "average", True, concat)
    assert run(operator, kind)[0].tolist() == [[3.0, 4.0], [5.0, 6.5]]
    assert operator.global_part().tolist() == [0.5, 0.5]


@pytest.mark.parametrize("concat", ["global_first", "local_first"])
@pytest.mark.parametrize(("widths", "grouped"), [([3], False), ([2, 2], True), ([2, 1, 3], True)])
def test_the_mean_of_both_is_that_of_every_channel_with_groups_of_any_width(concat, widths, grouped):
    frozen, local = torch.arange(4.0 * sum(widths)).view(2, 2, sum(widths), 1, 1) ** 2
    operator = ConvFusion(widths, grouped, "average", True, concat)
    torch.testing.assert_close(operator(frozen, local), (frozen + local) / 2)


@pytest.mark.parametrize("init", ["default", "average"])
def test_a_network_is_fused_with_the_first_weights_that_are_asked_for(init):
    network = Network([("conv", conv_block(3, 4, 3))], fc_blocks(4 * 4, [], 10), (3, 4, 4), 10)
    torch.manual_seed(5)
    weight = fuse(network, "conv", conv_init=init).operator.conv.weight
    torch.manual_seed(5)
    drawn = nn.Conv2d(8, 4, 1).weight
    mean = torch.cat([torch.eye(4), torch.eye(4)], 1)[:, :, None, None] / 2
    torch.testing.assert_close(weight, drawn if init == "default" else mean, rtol=0, atol=0)


@pytest.mark.parametrize("widths", [[3, 3], [2, 1, 1]])
def test_a_grouped_conv_is_one_conv_per_group(widths):
    draw = torch.Generator().manual_seed(0)
    frozen, local = torch.randn(2, 2, sum(widths), 3, 1, generator=draw)
    operator = ConvFusion(widths, True, "default", True, "global_first")
    found = operator(frozen, local).split(widths, 1)
    rows = [row for conv in operator._convs() for row in conv.weight.flatten(1)]
    bias = torch.cat([conv.bias for conv in operator._convs()])
    for g, (f, own) in enumerate(zip(frozen.split(widths, 1), local.split(widths, 1), strict=True)):
        mine = slice(sum(widths[:g]), sum(widths[: g + 1]))
        expected = torch.einsum("bihw,oi->bohw", torch.cat([f, own], 1), torch.stack(rows[mine]))
        torch.testing.assert_close(found[g], expected + bias[mine][:, None, None])


@pytest.mark.parametrize(
    ("op", "bias", "count"),
    [("conv", True, 8_256), ("conv", False, 8_192), ("multi", True, 64), ("single", True, 1)],
)
def test_parameters_for_64_channels(op, bias, count):
    network = Network([("conv", conv_block(3, 64, 3))], fc_blocks(64 * 4, [], 10), (3, 4, 4), 10)
    fusion = fuse(network, op, conv_bias=bias)
    assert sum(p.numel() for p in fusion.parameters() if p.requires_grad) == count
    sent = sent_keys(tensor_policies(network))
    extra = [key for key in sent if key.startswith("fusion.")]
    assert sum(network.state_dict()[key].numel() for key in extra) == count
    assert not any(key.startswith("fusion.frozen.") for key in sent)


def normed():
    """A network with everything that has a mode: batch norm and dropout."""
    torch.manual_seed(3)
    conv = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
    return Network([("conv1", conv)], fc_blocks(8, [], 3), (2, 1, 2), 3)


def inputs(number=6, seed=1):
    return torch.randn(number, 2, 1, 2, generator=torch.Generator().manual_seed(seed))


def train_a_step(network, lr=0.5):
    network.train()
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=lr)
    nn.functional.cross_entropy(network(inputs()), torch.arange(6) % 3).backward()
    optimizer.step()


@pytest.mark.parametrize("op", ["conv", "multi", "single"])
def test_the_frozen_extractor_never_changes(op):
    network = normed()
    fusion = fuse(network, op, lambda_init=0.5)
    before = {key: value.clone() for key, value in fusion.frozen.network.state_dict().items()}
    assert len(before) == 7
    train_a_step(network)
    network.eval()
    network.train()
    assert not any(module.training for module in fusion.frozen.modules())
    assert fusion.training
    assert fusion.operator.training
    assert not any(p.requires_grad for p in fusion.frozen.parameters())
    assert all(p.grad is None for p in fusion.frozen.parameters())
    assert all(torch.equal(value, before[key]) for key, value in fusion.frozen.network.state_dict().items())
    moved = network.encoder.state_dict()
    # A bias in front of batch norm has no slope.
    assert {key for key in before if torch.equal(moved[key], before[key])} <= {"conv1.0.bias"}
    assert (
        set(frozen_keys(network))
        == {f"fusion.frozen.network.{key}" for key in before}
        <= set(network.state_dict())
    )


def test_the_frozen_extractor_drops_nothing_and_uses_its_statistics():
    network = normed()
    fusion = fuse(network, "multi")
    twice = [fusion.frozen_features(inputs()) for _ in range(2)]
    assert torch.equal(*twice)
    conv = network.encoder.conv1
    conv.eval()
    assert torch.equal(twice[0], conv(inputs()))


@pytest.mark.parametrize("op", ["multi", "single"])
def test_lambda_0_is_the_network_without_fusion(op):
    plain, fused = normed().eval(), normed().eval()
    fusion = fuse(fused, op, lambda_init=0.0)
    for tensor in fusion.frozen.parameters():
        tensor.data.mul_(3)
    assert torch.equal(fused(inputs()), plain(inputs()))
    assert torch.equal(fused.representation(inputs()), plain.representation(inputs()))


@pytest.mark.parametrize("op", ["multi", "single"])
def test_lambda_1_is_the_global_extractor(op):
    network = normed().eval()
    fusion = fuse(network, op, lambda_init=1.0)
    for parameter in network.encoder.parameters():
        parameter.data.mul_(3)
    torch.testing.assert_close(network.features(inputs()), fusion.frozen(inputs()))
    assert (network.features(inputs()) - network.encoder(inputs())).abs().max() > 0.1


def test_given_frozen_features_take_the_place_of_computed_ones():
    network = normed().eval()
    fusion = fuse(network, "conv")
    assert torch.equal(network(inputs(), fusion.frozen_features(inputs())), network(inputs()))
    assert not torch.equal(network(inputs(), torch.zeros(6, 4, 1, 2)), network(inputs()))


@pytest.mark.parametrize("op", ["conv", "multi", "single"])
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_network_of_the_zoo_can_be_fused(path, op):
    """On the meta device, where nothing is computed."""
    with torch.device("meta"):
        network = instantiate(OmegaConf.load(path))((3, 32, 32), 5)
        fusion = fuse(network, op)
        x = torch.empty(2, 3, 32, 32)
        logits = network.train()(x)
        assert logits.shape == (2, 5)
        logits.sum().backward()
    channels = network.encoder(x).shape[1]
    count = {"conv": 2 * channels**2 + channels, "multi": channels, "single": 1}[op]
    assert sum(p.numel() for p in fusion.operator.parameters()) == count
    assert all(p.grad is not None for p in (*fusion.operator.parameters(), *network.encoder.parameters()))
    assert all(p.grad is None for p in fusion.frozen.parameters())


def test_a_network_without_encoder_is_refused():
    with pytest.raises(
        ConfigError, match=r"^model must have an encoder whose .*, but this one is all head\.$"
    ):
        fuse(mlp((4,), 3, hidden=[]), "multi")


def test_the_fusion_holds_a_copy_of_the_extractor():
    encoder = nn.Sequential(nn.Linear(2, 2))
    fusion = Fusion(LambdaFusion(1, 0.0), encoder)
    encoder[0].weight.data.zero_()
    assert (fusion.frozen.network[0].weight != 0).all()
    assert encoder[0].weight.requires_grad
