"""Pictures of gradient ascent: known maxima of linear neurons, real networks beyond their images, repeatability."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedfeat.features.capture import Point, layer_points
from fedfeat.features.maximisation import Ascent, PixelRange, activations, largest, maximise
from fedfeat.models.cnn import digits_cnn
from fedfeat.models.mlp import mlp

PLAIN = Ascent(steps=300, lr=0.01, decay=0.1, blur=0, jitter=0)
"""Of a linear neuron the end is known: lr / decay along the gradient, away from black and white."""
# As a mean of 0.5 and standard deviations of 0.25 and 0.5 normalise.
PIXELS = PixelRange(
    torch.tensor([-2.0, -1.0])[None, :, None, None], torch.tensor([2.0, 1.0])[None, :, None, None]
)


def linear(weight):
    """Two channels of 3 x 3 pixels, two neurons; the second is the first turned around."""
    torch.manual_seed(0)
    network = mlp((2, 3, 3), 2, hidden=[2])
    layer = layer_points(network)
    (path, points), *_ = layer.items()
    with torch.no_grad():
        network.get_submodule(path).weight.copy_(torch.stack([weight.flatten(), -weight.flatten()]))
    return network, points.pre_act


def test_a_linear_neurons_picture_is_the_direction_of_its_weight_in_pixels():
    """The gradient in pixels is the weight times what a pixel changes in the input, of each channel its own."""
    weight = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(1))
    network, point = linear(weight)
    found = maximise(network, point, [0, 1], PIXELS, PLAIN)
    direction = weight * torch.tensor([4.0, 2.0])[:, None, None]
    expected = 0.1 * direction / direction.square().mean().sqrt()
    torch.testing.assert_close(found.pixels[0] - 0.5, expected, atol=2e-3, rtol=0)
    torch.testing.assert_close(found.pixels[1] - 0.5, -expected, atol=2e-3, rtol=0)
    assert (found.after > found.before).all()
    own = activations(network, point, PIXELS.inputs(found.pixels))
    torch.testing.assert_close(own.diagonal(), found.after)


def test_without_decay_a_linear_neurons_picture_is_black_and_white():
    """The maximum in a box is its corner: the sign of the weight."""
    weight = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(2))
    network, point = linear(weight)
    found = maximise(network, point, [0], PIXELS, replace(PLAIN, lr=0.3, decay=0.0))
    torch.testing.assert_close(found.pixels[0], (weight > 0).float())


def test_it_starts_at_the_mean_pixel_where_nothing_leads_away():
    network, point = linear(torch.zeros(2, 3, 3))
    pixels = PixelRange(torch.tensor([[[[-0.5]]]]), torch.tensor([[[[1.5]]]]))
    assert float(pixels.mean) == 0.25
    found = maximise(network, point, [0], pixels, replace(PLAIN, steps=600, decay=0.5))
    torch.testing.assert_close(found.pixels, torch.full((1, 2, 3, 3), 0.25))
    torch.testing.assert_close(found.after, found.before)


@pytest.fixture(scope="module")
def digits():
    """A small network trained on the digits of scikit-learn, with their pixels as it reads them."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)[:600] / 16
    pixels = PixelRange(torch.tensor([[[[-0.8]]]]), torch.tensor([[[[1.8]]]]))
    torch.manual_seed(0)
    network = digits_cnn((1, 8, 8), 10)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(pixels.inputs(x)), torch.tensor(labels[:600])).backward()
        optimizer.step()
    network.zero_grad()
    return network, pixels, pixels.inputs(x)


def test_pictures_raise_neurons_beyond_every_image(digits):
    """With the settings of the command, in a convolution as in the logits."""
    network, pixels, images = digits
    points = layer_points(network)
    for layer, neurons in (("encoder.conv2.conv", [0, 3, 5, 8]), ("head.fc2.linear", [0, 1, 4, 7])):
        point = points[layer].pre_act
        found = maximise(network, point, neurons, pixels, Ascent())
        most = largest(network, point, neurons, images)
        assert (found.after > most).all(), (layer, found.after, most)
        assert found.pixels.shape == (4, 1, 8, 8)
        assert 0 <= found.pixels.min() < found.pixels.max() <= 1


def test_a_logits_picture_is_of_its_class(digits):
    network, pixels, _ = digits
    point = layer_points(network)["head.fc2.linear"].pre_act
    found = maximise(network, point, list(range(10)), pixels, Ascent())
    with torch.no_grad():
        assert network.eval()(pixels.inputs(found.pixels)).argmax(1).tolist() == list(range(10))
    network.train()


def test_equal_seeds_give_equal_pictures_alone_or_among_others(digits):
    network, pixels, _ = digits
    point = layer_points(network)["encoder.conv2.conv"].pre_act
    first, again, other = (
        maximise(network, point, [2, 6], pixels, Ascent(steps=24, seed=s)) for s in (3, 3, 4)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.pixels, other.pixels)
    alone = maximise(network, point, [6], pixels, Ascent(steps=24, seed=3))
    torch.testing.assert_close(alone.pixels[0], first.pixels[1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("change", [{"jitter": 0}, {"blur": 0.0}, {"decay": 0.0}, {"lr": 0.3}, {"steps": 23}])
def test_every_setting_has_an_effect(change, digits):
    network, pixels, _ = digits
    point = layer_points(network)["encoder.conv2.conv"].pre_act
    ascent = Ascent(steps=24)
    plain, changed = (maximise(network, point, [2], pixels, a) for a in (ascent, replace(ascent, **change)))
    assert not torch.allclose(plain.pixels, changed.pixels, atol=1e-4)


def test_blur_makes_pictures_smoother(digits):
    network, pixels, _ = digits
    point = layer_points(network)["encoder.conv2.conv"].pre_act

    def roughness(blur):
        x = maximise(network, point, [2, 6], pixels, Ascent(steps=48, blur=blur)).pixels
        return (x.diff(dim=2).square().mean() + x.diff(dim=3).square().mean()) / x.var()

    assert roughness(1.0) < roughness(0.0)


def test_the_network_is_left_as_it_was(digits):
    network, pixels, _ = digits
    before = {key: value.clone() for key, value in network.state_dict().items()}
    drawn = torch.get_rng_state()
    with torch.inference_mode():
        maximise(network, Point("encoder.conv1.conv", 0, 16), [0], pixels, Ascent(steps=3))
    assert network.training
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_the_settings_are_said_in_a_line():
    assert str(Ascent()) == "256 steps, lr 0.1, L2 decay 0.05, blur 0.5 every 4 steps, jitter 1, seed 0"
    assert "no blur" in str(Ascent(blur=0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_network_of_another_type_has_pictures_in_full_precision(dtype):
    network, point = linear(torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(2)))
    expected = maximise(network, point, [0], PIXELS, replace(PLAIN, lr=0.3, decay=0.0)).pixels
    found = maximise(network.to(dtype), point, [0], PIXELS, replace(PLAIN, lr=0.3, decay=0.0)).pixels
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
