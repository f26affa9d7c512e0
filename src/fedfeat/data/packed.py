"""Image data sets in one file that compresses well, for machines on which nothing can be fetched."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedfeat.data.examples import Dataset, Examples
from fedfeat.errors import DataError
from fedfeat.files import atomic_write_bytes

SUFFIX = ".safetensors"
# Raised when the same images begin to be written otherwise.
_FORMAT = "1"


def write_packed(path: Path, dataset: Dataset) -> None:
    """Write both splits of a data set, in their order, completely or not at all.

    Args:
        path: The file.
        dataset: Images, uint8 (N, C, H, W).
    """
    splits = {"train": dataset.train, "test": dataset.test}
    tensors = {f"{name}.inputs": differences(one.inputs) for name, one in splits.items()}
    # Labels of up to 256 classes take a byte each.
    kind = torch.uint8 if dataset.num_classes <= 256 else torch.int64
    tensors |= {f"{name}.labels": one.labels.to(kind) for name, one in splits.items()}
    digests = {name: one.inputs_sha256 or one.digest() for name, one in splits.items()}
    about = {"format": _FORMAT, "classes": json.dumps(dataset.classes), "sha256": json.dumps(digests)}
    atomic_write_bytes(path, save(tensors, about))


def read_packed(path: Path) -> tuple[Examples, Examples, tuple[str, ...]]:
    """Read both splits of a packed data set, and the names of the classes.

    Raises:
        DataError: The file is none, or its images are not those that were packed.
    """
    rule = f"{path} must be a packed data set"
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("format") != _FORMAT:
                raise DataError(f"{rule} of format {_FORMAT}, but its format is {about.get('format')!r}.")
            digests, classes = json.loads(about["sha256"]), tuple(json.loads(about["classes"]))
            found = []
            for name in ("train", "test"):
                images, labels = (file.get_tensor(f"{name}.{one}") for one in ("inputs", "labels"))
                found.append(Examples(images_of(images), labels.to(torch.int64), inputs_sha256=digests[name]))
                if found[-1].digest() != digests[name]:
                    raise DataError(f"{rule}, but its {name} images have been altered.")
    except (OSError, SafetensorError, LookupError, ValueError) as error:
        raise DataError(f"{rule}, but it is not ({error}).") from error
    return found[0], found[1], classes


def differences(images: Tensor) -> Tensor:
    """Give what compresses better than images, uint8 (N, C, H, W): of colour images, differences modulo 256.

    Red and blue are taken less green, every pixel less the one to its left and then less the one above. Grey images,
    whose grounds are even, stay as they are.
    """
    if images.shape[1] != 3:
        return images.contiguous()
    found = images.clone(memory_format=torch.contiguous_format)
    found[:, 0] -= images[:, 1]
    found[:, 2] -= images[:, 1]
    # A shifted part of a tensor may not be taken off the tensor itself.
    found[..., 1:] -= found[..., :-1].clone()
    found[:, :, 1:] -= found[:, :, :-1].clone()
    return found


def images_of(stored: Tensor) -> Tensor:
    """Give the images (N, C, H, W) of their `differences`."""
    if stored.shape[1] != 3:
        return stored
    found = stored.clone()
    for row in range(1, found.shape[2]):
        found[:, :, row] += found[:, :, row - 1]
    for column in range(1, found.shape[3]):
        found[..., column] += found[..., column - 1]
    found[:, 0] += found[:, 1]
    found[:, 2] += found[:, 1]
    return found
