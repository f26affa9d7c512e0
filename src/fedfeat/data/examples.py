"""What every loader returns: a data set as tensors, whole in memory."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedfeat.data.fingerprint import array_digest, dataset_digest
from fedfeat.errors import DataError
from fedfeat.types import Vocabulary


@dataclass(frozen=True, eq=False)
class Examples:
    """One split of a data set.

    Attributes:
        inputs: One row per example; images are uint8 ``(N, C, H, W)``, others keep their own type and shape.
        labels: Class ids, int64 ``(N,)``.
        columns: Further facts per example, each ``(N,)``, e.g. the writer, for partitions by a column.
        inputs_sha256: `fingerprint.array_digest` of the inputs where the loader knows it; None has it made.
    """

    inputs: Tensor
    labels: Tensor
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    inputs_sha256: str | None = None

    def __post_init__(self) -> None:
        for name, found in (("inputs", self.inputs), ("labels", self.labels)):
            if not isinstance(found, Tensor):
                raise DataError(f"{name} must be a tensor, but they are a {type(found).__qualname__}.")
        if "labels" in self.columns:
            raise DataError("columns must have other names than labels, which examples have already.")
        sizes = {"labels": len(self.labels)} | {name: len(column) for name, column in self.columns.items()}
        for name, size in sizes.items():
            if size != len(self.inputs):
                raise DataError(
                    f"{name} must have one entry per input ({len(self.inputs)}), but it has {size}."
                )
        if len(self.labels) and (self.labels.dtype != torch.int64 or self.labels.ndim != 1):
            raise DataError(
                "labels must be class ids, int64 of the shape (N,), as .long() makes whole numbers, but they are "
                f"{_kind(self.labels)}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def digest(self) -> str:
        """Make the digest of the inputs."""
        return array_digest(self.inputs.cpu().numpy())

    def rows(self, chosen: np.ndarray) -> "Examples":
        """Give some of the examples, by their indices, in that order."""
        index = torch.from_numpy(chosen)
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return Examples(self.inputs[index], self.labels[index], columns)

    def to(self, device: torch.device | str) -> "Examples":
        """Give the same examples with inputs and labels on a device."""
        inputs, labels = self.inputs.to(device), self.labels.to(device)
        return Examples(inputs, labels, self.columns, self.inputs_sha256)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set with its two splits.

    Attributes:
        name: The name that appears in tables and file names.
        train: What is divided among the clients.
        test: The global test set.
        classes: Class names; their order gives the class ids.
        mean: Mean of each input channel, on a scale where 255 is 1.
        std: Standard deviation of each input channel, on the same scale.
        vocabulary: What the inputs are ids of, for text; None for others.
    """

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        x = self.train.inputs
        if x.dtype == torch.uint8 and not _fit(x, len(self.mean), len(self.std)):
            raise DataError(
                f"{self.name} must have a mean and a std, or those of each channel of images (N, C, H, W), where "
                f"inputs are uint8, but they are {_kind(x)}, with {len(self.mean)} and {len(self.std)}."
            )
        for split, examples in (("training", self.train), ("test", self.test)):
            if len(examples) == 0:
                raise DataError(f"{self.name} must have at least one {split} example, but it has none.")
            if examples.inputs.shape[1:] != self.train.inputs.shape[1:]:
                shapes = f"{self.input_shape} and {tuple(examples.inputs.shape[1:])}"
                raise DataError(f"{self.name} must have inputs of one shape, but its splits have {shapes}.")
            if examples.inputs.dtype != x.dtype:
                types = f"{_kind(x)} and {_kind(examples.inputs)}"
                raise DataError(f"{self.name} must have inputs of one type, but its splits have {types}.")
            if (strange := first_not_finite(examples.inputs)) is not None:
                rule = "have finite numbers as inputs"
                raise DataError(
                    f"{self.name} must {rule}, but {split} example {strange[0]} holds {strange[1]}."
                )
            low, high = int(examples.labels.min()), int(examples.labels.max())
            if low < 0 or high >= self.num_classes:
                wrong, last = low if low < 0 else high, self.num_classes - 1
                raise DataError(f"{self.name} must have {split} labels from 0 to {last}, but one is {wrong}.")

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, ``(C, H, W)`` for images."""
        return tuple(self.train.inputs.shape[1:])

    def fingerprint(self) -> str:
        """Give a sha256 of the name and every byte of both splits, under which partitions are stored."""
        return hashlib.sha256(f"{self.name}|{self.content_sha256}".encode()).hexdigest()

    @cached_property
    def content_sha256(self) -> str:
        """Digest of every byte of both splits, made once."""
        return dataset_digest(self)


def _fit(images: Tensor, num_means: int, num_stds: int) -> bool:
    """Whether moments can be those of images: one for all, or one for each channel."""
    is_image = images.ndim > 2
    of_channels = images.ndim == 4 and images.shape[1] == num_means
    return is_image and num_means == num_stds and (num_means == 1 or of_channels)


def first_not_finite(inputs: Tensor) -> tuple[int, float] | None:
    """Give the first row with a number that is not finite, and that number; None where all are, as of whole ones."""
    if not inputs.is_floating_point() or not inputs.numel():
        return None
    rows = inputs.flatten(1) if inputs.ndim > 1 else inputs[:, None]
    # Sums are not finite where a number is not, and need no memory; too large ones are told apart by looking closer.
    for place in (~rows.sum(1).isfinite()).nonzero().flatten().tolist():
        strange = rows[place][~rows[place].isfinite()]
        if len(strange):
            return place, float(strange[0])
    return None


def channel_moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Give mean and standard deviation of each channel, on a scale where 255 is 1.

    Exact to the last digit, from the 256 counts of each channel: every machine has the same, and so the same digest of
    the data. A constant channel gets standard deviation 1, so that normalising stays finite.

    Args:
        images: uint8 ``(N, C, H, W)``.
    """
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise DataError(
            f"images must be uint8 from 0 to 255 of the shape (N, C, H, W), but they are {_kind(images)}."
        )
    means, stds = zip(*(_moments(channel) for channel in images.unbind(1)), strict=True)
    return means, stds


def _moments(values: Tensor) -> tuple[float, float]:
    """Give mean and standard deviation of integers up to 255, divided by 255: sums of integers round nothing."""
    counts = torch.bincount(values.flatten()).tolist()
    number = sum(counts)
    total = sum(count * value for value, count in enumerate(counts))
    squares = sum(count * value**2 for value, count in enumerate(counts))
    scale = 255 * number
    variance = (number * squares - total**2) / scale**2
    return total / scale, math.sqrt(variance) or 1.0


def _kind(array: Tensor) -> str:
    return f"{str(array.dtype).removeprefix('torch.')} of the shape {tuple(array.shape)}"
