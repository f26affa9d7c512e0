"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100: torchvision's files, an image folder, a packed file, or a download."""

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.fingerprint import noted, stamp_of
from fedfeat.data.folder import read_splits
from fedfeat.data.packed import SUFFIX, read_packed
from fedfeat.data.subset import Limit, limited
from fedfeat.errors import DataError
from fedfeat.files import remove_leftovers, scratch_folder

NETWORK_TIMEOUT_S = 10
"""How long a silent server is waited for; torchvision itself would wait for ever."""


class Source(NamedTuple):
    """What is known of a data set before any file is read.

    Attributes:
        torchvision: Name of the class in ``torchvision.datasets``.
        folder: Where that class keeps its files below the root.
        shape: Shape of one image, ``(C, H, W)``.
        num_classes: Number of classes.
        mean: Published mean of each channel of the training set.
        std: Published standard deviation of each channel of the training set.
        classes: Class names in the order of the ids; empty where the files name them.
    """

    torchvision: str
    folder: str
    shape: tuple[int, int, int]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()


FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
"""Table 2 of arXiv:1708.07747."""

GREY, COLOUR = (1, 28, 28), (3, 32, 32)

# Moments: of the complete training sets, to the four digits in which they are commonly given.
SOURCES = {
    "mnist": Source("MNIST", "MNIST/raw", GREY, 10, (0.1307,), (0.3081,), tuple("0123456789")),
    "fashion_mnist": Source(
        "FashionMNIST", "FashionMNIST/raw", GREY, 10, (0.2860,), (0.3530,), FASHION_CLASSES
    ),
    "cifar10": Source(
        "CIFAR10", "cifar-10-batches-py", COLOUR, 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    ),
    "cifar100": Source(
        "CIFAR100", "cifar-100-python", COLOUR, 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    ),
}


def named(
    name: Literal["mnist", "fashion_mnist", "cifar10", "cifar100"],
    root: str | Path,
    download: bool = True,
    cache_dir: str | Path | None = None,
    num_train: Limit = None,
    num_test: Limit = None,
) -> Dataset:
    """Load a well-known data set.

    Looked for below ``root``, in this order: torchvision's files, ``<name>/{train,test}/<class>/*``,
    ``{train,test}/<class>/*``, ``<name>.safetensors`` (see `packed`).

    Args:
        name: ``mnist``, ``fashion_mnist``, ``cifar10`` or ``cifar100``.
        root: Folder of the data.
        download: Whether to fetch what is not there, through torchvision and its checksums.
        cache_dir: Where decoded image folders are kept; None decodes every time.
        num_train: At most so many training examples, see `subset.limited`.
        num_test: At most so many test examples.
    """
    return limited(_whole(name, Path(root).expanduser(), download, cache_dir), num_train, num_test)


def _whole(name: str, root: Path, download: bool, cache_dir: str | Path | None) -> Dataset:
    source = SOURCES[name]
    if (root / source.folder).is_dir():
        return _from_torchvision(name, source, root, cache_dir)
    for folder in (root / name, root):
        if (folder / "train").is_dir() or (folder / "test").is_dir():
            return _from_splits(name, source, folder, read_splits(folder, None, source.shape[0], cache_dir))
    if (packed := root / f"{name}{SUFFIX}").is_file():
        return _from_splits(name, source, packed, read_packed(packed))
    if not download:
        raise DataError(_missing(name, source, root, "data.loader.download is false"))
    _download(name, source, root)
    return _from_torchvision(name, source, root, cache_dir)


def _from_torchvision(name: str, source: Source, root: Path, cache_dir: str | Path | None) -> Dataset:
    from torchvision import datasets  # slow to import, and not needed for image folders

    load = getattr(datasets, source.torchvision)
    try:
        train, test = (load(str(root), train=is_train, download=False) for is_train in (True, False))
    except Exception as error:  # torn files raise anything from EOFError to UnpicklingError
        raise DataError(
            f"{root / source.folder} must hold torchvision's complete {name} files, but it does not "
            f"({_first_line(error)}); move it away to have them fetched again."
        ) from error
    classes = source.classes or tuple(train.classes)
    examples = {"train": _examples(train), "test": _examples(test)}
    if cache_dir is not None:
        examples = _with_digests(examples, root / source.folder, Path(cache_dir).expanduser())
    return Dataset(name, examples["train"], examples["test"], classes, source.mean, source.std)


def _with_digests(examples: dict[str, Examples], folder: Path, cache_dir: Path) -> dict[str, Examples]:
    """Give examples with the digests of their inputs, which are made once for the files of a folder."""
    stamp = stamp_of(path for path in folder.rglob("*") if path.is_file())
    place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]
    return {
        split: replace(
            one, inputs_sha256=noted(cache_dir / f"digest-{place}-{split}.json", stamp, one.digest)
        )
        for split, one in examples.items()
    }


def _examples(raw: Any) -> Examples:
    """Turn torchvision's arrays, ``(N, H, W)`` or ``(N, H, W, C)``, into ours."""
    pixels = torch.as_tensor(raw.data)
    pixels = pixels[:, None] if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2).contiguous()
    return Examples(pixels, torch.as_tensor(np.asarray(raw.targets), dtype=torch.int64))


def _from_splits(
    name: str, source: Source, place: Path, splits: tuple[Examples, Examples, tuple[str, ...]]
) -> Dataset:
    train, test, labels = splits
    if len(labels) != source.num_classes:
        found = len(labels)
        raise DataError(f"{place} must hold the {source.num_classes} classes of {name}, but it has {found}.")
    shape = tuple(train.inputs.shape[1:])
    if shape != source.shape:
        raise DataError(f"{place} must hold the {source.shape} images of {name}, but they are {shape}.")
    numbered = all(label.isdecimal() for label in labels)
    classes = source.classes if numbered and source.classes else labels
    return Dataset(name, train, test, classes, source.mean, source.std)


def _download(name: str, source: Source, root: Path) -> None:
    """Fetch into a scratch folder and move what is complete: a broken download leaves nothing behind."""
    from torchvision import datasets

    try:
        root.mkdir(parents=True, exist_ok=True)
        remove_leftovers(root)
        with scratch_folder(root, name) as scratch, _network_timeout():
            getattr(datasets, source.torchvision)(str(scratch), download=True)
            if not (root / source.folder).exists():  # another run may have been faster
                (root / source.folder).parent.mkdir(exist_ok=True)
                os.replace(scratch / source.folder, root / source.folder)
    except (OSError, RuntimeError) as error:
        raise DataError(_missing(name, source, root, f"fetching failed: {_first_line(error)}")) from error


@contextmanager
def _network_timeout() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(NETWORK_TIMEOUT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _missing(name: str, source: Source, root: Path, reason: str) -> str:
    command = (
        f'uv run python -c "from torchvision.datasets import {source.torchvision}; '
        f"{source.torchvision}('{root.resolve()}', download=True)\""
    )
    return (
        f"{name} must be in data.root as {source.folder}/*, {name}/{{train,test}}/<class>/*, "
        f"{{train,test}}/<class>/* or {name}{SUFFIX}, but {root} has none of them ({reason}); "
        f"with a network, {command} fetches it."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
