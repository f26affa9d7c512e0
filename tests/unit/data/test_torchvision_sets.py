import pickle
import struct
import tarfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedfeat.config.arguments import check_targets
from fedfeat.data import torchvision_sets as module
from fedfeat.data.torchvision_sets import SOURCES, named
from fedfeat.errors import ConfigError, DataError

REAL = Path(__file__).parents[4] / "shared" / "data"

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def unpack(archive, target, per_class):
    """Unpack the first few images of every class of a real data set."""
    path = REAL / archive
    if not path.exists():
        pytest.skip(f"needs the real data in {path}")
    seen = Counter()
    with tarfile.open(path, "r|xz") as tar:
        for member in tar:
            seen[Path(member.name).parent] += 1
            if member.isfile() and seen[Path(member.name).parent] <= per_class:
                tar.extract(member, target, filter="data")
    return target


def parse_pgm(path):
    """Read a binary 28x28 PGM without Pillow."""
    return np.frombuffer(path.read_bytes()[-28 * 28 :], dtype=np.uint8).reshape(28, 28)


@pytest.mark.data
def test_real_mnist_folder(tmp_path):
    folder = unpack("mnist.tar.xz", tmp_path / "mnist", 12)
    dataset = named("mnist", tmp_path, download=False, cache_dir=tmp_path / "cache")
    assert dataset.classes == tuple("0123456789")
    assert (dataset.mean, dataset.std) == ((0.1307,), (0.3081,))
    assert dataset.test.labels.tolist() == sorted(list(range(10)) * 12)
    expected = [
        parse_pgm(path) for label in range(10) for path in sorted((folder / "test" / str(label)).iterdir())
    ]
    assert (dataset.test.inputs[:, 0].numpy() == np.stack(expected)).all()
    assert abs(dataset.train.inputs.double().mean().item() / 255 - 0.1307) < 0.03
    assert named("mnist", folder, False, tmp_path / "cache").fingerprint() == dataset.fingerprint()


@pytest.mark.data
def test_real_cifar10_folder(tmp_path):
    folder = unpack("cifar10-test-lossless.tar.xz", tmp_path / "cifar10", 5)
    (folder / "train").symlink_to(folder / "test")
    dataset = named("cifar10", tmp_path, download=False)
    assert dataset.classes == CIFAR10_CLASSES
    assert dataset.input_shape == (3, 32, 32)
    assert dataset.train.labels.tolist() == sorted(list(range(10)) * 5)
    path = sorted((folder / "test" / "frog").iterdir())[0]
    with Image.open(path) as image:
        assert (dataset.test.inputs[6 * 5].permute(1, 2, 0).numpy() == np.asarray(image)).all()


@pytest.mark.data
def test_real_fashion_mnist_part_gets_the_published_names(tmp_path):
    unpack("fashion-mnist-part.tar.xz", tmp_path, 2)
    dataset = named("fashion_mnist", tmp_path, download=False)
    assert (dataset.classes[0], dataset.classes[9]) == ("T-shirt/top", "Ankle boot")
    assert len(dataset.train) == len(dataset.test) == 20


@pytest.fixture
def idx_root(tmp_path):
    """A folder with MNIST in torchvision's layout, two training images and one test image."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, labels in (("train", [5, 9]), ("t10k", [7])):
        pixels = np.repeat(np.array(labels, dtype=np.uint8), 28 * 28)
        header = struct.pack(">IIII", 0x803, len(labels), 28, 28)
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 0x801, len(labels)) + bytes(labels)
        )
    return tmp_path


def test_torchvisions_mnist_files(idx_root):
    dataset = named("mnist", idx_root, download=False)
    assert dataset.input_shape == (1, 28, 28)
    assert dataset.train.inputs[:, 0, 3, 4].tolist() == dataset.train.labels.tolist() == [5, 9]
    assert dataset.test.labels.tolist() == [7]


def test_torchvisions_cifar_files(tmp_path, monkeypatch):
    from torchvision.datasets import cifar

    monkeypatch.setattr(cifar, "check_integrity", lambda *_: True)  # the real md5 sums are of the real files
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = np.arange(3 * 32 * 32).reshape(1, -1).astype(np.uint8)
    for label, (name, _) in enumerate(cifar.CIFAR10.train_list + cifar.CIFAR10.test_list):
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": [label]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list(CIFAR10_CLASSES)}))
    dataset = named("cifar10", tmp_path, download=False)
    assert dataset.classes == CIFAR10_CLASSES
    assert (dataset.train.labels.tolist(), dataset.test.labels.tolist()) == ([0, 1, 2, 3, 4], [5])
    assert (dataset.test.inputs[0].numpy() == pixels.reshape(3, 32, 32)).all()


def test_torn_torchvision_files_are_named(idx_root):
    path = idx_root / "MNIST/raw/train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(
        DataError, match=r"MNIST/raw must hold torchvision's complete mnist files, .*; move it away"
    ):
        named("mnist", idx_root, download=False)


@pytest.mark.parametrize("name", SOURCES)
def test_offline_is_one_sentence_with_places_and_command(name, tmp_path, monkeypatch):
    for scheme in ("http", "https"):  # nothing listens there, so that no machine's network is asked
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(DataError, match=rf"^{name} must be in data\.root as .*fetching failed") as caught:
        named(name, tmp_path / "data")
    assert time.monotonic() - began < 8
    sentence, source = str(caught.value), SOURCES[name]
    for part in (source.folder, f"{name}/{{train,test}}/<class>/*", str(tmp_path / "data"), "download=True"):
        assert part in sentence
    assert "\n" not in sentence
    assert sentence.endswith("fetches it.")
    assert list((tmp_path / "data").iterdir()) == []


def test_download_false_never_asks_the_network(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_download", lambda *_: pytest.fail("asked the network"))
    with pytest.raises(DataError, match=r"\(data\.loader\.download is false\)"):
        named("cifar100", tmp_path, download=False)


def test_a_download_is_moved_into_place_when_complete(idx_root, tmp_path, monkeypatch):
    from torchvision import datasets

    class Served(datasets.MNIST):
        def download(self):
            (idx_root / "MNIST").rename(Path(self.root) / "MNIST")

    monkeypatch.setattr(datasets, "MNIST", Served)
    Served.__name__ = "MNIST"
    target = tmp_path / "fresh"
    (target / "MNIST").mkdir(parents=True)  # of a move that was interrupted
    assert named("mnist", target).train.labels.tolist() == [5, 9]
    assert [child.name for child in target.iterdir()] == ["MNIST"]


def make_folder(root, classes, size):
    for split in ("train", "test"):
        for label in range(classes):
            path = root / split / str(label) / "x.png"
            path.parent.mkdir(parents=True)
            Image.fromarray(np.zeros((size, size), dtype=np.uint8)).save(path)


@pytest.mark.parametrize(
    ("classes", "size", "message"),
    [
        (3, 28, r"must hold the 10 classes of mnist, but it has 3\."),
        (10, 8, r"must hold the \(1, 28, 28\) images of mnist, but they are \(1, 8, 8\)\."),
    ],
)
def test_another_data_set_in_the_folder_is_refused(classes, size, message, tmp_path):
    make_folder(tmp_path, classes, size)
    with pytest.raises(DataError, match=message):
        named("mnist", tmp_path, download=False)


def test_an_unknown_name_is_refused():
    with pytest.raises(ConfigError, match=r"data\.loader\.name must be one of mnist, .*, but it is 'svhn'\."):
        check_targets(
            {"data": {"loader": {"_target_": "fedfeat.data.torchvision_sets.named", "name": "svhn"}}}
        )
