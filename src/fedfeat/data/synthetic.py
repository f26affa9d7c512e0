"""Random images of any shape, for benchmarks and tests."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import torch

from fedfeat.config.conditions import Condition, Count, Natural, UnitInterval, integer
from fedfeat.data.examples import Dataset, Examples, channel_moments
from fedfeat.seeding import numpy_generator

SHAPE = Condition(
    lambda value: isinstance(value, list) and len(value) == 3 and all(map(integer(1).holds, value)),
    "be three positive sizes (C, H, W)",
    {"type": "array", "items": integer(1).schema, "minItems": 3, "maxItems": 3},
)


def synthetic(
    shape: Annotated[Sequence[int], SHAPE] = (3, 32, 32),
    num_classes: Annotated[int, integer(2)] = 10,
    num_train: Count = 10_000,
    num_test: Count = 2_000,
    seed: Natural = 0,
    signal: UnitInterval = 0.0,
    columns: Mapping[str, Count] | None = None,
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
    patterns = numpy_generator(seed, "synthetic/patterns").integers(
        256, size=(num_classes, *shape), dtype=np.uint8
    )
    sizes = enumerate((num_train, num_test))
    train, test = (_draw(patterns, size, seed, split, signal, columns or {}) for split, size in sizes)
    classes = tuple(map(str, range(num_classes)))
    return Dataset("synthetic", train, test, classes, *channel_moments(train.inputs))


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
