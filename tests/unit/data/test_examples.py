import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from fedfeat.config.arguments import check_targets
from fedfeat.data.digits import digits
from fedfeat.data.examples import Dataset, Examples, channel_moments
from fedfeat.data.synthetic import synthetic
from fedfeat.errors import ConfigError, DataError


def make(labels=(0, 1), test_labels=(1,), name="tiny", fill=0, columns=None):
    train = Examples(
        torch.full((len(labels), 1, 2, 2), fill, dtype=torch.uint8), torch.tensor(labels), columns or {}
    )
    test = Examples(torch.zeros(len(test_labels), 1, 2, 2, dtype=torch.uint8), torch.tensor(test_labels))
    return Dataset(name, train, test, ("a", "b"), (0.5,), (0.5,))


def tables(dtype):
    return Examples(torch.zeros(2, 5, dtype=dtype), torch.tensor([0, 1]))


def gap(value):
    examples = tables(torch.float32)
    examples.inputs[1, 3] = value
    return examples


def test_numbers_whose_sum_is_too_large_are_finite():
    large = Examples(torch.full((2, 5), 3e38), torch.tensor([0, 1]))
    assert len(Dataset("large", large, large, ("a", "b"), (), ()).train) == 2


def test_dataset_knows_its_shape_and_classes():
    dataset = make()
    assert (dataset.num_classes, dataset.input_shape, len(dataset.train)) == (2, (1, 2, 2), 2)


def test_fingerprint_follows_every_part_of_the_data():
    variants = [
        make(),
        make(name="other"),
        make(labels=(1, 0)),
        make(test_labels=(0,)),
        make(fill=1),
        make(columns={"writer": np.array(["x", "y"])}),
        make(columns={"writer": np.array(["x", "z"])}),
    ]
    assert len({dataset.fingerprint() for dataset in variants}) == len(variants)
    assert make().fingerprint() == make().fingerprint()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: make(labels=(0, 2)), r"tiny must have training labels from 0 to 1, but one is 2\."),
        (lambda: make(test_labels=(-1,)), r"tiny must have test labels from 0 to 1, but one is -1\."),
        (lambda: make(test_labels=()), r"tiny must have at least one test example"),
        (lambda: Examples(torch.zeros(3, 1), torch.zeros(2)), r"labels must have one entry per input \(3\)"),
        (
            lambda: Examples(torch.zeros(3, 1), torch.zeros(3)),
            r"labels must be class ids, int64 of .* they are float32 of the shape \(3,\)",
        ),
        (
            lambda: Examples(torch.zeros(3, 1), torch.zeros(3, 1, dtype=torch.int64)),
            r"labels must be .* int64 of the shape \(3, 1\)",
        ),
        (
            lambda: channel_moments(torch.zeros(3, 1, 4, 4)),
            r"images must be uint8 from 0 to 255 .*, but they are float32 of the shape \(3, 1, 4, 4\)",
        ),
        (
            lambda: channel_moments(torch.zeros(3, 4, 4, dtype=torch.uint8)),
            r"images must be .* \(N, C, H, W\), but they are uint8 of the shape \(3, 4, 4\)",
        ),
        (lambda: make(columns={"writer": np.zeros(3)}), r"writer must have one entry per input \(2\)"),
        (lambda: make(columns={"labels": np.zeros(2)}), r"columns must have other names than labels"),
        (
            lambda: Dataset("bits", tables(torch.uint8), tables(torch.uint8), ("a", "b"), (0.5,), (0.5,)),
            r"bits must have a mean and a std, or those of each channel of images",
        ),
        (
            lambda: Dataset("mixed", tables(torch.float32), tables(torch.int64), ("a", "b"), (0.5,), (0.5,)),
            r"mixed must have inputs of one type, but its splits have float32",
        ),
        (
            lambda: Dataset("gaps", tables(torch.float32), gap(math.nan), ("a", "b"), (), ()),
            r"gaps must have finite numbers as inputs, but test example 1 holds nan\.",
        ),
        (
            lambda: Dataset("gaps", gap(-math.inf), tables(torch.float32), ("a", "b"), (), ()),
            r"gaps must have finite numbers as inputs, but training example 1 holds -inf\.",
        ),
    ],
)
def test_inconsistent_data_is_refused(build, message):
    with pytest.raises(DataError, match=message):
        build()


def test_channel_moments_of_known_pixels():
    images = torch.tensor([[[[0, 255]], [[51, 51]]], [[[0, 255]], [[51, 51]]]], dtype=torch.uint8)
    mean, std = channel_moments(images)
    assert mean == pytest.approx((0.5, 0.2))
    assert std == pytest.approx((0.5, 1.0))  # the second channel is constant


@pytest.mark.parametrize("seed", range(5))
def test_channel_moments_are_rounded_once(seed):
    """Sums of floats depend on how a processor groups them, and a digest of the data on every digit."""
    images = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (7, 2, 5, 3), dtype=np.uint8))
    for channel, mean, std in zip(images.unbind(1), *channel_moments(images), strict=True):
        values = [Fraction(value, 255) for value in channel.flatten().tolist()]
        centre = sum(values) / len(values)
        assert mean == float(centre)
        assert std == math.sqrt(float(sum((value - centre) ** 2 for value in values) / len(values)))


def test_digits_are_the_bundled_images_with_a_fixed_stratified_split():
    from sklearn.datasets import load_digits

    dataset, raw = digits(), load_digits()
    assert dataset.input_shape == (1, 8, 8)
    assert (len(dataset.train), len(dataset.test)) == (1438, 359)
    per_class = torch.bincount(dataset.train.labels) + torch.bincount(dataset.test.labels)
    assert per_class.tolist() == np.bincount(raw.target).tolist()
    assert dataset.test.labels.bincount().tolist() == [
        36,
        36,
        35,
        37,
        36,
        36,
        36,
        36,
        35,
        36,
    ]  # fifths, rounded
    ours = sorted(
        image.numpy().tobytes() for split in (dataset.train, dataset.test) for image in split.inputs
    )
    scaled = np.rint(raw.images * 255 / 16).astype(np.uint8)
    assert ours == sorted(image.tobytes() for image in scaled)
    # Of one channel both layouts hold the same bytes, but convolutions of PyTorch choose by the strides.
    assert dataset.train.inputs.stride() == dataset.test.inputs.stride() == (64, 1, 8, 1)
    pixels = dataset.train.inputs.double() / 255
    assert dataset.mean == pytest.approx((pixels.mean().item(),))
    assert dataset.std == pytest.approx((pixels.std(correction=0).item(),))
    assert dataset.fingerprint() == digits().fingerprint()


def test_synthetic_follows_its_arguments():
    dataset = synthetic((2, 4, 3), num_classes=5, num_train=20, num_test=10, columns={"writer": 4})
    assert dataset.input_shape == (2, 4, 3)
    assert dataset.train.labels.bincount().tolist() == [4] * 5
    assert dataset.test.labels.bincount().tolist() == [2] * 5
    assert set(dataset.train.columns["writer"]) <= {0, 1, 2, 3}
    assert dataset.fingerprint() == synthetic((2, 4, 3), 5, 20, 10, columns={"writer": 4}).fingerprint()
    assert (
        dataset.fingerprint() != synthetic((2, 4, 3), 5, 20, 10, columns={"writer": 4}, seed=1).fingerprint()
    )


def test_synthetic_signal_ties_pixels_to_the_class():
    pure = synthetic((1, 4, 4), 3, 30, 9, signal=1.0)
    for label in range(3):
        images = torch.cat([s.inputs[s.labels == label] for s in (pure.train, pure.test)])
        assert (images == images[0]).all()
    noise, weak = (synthetic((1, 8, 8), 2, 400, 2, signal=s).train for s in (0.0, 0.5))
    gap = [
        (e.inputs[e.labels == 0].double().mean(0) - e.inputs[e.labels == 1].double().mean(0)).abs().mean()
        for e in (noise, weak)
    ]
    # Means of 200 uniform draws differ by 5.9 on average; half a random pattern by 255 / 3 / 2 = 42.
    assert gap[0] < 10 < 25 < gap[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"shape": [28, 28]},
            r"data\.loader\.shape must be three positive sizes \(C, H, W\), but it is \[28, 28\]\.",
        ),
        ({"shape": [1, 0, 28]}, r"data\.loader\.shape must"),
        ({"num_classes": 1}, r"data\.loader\.num_classes must be an integer of at least 2, but it is 1\."),
        ({"num_train": 0}, r"data\.loader\.num_train must be an integer of at least 1, but it is 0\."),
        ({"num_test": 0}, r"data\.loader\.num_test must be an integer of at least 1, but it is 0\."),
        ({"signal": 1.5}, r"data\.loader\.signal must be in \[0, 1\], but it is 1\.5\."),
        ({"columns": {"writer": 0}}, r"columns must .* at least 1, but it is \{'writer': 0\}\."),
    ],
)
def test_impossible_synthetic_sets_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        check_targets({"data": {"loader": {"_target_": "fedfeat.data.synthetic.synthetic", **arguments}}})


@pytest.mark.parametrize(
    ("shape", "moments"), [((2, 3, 4, 4), 3), ((2, 3, 4, 4), 1), ((2, 4, 4), 1), ((2, 1, 3, 4, 4), 1)]
)
def test_moments_are_one_for_all_or_one_for_each_channel(shape, moments):
    part = Examples(torch.zeros(shape, dtype=torch.uint8), torch.arange(2))
    few = (0.5,) * moments
    assert Dataset("mine", part, part, ("a", "b"), few, few).mean == few
    for mean, std in ((few, (0.5,) * 5), ((0.5,) * 2, (0.5,) * 2), ((), ())):
        with pytest.raises(
            DataError, match=r"^mine must have a mean and a std, or those of each channel of images"
        ):
            Dataset("mine", part, part, ("a", "b"), mean, std)
