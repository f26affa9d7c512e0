"""Random images of any shape, for benchmarks and tests."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fedfeat.config.conditions import Natural
from fedfeat.data.examples import Dataset, Examples, channel_moments
from fedfeat.errors import ConfigError
from fedfeat.seeding import numpy_generator


def synthetic(
    shape: Sequence[int] = (3, 32, 32),
    num_classes: int = 10,
    num_train: int = 10_000,
    num_test: int = 2_000,
    seed: Natural = 0,
    signal: float = 0.0,
    columns: Mapping[str, int] | None = None,
) -> Dataset:
    """Draw uniform random pixels and balanced labels.

    Args:
        shape: Channels, height and width of an image.
        num_classes: Number of classes.
        num_train: Number of training examples.
        num_test: Number of test examples.
        seed: Seed of the data, apart from the experiment's.
        signal: From 0 (pixels say nothing about the class) to 1 (every image is its class's random pattern).
        columns: Name of a further column to the number of different values in it, e.g. ``{"writer": 50}``.
    """
    _check(shape, num_classes, num_train, num_test, signal, columns or {})
    patterns = numpy_generator(seed, "synthetic/patterns").integers(
        256, size=(num_classes, *shape), dtype=np.uint8
    )
    train, test = (
        _draw(patterns, size, seed, split, signal, columns or {})
        for split, size in enumerate((num_train, num_test))
    )
    mean, std = channel_moments(train.inputs)
    return Dataset("synthetic", train, test, tuple(str(label) for label in range(num_classes)), mean, std)


def _draw(
    patterns: np.ndarray, size: int, seed: int, split: int, signal: float, columns: Mapping[str, int]
) -> Examples:
    """Draw one split; the patterns, ``(num_classes, C, H, W)``, are common to both."""
    labels = numpy_generator(seed, "synthetic/labels", split).permutation(np.arange(size) % len(patterns))
    pixels = numpy_generator(seed, "synthetic/pixels", split).integers(
        256, size=(size, *patterns.shape[1:]), dtype=np.uint8
    )
    if signal > 0:
        for label, pattern in enumerate(patterns):
            mixed = (1 - signal) * pixels[labels == label] + signal * pattern
            pixels[labels == label] = np.rint(mixed).astype(np.uint8)
    drawn = {
        name: numpy_generator(seed, f"synthetic/column/{name}", split).integers(values, size=size)
        for name, values in columns.items()
    }
    return Examples(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)), drawn)


def _check(
    shape: Sequence[int],
    num_classes: int,
    num_train: int,
    num_test: int,
    signal: float,
    columns: Mapping[str, int],
) -> None:
    """Refuse sizes that no data set can have."""
    if len(shape) != 3 or min(shape) < 1:
        raise ConfigError.rule("data.loader.shape", "be three positive sizes (C, H, W)", list(shape))
    if num_classes < 2:
        raise ConfigError.rule("data.loader.num_classes", "be at least 2", num_classes)
    for key, size in (("num_train", num_train), ("num_test", num_test)):
        if size < 1:
            raise ConfigError.rule(f"data.loader.{key}", "be at least 1", size)
    if not 0 <= signal <= 1:
        raise ConfigError.rule("data.loader.signal", "be between 0 and 1", signal)
    for name, values in columns.items():
        if values < 1:
            raise ConfigError.rule(f"data.loader.columns.{name}", "be at least 1", values)
