"""Projection heads in front of a network's last layer, and weights drawn once more."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedfeat.errors import ConfigError
from fedfeat.models.cnn import mnist_cnn
from fedfeat.models.draws import xavier
from fedfeat.models.freezing import freeze
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.mlp import mlp
from fedfeat.models.projection import project
from fedfeat.models.redraw import drawn_again


def test_the_last_layer_reads_the_projection_and_all_before_is_as_it_was():
    torch.manual_seed(0)
    network = mlp((4,), 3, hidden=[5, 6])
    before, x = network.representation(torch.ones(2, 4)), torch.ones(2, 4)
    project(network, 7)
    head = dict(network.head.fc3.named_parameters())
    shapes = {"projection.in.weight": (6, 6), "projection.in.bias": (6,), "projection.out.weight": (7, 6),
              "projection.out.bias": (7,), "linear.weight": (3, 7), "linear.bias": (3,)}  # fmt: skip
    assert {name: tuple(tensor.shape) for name, tensor in head.items()} == shapes
    hidden = functional.linear(before, head["projection.in.weight"], head["projection.in.bias"]).relu()
    seen = functional.linear(hidden, head["projection.out.weight"], head["projection.out.bias"])
    torch.testing.assert_close(network.last_input(x), seen)
    torch.testing.assert_close(network.representation(x), seen)
    torch.testing.assert_close(
        network(x), functional.linear(seen, head["linear.weight"], head["linear.bias"])
    )
    assert network.last_layer_name == "head.fc3.linear"


def test_a_dropout_that_ends_the_representation_is_in_front_of_the_projection():
    network = mnist_cnn((1, 28, 28), 10)
    project(network, 8)
    kinds = [type(layer) for layer in network.modules() if not list(layer.children())]
    assert kinds[-5:] == [nn.Dropout, nn.Linear, nn.ReLU, nn.Linear, nn.Linear]


def test_a_xavier_network_stays_one():
    network = mnist_cnn((1, 28, 28), 10, init="xavier")
    project(network, 8)
    assert network.draw is xavier
    for layer in (
        network.last_layer,
        network.get_submodule(f"{network.last_layer_name[:-7]}.projection.out"),
    ):
        assert float(layer.bias.detach().abs().max()) == 0
        bound = (6 / (layer.in_features + layer.out_features)) ** 0.5
        assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound


def test_groups_are_refused():
    spec = GroupSeparation(groups=2, depth=1)
    dense = mlp((4,), 4, hidden=[6, 6])
    network = spec(dense, spec.sets(dense))
    with pytest.raises(ConfigError) as caught:
        project(network, 8)
    assert str(caught.value) == (
        "algorithm.client.projection must be null for a network with groups, which would meet in the projection, "
        "but it is 8."
    )


def test_weights_drawn_again_are_those_of_a_builder_with_the_seed():
    network = mlp((4,), 3, hidden=[5])
    torch.manual_seed(7)
    expected = mlp((4,), 3, hidden=[5]).state_dict()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    found = drawn_again(network, 7)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())
    assert not torch.equal(found["head.fc2.linear.weight"], network.last_layer.weight)


def test_what_is_not_trained_stays():
    network = mlp((4,), 3, hidden=[5])
    network.encoder.fc1.requires_grad_(False)
    found, own = drawn_again(network, 7), network.state_dict()
    assert {key for key in own if torch.equal(found[key], own[key])} == {key for key in own if "fc1" in key}


def test_a_frozen_last_layer_is_not_replaced_by_one_that_trains():
    network = mlp((4,), 3, hidden=[5])
    freeze(network, ["last"], "model.freeze")
    with pytest.raises(
        ConfigError, match=r"model\.freeze must leave the last layer to train beside .*projection"
    ):
        project(network, 7)
