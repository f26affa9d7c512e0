import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torchvision.transforms import v2

from fedfeat.data import transforms as T
from fedfeat.data.pipeline import InputPipeline
from fedfeat.errors import ConfigError


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(batch=8, channels=3, height=6, width=5, seed=1):
    return torch.randint(256, (batch, channels, height, width), dtype=torch.uint8, generator=seeded(seed))


def test_flip_mirrors_whole_images():
    x = torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8)
    assert T.random_flip(x, seeded(), p=1.0).tolist() == [[[[3, 2, 1]]]]
    assert T.random_flip(x, seeded(), p=0.0).tolist() == [[[[1, 2, 3]]]]


def test_flip_decides_for_each_image_and_at_the_right_rate():
    x = torch.tensor([0, 1], dtype=torch.uint8).expand(4000, 1, 1, 2)
    flipped = (T.random_flip(x, seeded())[:, 0, 0, 0] == 1).double().mean().item()
    assert abs(flipped - 0.5) < 4 * 0.5 / math.sqrt(4000)


@pytest.mark.parametrize("mode", ["reflect", "constant"])
@settings(deadline=None, max_examples=25)
@given(pad=st.integers(0, 4), seed=st.integers(0, 2**31), height=st.integers(5, 7))
def test_crop_equals_a_loop_over_samples(mode, pad, seed, height):
    x = images(height=height)
    dy, dx = torch.randint(2 * pad + 1, (2, len(x)), generator=seeded(seed))
    padded = F.pad(x.float(), (pad,) * 4, mode=mode).to(torch.uint8)
    slow = [image[:, i : i + height, j : j + 5] for image, i, j in zip(padded, dy, dx, strict=True)]
    assert torch.equal(T.random_crop(x, seeded(seed), pad, mode), torch.stack(slow))


def test_crop_of_some_leaves_the_others_as_they_are():
    x = images(height=6)
    draws = seeded(4)
    places = torch.randint(3, (2, len(x)), generator=draws)
    places[:, torch.rand(len(x), generator=draws) >= 0.5] = 1
    padded = F.pad(x, (1,) * 4)
    slow = [image[:, i : i + 6, j : j + 5] for image, i, j in zip(padded, *places, strict=True)]
    assert torch.equal(T.random_crop(x, seeded(4), 1, p=0.5), torch.stack(slow))


def test_crop_reaches_every_offset():
    x = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3).expand(500, 1, 3, 3)
    corners = T.random_crop(x, seeded(), pad=1, mode="reflect")[:, 0, 0, 0]
    assert set(corners.tolist()) == {4, 3, 1, 0}  # rows (1, 0, 1) by columns (1, 0, 1)


def test_reflection_needs_an_image_larger_than_the_pad():
    with pytest.raises(
        ConfigError, match=r"pad must be smaller than the 6x5 images where it reflects, but it is 5"
    ):
        T.random_crop(images(), seeded(), pad=5, mode="reflect")


@pytest.mark.parametrize("size", [4, 9, 32])
def test_resized_crop_equals_torchvision_on_the_same_boxes(size):
    x = images(batch=16, height=12, width=9).float()
    boxes = T.random_boxes(16, 12, 9, (0.08, 1.0), (3 / 4, 4 / 3), seeded(3))
    slow = [
        v2.functional.resized_crop(image, *box, size=[size, size], antialias=True)
        for image, box in zip(x, boxes.T.tolist(), strict=True)
    ]
    torch.testing.assert_close(
        T.random_resized_crop(x, seeded(3), size), torch.stack(slow), atol=1e-3, rtol=1e-5
    )


def test_resized_crop_keeps_the_type_and_constant_images():
    x = torch.full((5, 1, 8, 8), 255, dtype=torch.uint8)
    out = T.random_resized_crop(x, seeded(), 8)
    assert out.dtype == torch.uint8
    assert (out == 255).all()


@pytest.mark.parametrize("ratio", [(3 / 4, 4 / 3), (2.5, 3.0)])  # the second falls back to the centre often
def test_boxes_are_distributed_as_torchvisions(ratio):
    count, height, width = 2000, 32, 32
    torch.manual_seed(0)
    crop = v2.RandomResizedCrop(32, ratio=ratio)
    image = torch.zeros(1, height, width)
    theirs = [crop.make_params([image]) for _ in range(count)]
    theirs = torch.tensor(
        [[box["top"], box["left"], box["height"], box["width"]] for box in theirs]
    ).T.double()
    ours = T.random_boxes(count, height, width, (0.08, 1.0), ratio, seeded()).double()
    error = (ours.var(1) / count + theirs.var(1) / count).sqrt()
    assert ((ours.mean(1) - theirs.mean(1)).abs() <= 4 * error).all()
    torch.testing.assert_close(ours.std(1), theirs.std(1), rtol=0.12, atol=0.0)


@settings(deadline=None, max_examples=50)
@given(height=st.integers(1, 40), width=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_boxes_lie_inside_the_image(height, width, seed):
    top, left, rows, columns = T.random_boxes(64, height, width, (0.08, 1.0), (3 / 4, 4 / 3), seeded(seed))
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (rows >= 1).all()
    assert (columns >= 1).all()
    assert (top + rows <= height).all()
    assert (left + columns <= width).all()


def test_boxes_fall_back_to_the_largest_centred_shape():
    # An area of 4 to 5 times the image never fits.
    wide = T.random_boxes(2, 10, 40, (4.0, 5.0), (3 / 4, 4 / 3), seeded())
    tall = T.random_boxes(2, 40, 10, (4.0, 5.0), (3 / 4, 4 / 3), seeded())
    square = T.random_boxes(2, 10, 10, (4.0, 5.0), (3 / 4, 4 / 3), seeded())
    assert wide.T.tolist() == [[0, 13, 10, 13]] * 2
    assert tall.T.tolist() == [[13, 0, 13, 10]] * 2
    assert square.T.tolist() == [[0, 0, 10, 10]] * 2


NAMED = {  # name: (mean, std) as in the papers' code, and the names of the operations
    "none": (None, None, []),
    "cifar_fedma": ((0.49137, 0.48235, 0.44667), (0.24706, 0.24353, 0.26157), ["random_crop", "random_flip"]),
    "cifar_fedrep": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), ["random_crop", "random_flip"]),
    "cifar100_fedrep": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276), ["random_crop", "random_flip"]),
    "cifar_fusion": ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262), ["random_resized_crop", "random_flip"]),
    "mnist_fusion": ((0.131,), (0.308,), ["random_resized_crop", "random_flip"]),
    "mnist_plain": ((0.1307,), (0.3081,), []),
    "cifar_niid": (0.0, 1.0, ["random_crop", "random_flip"]),
    "cifar_fednova": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201), ["random_crop", "random_flip"]),
    "cifar_feddyn": ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262), ["random_flip", "random_crop"]),
    "pfllib": (0.5, 0.5, []),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), []),
    "unscaled": (0.0, 1.0, []),
}


@pytest.mark.parametrize("name", NAMED)
def test_named_transforms_have_the_published_constants(name):
    transform, (mean, std, operations) = getattr(T, name)(), NAMED[name]
    assert transform.mean == (pytest.approx(mean, abs=1e-5) if mean is not None else None)
    assert transform.std == (pytest.approx(std, abs=1e-5) if std is not None else None)
    assert [getattr(op, "func", op).__name__ for op in transform.augment] == operations


@pytest.mark.parametrize(
    ("name", "corner"),
    [("cifar_fedma", 100), ("cifar_fedrep", 0), ("cifar_niid", 100), ("cifar_fednova", 0)],
)
def test_cifar_transforms_pad_as_their_code_does(name, corner):
    pad_only = getattr(T, name)().augment[0]
    x = torch.full((200, 3, 32, 32), 100, dtype=torch.uint8)
    assert pad_only(x, seeded()).min() == corner


def test_normalising_is_by_hand():
    x = torch.tensor([[[[0, 255]], [[51, 102]]]], dtype=torch.uint8)  # (1, 2, 1, 2)
    pipeline = InputPipeline((0.5, 0.2), (0.5, 0.1), T.none())
    expected = torch.tensor([[[[-1.0, 1.0]], [[0.0, 2.0]]]])
    torch.testing.assert_close(pipeline.test(x), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(pipeline.train(x, seeded()), expected, atol=1e-6, rtol=0)


def test_the_transforms_moments_win_over_the_data_sets():
    x = torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)
    pipeline = InputPipeline((0.0,), (1.0,), T.mnist_plain())
    assert pipeline.test(x).item() == pytest.approx((1 - 0.1307) / 0.3081)


def test_whole_numbers_are_moments_of_all_channels():
    x = torch.full((1, 3, 1, 1), 51, dtype=torch.uint8)
    pipeline = InputPipeline((0.1,) * 3, (9.0,) * 3, T.Transform(mean=0, std=1))
    torch.testing.assert_close(pipeline.test(x), torch.full((1, 3, 1, 1), 0.2))


@pytest.mark.parametrize("channels", [1, 3])
def test_moments_of_all_channels(channels):
    """51 is 0.2."""
    x = torch.full((1, channels, 1, 1), 51, dtype=torch.uint8)
    for name, value in (("pfllib", -0.6), ("unscaled", 0.2), ("cifar_niid", 0.2)):
        pipeline = InputPipeline((0.1,) * channels, (9.0,) * channels, getattr(T, name)())
        torch.testing.assert_close(pipeline.test(x), torch.full((1, channels, 1, 1), value))


def test_every_second_image_is_cropped():
    """All others are themselves; one in 81 of the cropped ones is too."""
    x = images(batch=4000, height=32, width=32)
    cropped = T.random_crop(x, seeded(), 4, "constant", p=0.5)
    share = (cropped != x).flatten(1).any(1).double().mean().item()
    assert abs(share - 0.5 * 80 / 81) < 4 * 0.5 / math.sqrt(4000)
    assert T.cifar_feddyn().augment[1].keywords == {"pad": 4, "mode": "constant", "p": 0.5}


def test_zero_padding_is_black_and_not_the_mean():
    x = torch.full((50, 3, 32, 32), 255, dtype=torch.uint8)
    out = InputPipeline((0.5,) * 3, (0.5,) * 3, T.cifar_fedrep()).train(x, seeded())
    assert out[:, 0].min().item() == pytest.approx(-0.485 / 0.229)


@pytest.mark.parametrize("name", [name for name in NAMED if name.startswith("cifar")])
def test_training_batches_depend_on_the_generator_alone(name):
    x = images(channels=3, height=32, width=32)
    pipeline = InputPipeline((0.5,) * 3, (0.5,) * 3, getattr(T, name)())
    torch.manual_seed(1)
    first = pipeline.train(x, seeded(5))
    torch.manual_seed(2)
    assert torch.equal(first, pipeline.train(x, seeded(5)))
    assert not torch.equal(first, pipeline.train(x, seeded(6)))
    assert first.shape == x.shape
    assert first.dtype == torch.float32


def test_what_is_not_uint8_passes_through():
    tokens, features = torch.arange(6).view(2, 3), torch.rand(2, 4)
    pipeline = InputPipeline((), (), T.none())
    assert pipeline.train(tokens, seeded()) is tokens
    assert pipeline.test(features) is features


def test_moments_must_fit_the_data():
    rule = r"data\.transform must have one mean for each of the data set's 1 channels, but it is \(0\.4"
    with pytest.raises(ConfigError, match=rule):
        InputPipeline((0.5,), (0.5,), T.cifar_fedma())
    with pytest.raises(ConfigError, match=r"data\.transform\.std must be positive in every channel"):
        InputPipeline((0.5,), (0.5,), T.Transform(mean=(0.1,), std=(0.0,)))


def test_a_transform_that_changes_the_size_of_images_is_refused():
    """Else a network that reads any size would be trained at one and tested at another."""
    pipeline = InputPipeline((0.5,), (0.5,), T.mnist_fusion(), torch.device("cpu"))
    pipeline.check("mnist", torch.zeros(5, 1, 28, 28, dtype=torch.uint8))
    with pytest.raises(
        ConfigError, match=r"^data.transform must give images of digits's size, 8x8, but it is '28x28'"
    ):
        pipeline.check("digits", torch.zeros(5, 1, 8, 8, dtype=torch.uint8))
