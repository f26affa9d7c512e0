"""Data, partitions and transforms that are refused while the parts are built: one sentence, and no run is left."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from refusals import named, refused_at_start


def class_folders(root: Path, *splits: str) -> None:
    pixels = np.zeros((8, 8), dtype=np.uint8)
    for split in splits:
        for label in "ab":
            folder = root / "images" / split / label
            folder.mkdir(parents=True)
            for number in range(8):
                Image.fromarray(pixels).save(folder / f"{number}.png")


def no_test_data(root: Path) -> None:
    class_folders(root, "train")


def corrupt_image(root: Path) -> None:
    class_folders(root, "train", "test")
    (root / "images/train/b/3.png").write_bytes(b"no picture")


def empty_class(root: Path) -> None:
    class_folders(root, "train", "test")
    shutil.rmtree(root / "images/train/b")
    (root / "images/train/b").mkdir()


def file_for_folder(root: Path) -> None:
    (root / "images").write_text("a file")


def torn_mnist(root: Path) -> None:
    (root / "images/MNIST/raw").mkdir(parents=True)
    (root / "images/MNIST/raw/train-images-idx3-ubyte").write_bytes(b"torn")


IMAGES = "data=image_folder data.root={root}/images model=digits_cnn"

AT_START = [
    (
        "more clients than samples",
        "federation.num_clients=61",
        None,
        r"federation\.num_clients must be between .*, but it is 61",
    ),
    (
        "11 classes of 10",
        "data=digits partition=n_classes partition.classes_per_client=11 model=digits_cnn",
        None,
        r"partition\.classes_per_client must be between 1 and the 10 classes, but it is 11",
    ),
    (
        "min_size too large",
        "partition=dirichlet partition.min_size=1000",
        None,
        r"partition\.min_size must be between 1 .*, but it is 1000",
    ),
    (
        "unknown column",
        "partition=natural partition.column=nose",
        None,
        r"partition\.column must name a column of the data set \(none; docs/data\.md .*\), but it is 'nose'",
    ),
    (
        "subsets for another number",
        "partition=subsets",
        None,
        r"federation\.num_clients must equal the .*, but it is 4",
    ),
    (
        "alpha and power",
        "partition=quantity_skew partition.power=2",
        None,
        r"partition\.alpha must be null exactly .*, but it is 0\.5",
    ),
    (
        "too many shards",
        "partition=shards partition.shards_per_client=100",
        None,
        r"partition\.shards_per_client must make .*, but it is 100",
    ),
    (
        "no test data",
        IMAGES,
        no_test_data,
        r".*/images/test must be a readable folder, but it is not \(No such file or directory\); data.root",
    ),
    (
        "corrupt image",
        IMAGES,
        corrupt_image,
        r".*/images/train/b/3\.png must be an image .*, but it is not \(cannot identify image file '/",
    ),
    ("empty class", IMAGES, empty_class, r".*/images/train/b must hold at least one image, but it has none"),
    (
        "no data root",
        IMAGES,
        None,
        r".*/images/train must be a readable folder, but it is not \(No such file or directory\)",
    ),
    (
        "file for the data root",
        IMAGES,
        file_for_folder,
        r".*/images/train must be a readable folder, but it is not \(Not a directory\)",
    ),
    (
        "named data offline",
        "data=mnist data.root={root}/images data.loader.download=false",
        None,
        r"mnist must be in data\.root as .*, but .*/images has none of them \(data\.loader\.do",
    ),
    (
        "torn named data",
        "data=mnist data.root={root}/images",
        torn_mnist,
        r".*/images/MNIST/raw must hold .*, but it does not \(Dataset not found\. You can ",
    ),
    (
        "synthetic without classes",
        "data.loader.num_classes=0",
        None,
        r"data\.loader\.num_classes must be an integer of at least 2, but it is 0",
    ),
    (
        "synthetic shape",
        "data.loader.shape=[0,4]",
        None,
        r"data\.loader\.shape must be three positive sizes \(C, H, W\), but it is \[0, 4\]",
    ),
    (
        "unknown digits",
        "data=digits data.loader.name=x",
        None,
        r"data\.loader\.name must be a known key, but there is none of that name; known there: num_train",
    ),
    (
        "crop of another size",
        "data/transform=cifar_fedma",
        None,
        r"data\.transform must have one mean for .*, but it is \(0\.4913725490196078, 0\.48235294117",
    ),
]


@pytest.mark.parametrize(("overrides", "prepare", "sentence"), named(AT_START))
def test_refused_at_start(cli, small, tmp_path, overrides, prepare, sentence):
    refused_at_start(cli, small, overrides, tmp_path, sentence, prepare)
