"""Image folders, ``train/<class>/*`` and ``test/<class>/*``, decoded once into a cached array per split."""

from pathlib import Path
from typing import Literal

import torch

from fedfeat.data.examples import Dataset, Examples, channel_moments
from fedfeat.data.image_columns import read_columns
from fedfeat.data.image_files import list_split
from fedfeat.data.image_pixels import decoded, differs
from fedfeat.data.subset import Limit, limited
from fedfeat.errors import DataError


def image_folder(
    root: str | Path,
    image_size: Limit = None,
    channels: Literal[1, 3] | None = None,
    cache_dir: str | Path | None = None,
    num_train: Limit = None,
    num_test: Limit = None,
    columns: str | Path | None = None,
) -> Dataset:
    """Load the user's own images; class names and channel moments come from the training part.

    Args:
        root: Folder with ``train/<class>/*`` and ``test/<class>/*``, in any format that Pillow reads.
        image_size: Scale and centre-crop every image to this square; None needs images of one size.
        channels: 1 (grey) or 3 (RGB) converts every image; None needs all images to agree.
        cache_dir: Where the decoded arrays are kept; None decodes every time.
        num_train: At most so many training examples, see `subset.limited`.
        num_test: At most so many test examples.
        columns: A table of further facts per image, see `image_columns.read_columns`.
    """
    folder = Path(root).expanduser()
    splits = read_splits(folder, image_size, channels, cache_dir, columns)
    dataset = Dataset(folder.resolve().name, *splits, *channel_moments(splits[0].inputs))
    return limited(dataset, num_train, num_test)


def read_splits(
    root: Path,
    image_size: int | None,
    channels: int | None,
    cache_dir: str | Path | None,
    columns: str | Path | None = None,
) -> tuple[Examples, Examples, tuple[str, ...]]:
    """Read both splits of an image folder, and the names of the classes.

    Args:
        root: Folder with the folders ``train`` and ``test``.
        image_size: See `image_folder`.
        channels: See `image_folder`.
        cache_dir: See `image_folder`.
        columns: See `image_folder`.
    """
    train, test = list_split(root / "train"), list_split(root / "test")
    if different := sorted(set(train.classes) ^ set(test.classes)):
        one = different[0]
        raise DataError(
            f"{root} must have the same classes in train and test, but only one of them has {one!r}."
        )
    facts = read_columns(columns, train, test)
    found = [decoded(listing, image_size, channels, cache_dir) for listing in (train, test)]
    (pixels, _), (held_out, _) = found
    if held_out.shape[1:] != pixels.shape[1:]:
        raise DataError(differs(test.root / test.names[0], held_out.shape[1:], pixels.shape[1:]))
    first, second = (
        Examples(torch.from_numpy(array), torch.from_numpy(listing.labels), own, inputs_sha256=sha256)
        for (array, sha256), listing, own in zip(found, (train, test), facts, strict=True)
    )
    return first, second, train.classes
