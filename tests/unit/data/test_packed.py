import bz2

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.packed import differences, images_of, read_packed, write_packed
from fedfeat.data.torchvision_sets import named
from fedfeat.errors import DataError


def drawn(shape, n=5, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=draw)


def dataset(shape, classes=("b", "a")):
    splits = [
        Examples(drawn(shape, n, n), torch.arange(n) % len(classes)) for n in (len(classes) + 3, len(classes))
    ]
    return Dataset("one", *splits, classes, (0.5,) * shape[0], (0.2,) * shape[0])


@pytest.mark.parametrize("shape", [(3, 4, 6), (3, 1, 1), (1, 5, 3), (2, 3, 3)])
def test_differences_can_be_undone(shape):
    images = drawn(shape)
    kept = images.clone()
    assert torch.equal(images_of(differences(images)), images)
    assert torch.equal(images, kept)


def test_a_difference_is_green_then_left_then_above():
    image = torch.tensor([[[1, 2], [3, 5]], [[10, 20], [30, 45]], [[7, 7], [7, 7]]], dtype=torch.uint8)[None]
    assert differences(image)[0, 1].tolist() == [[10, 10], [20, 5]]
    # Red less green is -9, -18, -27, -40 modulo 256.
    assert differences(image)[0, 0].tolist() == [[247, 247], [238, 252]]


def test_images_whose_neighbours_and_colours_are_alike_compress_better():
    draw = np.random.default_rng(0)
    light = draw.integers(-9, 10, (20, 1, 32, 32)).cumsum(2).cumsum(3)
    images = torch.from_numpy((light + draw.integers(0, 2, (20, 3, 32, 32))).astype(np.uint8))
    before, after = (len(bz2.compress(one.numpy().tobytes())) for one in (images, differences(images)))
    assert after < 0.7 * before


@pytest.mark.parametrize("many", [2, 300])
def test_what_is_read_is_what_was_written(many, tmp_path):
    one = dataset((3, 4, 4), tuple(f"class {c}" for c in range(many)))
    write_packed(tmp_path / "one.safetensors", one)
    train, test, classes = read_packed(tmp_path / "one.safetensors")
    again = Dataset("one", train, test, classes, one.mean, one.std)
    assert again.fingerprint() == one.fingerprint()
    assert again.classes == one.classes
    assert torch.equal(again.train.labels, one.train.labels)


@pytest.fixture
def mnist(tmp_path):
    """A folder of images in MNIST's shape, two of each class and split."""
    draw = np.random.default_rng(3)
    for split in ("train", "test"):
        for label in range(10):
            folder = tmp_path / "mnist" / split / str(label)
            folder.mkdir(parents=True)
            for number in range(2):
                Image.fromarray(draw.integers(0, 256, (28, 28), dtype=np.uint8)).save(
                    folder / f"{number}.png"
                )
    return tmp_path


def test_a_packed_data_set_takes_the_place_of_its_files(mnist, tmp_path):
    one = named("mnist", mnist, download=False)
    write_packed(tmp_path / "other" / "mnist.safetensors", one)
    again = named("mnist", tmp_path / "other", download=False)
    assert again.fingerprint() == one.fingerprint()
    assert (again.classes, again.mean, again.std) == (one.classes, one.mean, one.std)


def test_a_packed_file_of_another_data_set_is_refused(mnist, tmp_path):
    write_packed(tmp_path / "other" / "cifar10.safetensors", named("mnist", mnist, download=False))
    with pytest.raises(
        DataError, match=r"cifar10\.safetensors must hold the \(3, 32, 32\) images of cifar10"
    ):
        named("cifar10", tmp_path / "other", download=False)


def test_an_altered_or_foreign_file_is_named(tmp_path):
    path = tmp_path / "one.safetensors"
    write_packed(path, dataset((3, 4, 4)))
    content = bytearray(path.read_bytes())
    at = content.index(load_file(path)["train.inputs"].numpy().tobytes())
    content[at + 7] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        DataError, match=r"one\.safetensors must be a packed data set, but its train images have"
    ):
        read_packed(path)
    path.write_bytes(b"no tensors")
    with pytest.raises(DataError, match=r"must be a packed data set, but it is not \("):
        read_packed(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(DataError, match=r"of format 1, but its format is None\."):
        read_packed(path)
