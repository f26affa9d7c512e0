import pytest
import torch
from torch import nn

from fedfeat.errors import ConfigError
from fedfeat.models.blocks import conv_block, fc_blocks, make_norm
from fedfeat.models.cnn import digits_cnn
from fedfeat.models.hetero import hetero_cnn
from fedfeat.models.mlp import mlp
from fedfeat.models.network import Network
from fedfeat.models.shapes import feature_shape, output_shape
from fedfeat.models.vgg import vgg9


def linear_block(n_in, n_out):
    return fc_blocks(n_in, (), n_out)[0][1]


def test_forward_is_head_after_encoder_and_last_layer_after_representation():
    network = vgg9((3, 32, 32), 10).eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    logits = network(x)
    assert network.features(x).shape == (2, 256, 4, 4)
    assert torch.equal(network.head(network.features(x)), logits)
    assert network.representation(x).shape == (2, 512)
    assert torch.equal(network.last_layer(network.representation(x)), logits)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "last", [[nn.Dropout2d(0.5), nn.Flatten()], [nn.Flatten(), nn.Dropout(0.5)], [nn.Flatten()]]
)
def test_representation_and_logits_in_one_pass_are_those_of_two(last, training):
    """Bit for bit, with the same dropout in front of the last layer and none in the representation."""
    torch.manual_seed(0)
    encoder = [("conv", nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU()))]
    network = Network(encoder, [("last", nn.Sequential(*last, nn.Linear(3 * 4, 2)))], (1, 4, 4), 2).train(
        training
    )
    x = torch.randn(5, 1, 4, 4)
    torch.manual_seed(1)
    expected = network(x)
    torch.manual_seed(1)
    representation, logits = network.representation_and_logits(x)
    assert torch.equal(logits, expected)
    assert torch.equal(representation, network.representation(x))


def test_blocks_in_order_compose_to_the_network():
    network = digits_cnn((1, 8, 8), 10)
    x = hidden = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for _, block in network.blocks():
        hidden = block(hidden)
    assert [name for name, _ in network.blocks()] == ["conv1", "conv2", "fc1", "fc2"]
    assert torch.equal(hidden, network(x))


def test_representation_of_a_single_layer_head_is_the_flattened_features():
    network = hetero_cnn((3, 32, 32), 10, arch="A1").eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(network.representation(x), network.features(x).flatten(1))


def test_linear_classifier_has_an_empty_encoder():
    network = mlp((2, 3), 4, hidden=[])
    x = torch.arange(12.0).reshape(2, 2, 3)
    assert len(network.encoder) == 0
    assert torch.equal(network.representation(x), x.flatten(1))
    assert [name for name, _ in network.named_parameters()] == [
        "head.fc1.linear.weight",
        "head.fc1.linear.bias",
    ]


def test_last_layer_name_is_the_prefix_of_its_parameters():
    network = vgg9((3, 32, 32), 10)
    assert network.last_layer_name == "head.fc3.linear"
    owned = [n for n, _ in network.named_parameters() if n.startswith(network.last_layer_name + ".")]
    assert owned == ["head.fc3.linear.weight", "head.fc3.linear.bias"]


def test_names_must_differ_and_the_end_must_be_linear():
    with pytest.raises(
        ConfigError, match=r"^model must have blocks of different names, but it is \['a', 'a'\]"
    ):
        Network([("a", linear_block(2, 2))], [("a", linear_block(2, 2))], (2,), 2)
    with pytest.raises(
        ConfigError, match=r"^model must have a head that ends with an nn\.Linear, but it is ReLU"
    ):
        Network([], [("a", nn.Sequential(nn.ReLU()))], (2,), 2)
    with pytest.raises(
        ConfigError, match=r"^model must have a head that ends with an nn\.Linear, but it is None"
    ):
        Network([("a", linear_block(2, 2))], [], (2,), 2)


def test_dry_run_draws_no_random_numbers_and_moves_no_statistics():
    block = conv_block(3, 4, 3, norm="bn", pool=nn.MaxPool2d(2), dropout=0.5)
    before = torch.get_rng_state()
    assert output_shape(block, (3, 10, 8)) == (4, 4, 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert block.get_buffer("norm.num_batches_tracked").item() == 0


def test_same_seed_gives_same_weights():
    def build(seed):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return vgg9((3, 16, 16), 10).state_dict()

    first, second, third = build(0), build(0), build(1)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["head.fc3.linear.weight"], third["head.fc3.linear.weight"])


def test_block_order_is_conv_norm_relu_pool_dropout():
    block = conv_block(2, 4, 3, norm="gn", norm_groups=2, pool=nn.MaxPool2d(2), dropout=0.1)
    assert list(dict(block.named_children())) == ["conv", "norm", "relu", "pool", "dropout"]
    assert isinstance(block.get_submodule("dropout"), nn.Dropout2d)
    assert list(dict(conv_block(2, 4, 3).named_children())) == ["conv", "relu"]


def test_make_norm_kinds():
    assert make_norm("none", 4) is None
    assert isinstance(make_norm("bn", 4), nn.BatchNorm2d)
    group = make_norm("gn", 6, 3)
    assert isinstance(group, nn.GroupNorm)
    assert (group.num_groups, group.num_channels, group.eps, group.affine) == (3, 6, 1e-5, True)


@pytest.mark.parametrize("norm", ["none", "bn", "gn"])
def test_channels_last_gives_the_same_logits(norm):
    network = vgg9((3, 16, 16), 10, norm=norm).eval()
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    expected = network(x)
    network.to(memory_format=torch.channels_last)
    got = network(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_clients_can_be_stacked_with_vmap():
    networks = [digits_cnn((1, 8, 8), 10) for _ in range(3)]
    x = torch.randn(3, 4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    params, buffers = torch.func.stack_module_state(networks)

    def one(p, b, batch):
        return torch.func.functional_call(networks[0], (p, b), (batch,))

    got = torch.func.vmap(one)(params, buffers, x)
    for k, network in enumerate(networks):
        torch.testing.assert_close(got[k], network(x[k]), rtol=1e-4, atol=1e-5)


def test_an_encoder_that_fails_for_another_reason_is_not_blamed_on_the_pixels():
    blocks = [("a", conv_block(2, 4, 3)), ("b", conv_block(5, 4, 3))]
    with pytest.raises(ValueError, match="accepts no square image"):
        feature_shape("broken", blocks, (2, 8, 8))
