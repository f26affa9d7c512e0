"""One last layer for networks of any architecture."""

import numpy as np
import pytest
import torch

from fedfeat.models.cnn import digits_cnn, mnist_cnn
from fedfeat.models.common_head import with_common_head
from fedfeat.models.draws import xavier
from fedfeat.models.hetero import hetero_cnn
from fedfeat.models.mlp import mlp


def shapes(network):
    return {key: tuple(tensor.shape) for key, tensor in network.head.state_dict().items()}


@pytest.mark.parametrize("arch", ["A1", "A2", "A3", "A4", "A5"])
def test_every_network_of_the_pool_has_the_same_head(arch):
    network = with_common_head(hetero_cnn((3, 32, 32), 10, arch), 64)
    assert shapes(network) == {"last.linear.weight": (10, 64), "last.linear.bias": (10,)}
    x = torch.randn(3, 3, 32, 32)
    assert network.representation(x).shape == (3, 64)
    assert network(x).shape == (3, 10)
    assert network.last_layer_name == "head.last.linear"


@pytest.mark.parametrize("hidden", [[7], [5, 12], [3]])
def test_features_are_averaged_over_neighbours(hidden):
    """Feature i of w is the mean of those from floor(i d / w) to ceil((i + 1) d / w)."""
    before = mlp((4,), 3, hidden=hidden)
    x, width = torch.randn(6, 4), 4
    own = before.representation(x).detach().numpy()
    d = own.shape[1]
    expected = np.stack([own[:, i * d // width : -(-(i + 1) * d // width)].mean(1) for i in range(width)], 1)
    after = with_common_head(before, width)
    np.testing.assert_allclose(after.representation(x).detach().numpy(), expected, rtol=0, atol=1e-6)
    weight, bias = (p.detach().numpy() for p in after.last_layer.parameters())
    np.testing.assert_allclose(after(x).detach().numpy(), expected @ weight.T + bias, rtol=0, atol=1e-6)


def test_a_network_of_that_width_is_what_it_was():
    before = hetero_cnn((3, 32, 32), 10, "A4")
    x = torch.randn(2, 3, 32, 32)
    expected, last = before(x), before.last_layer
    after = with_common_head(before, 64)
    assert torch.equal(after(x), expected)
    assert after.last_layer is last


def test_a_dropout_in_front_of_the_last_layer_stays_there():
    for build in (lambda: mnist_cnn((1, 8, 8), 10), lambda: hetero_cnn((3, 32, 32), 100, "A1")):
        after = with_common_head(build(), 16).train()
        assert [type(layer).__name__ for layer in after.head.last] == ["Dropout", "Linear"]
        x = torch.randn(2, *after.input_shape)
        assert torch.equal(after.representation(x), after.representation(x))


def test_weights_are_drawn_as_the_networks_are():
    after = with_common_head(mnist_cnn((1, 8, 8), 10), 16)
    assert after.draw is xavier
    assert not after.last_layer.bias.any()
    assert after.last_layer.weight.abs().max() > 1 / 16**0.5  # the framework's own would end there
    assert with_common_head(digits_cnn((1, 8, 8), 10), 16).draw is None
