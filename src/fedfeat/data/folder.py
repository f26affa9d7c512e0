"""Image folders, ``train/<class>/*`` and ``test/<class>/*``, decoded once into a cached array per split."""

import hashlib
import io
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from fedfeat.data.examples import Dataset, Examples, channel_moments
from fedfeat.data.fingerprint import Note, array_digest, stamp_of
from fedfeat.data.subset import Limit, limited
from fedfeat.errors import DataError
from fedfeat.files import atomic_open, remove_leftovers

log = logging.getLogger(__name__)

CACHE_VERSION = 2
"""Part of every cache key: raise it when decoding changes."""

GREY_MODES = frozenset({"1", "L", "LA", "La"})
WIDE_MODES = frozenset({"F", "I", "I;16", "I;16B", "I;16L", "I;16N"})
"""Pillow's modes with more than 8 bits a channel, which converting to 8 bits would clip."""


class Listing(NamedTuple):
    """The files of one split.

    Attributes:
        root: The split's folder.
        names: Paths below the root, sorted by class and name.
        labels: Class id of each file, int64 ``(N,)``.
        classes: Names of the class folders; numbers in numeric order, else alphabetical.
        stamp: Hash of names, sizes and times; changes whenever a file does.
    """

    root: Path
    names: tuple[str, ...]
    labels: np.ndarray
    classes: tuple[str, ...]
    stamp: str


def image_folder(
    root: str | Path,
    image_size: Limit = None,
    channels: Literal[1, 3] | None = None,
    cache_dir: str | Path | None = None,
    num_train: Limit = None,
    num_test: Limit = None,
) -> Dataset:
    """Load the user's own images; class names and channel moments come from the training part.

    Args:
        root: Folder with ``train/<class>/*`` and ``test/<class>/*``, in any format that Pillow reads.
        image_size: Scale and centre-crop every image to this square; None needs images of one size.
        channels: 1 (grey) or 3 (RGB) converts every image; None needs all images to agree.
        cache_dir: Where the decoded arrays are kept; None decodes every time.
        num_train: At most so many training examples, see `subset.limited`.
        num_test: At most so many test examples.
    """
    folder = Path(root).expanduser()
    splits = read_splits(folder, image_size, channels, cache_dir)
    dataset = Dataset(folder.resolve().name, *splits, *channel_moments(splits[0].inputs))
    return limited(dataset, num_train, num_test)


def read_splits(
    root: Path, image_size: int | None, channels: int | None, cache_dir: str | Path | None
) -> tuple[Examples, Examples, tuple[str, ...]]:
    """Read both splits of an image folder, and the names of the classes.

    Args:
        root: Folder with the folders ``train`` and ``test``.
        image_size: See `image_folder`.
        channels: See `image_folder`.
        cache_dir: See `image_folder`.
    """
    train, test = list_split(root / "train"), list_split(root / "test")
    if different := sorted(set(train.classes) ^ set(test.classes)):
        one = different[0]
        raise DataError(
            f"{root} must have the same classes in train and test, but only one of them has {one!r}."
        )
    found = [_decoded(listing, image_size, channels, cache_dir) for listing in (train, test)]
    (pixels, _), (held_out, _) = found
    if held_out.shape[1:] != pixels.shape[1:]:
        raise DataError(_differs(test.root / test.names[0], held_out.shape[1:], pixels.shape[1:]))
    first, second = (
        Examples(torch.from_numpy(array), torch.from_numpy(listing.labels), inputs_sha256=sha256)
        for (array, sha256), listing in zip(found, (train, test), strict=True)
    )
    return first, second, train.classes


def list_split(root: Path) -> Listing:
    """List the images of one split; hidden files and extensions unknown to Pillow are passed over.

    Args:
        root: Folder with one folder per class.
    """
    extensions = Image.registered_extensions()
    digest = hashlib.sha256(str(CACHE_VERSION).encode())
    names: list[str] = []
    labels: list[int] = []
    classes = sorted((entry.name for entry in _scan(root) if entry.is_dir()), key=_class_order)
    if not classes:
        raise DataError(f"{root} must hold one folder per class, but it has none.")
    for label, name in enumerate(classes):
        if name != name.encode(errors="replace").decode():  # it becomes a name in tables and figures
            raise DataError(f"{str(root / name)!r} must have a name in UTF-8, but it has not.")
        files = [entry for entry in _scan(root / name) if Path(entry.name).suffix.lower() in extensions]
        if not files:
            raise DataError(f"{root / name} must hold at least one image, but it has none.")
        labels += [label] * len(files)
        for entry in sorted(files, key=lambda entry: entry.name):
            with _readable(entry.path, "file"):
                found = entry.stat()
            if not stat.S_ISREG(found.st_mode):
                # Reading a pipe, a socket or a device may never end.
                raise DataError(f"{entry.path} must be a file, but it is {_kind(found.st_mode)}.")
            names.append(f"{name}/{entry.name}")
            # The change time too: archives often give every file the same modification time.
            stamp = f"{names[-1]}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ctime_ns}\n"
            digest.update(stamp.encode(errors="surrogateescape"))
    return Listing(root, tuple(names), np.array(labels, dtype=np.int64), tuple(classes), digest.hexdigest())


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    with _readable(folder, "folder"), os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


@contextmanager
def _readable(path: Path | str, kind: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = "; data.root names the folder of train/ and test/" if kind == "folder" else ""
        raise DataError(
            f"{path} must be a readable {kind}, but it is not ({error.strerror}){where}."
        ) from error


def _class_order(name: str) -> tuple[int, str]:
    """Sort folders named by numbers as numbers, so that the number is the class id; others by name."""
    return (int(name) if name.isdecimal() else -1, name)


def _decoded(
    listing: Listing, image_size: int | None, channels: int | None, cache_dir: str | Path | None
) -> tuple[np.ndarray, str | None]:
    """Give all images of a split, uint8 ``(N, C, H, W)``, from the cache where it has them, and their digest there."""
    if cache_dir is None:
        return _decode(listing, image_size, channels), None
    key = hashlib.sha256(f"{listing.stamp}:{image_size}:{channels}".encode()).hexdigest()[:32]
    path = Path(cache_dir).expanduser() / f"images-{key}.npy"
    found = _from_cache(path)
    if found is not None:
        return found
    pixels = _decode(listing, image_size, channels)
    try:
        remove_leftovers(path.parent)
        with atomic_open(path) as file:
            np.save(file, pixels)
        note = Note(stamp_of([path]), array_digest(pixels))
        note.write(path.with_suffix(".json"))
    except OSError as error:
        raise DataError.unwritable("decoded images", path, error) from error
    return pixels, note.sha256


def _from_cache(path: Path) -> tuple[np.ndarray, str] | None:
    """Give decoded images with their digest, or None where they are not there, or not what was decoded."""
    note = Note.read(path.with_suffix(".json"))
    if note is None or not path.is_file():
        return None
    try:
        # Mapped copy-on-write: processes on one machine share the pages.
        pixels = np.load(path, mmap_mode="c", allow_pickle=False)
        if note.stamp != (stamp := stamp_of([path])):
            if note.sha256 != array_digest(pixels):
                raise ValueError("it has been altered")
            Note(stamp, note.sha256).write(path.with_suffix(".json"))
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s): decoding again.", path, error)
        return None
    return pixels, note.sha256


def _decode(listing: Listing, image_size: int | None, channels: int | None) -> np.ndarray:
    """Decode every file into one array that is allocated once, uint8 ``(N, C, H, W)``."""
    log.info("Decoding %d images of %s.", len(listing.names), listing.root)
    first = _read(listing.root / listing.names[0], image_size, channels)
    pixels = np.empty((len(listing.names), *first.shape), dtype=np.uint8)
    for row, name in enumerate(listing.names):
        path = listing.root / name
        image = _read(path, image_size, channels)
        if image.shape != first.shape:
            raise DataError(_differs(path, image.shape, first.shape))
        pixels[row] = image
    return pixels


def _differs(path: Path, shape: Sequence[int], first: Sequence[int]) -> str:
    differing = {"channels": shape[0] != first[0], "image_size": tuple(shape[1:]) != tuple(first[1:])}
    keys = " and ".join(f"data.loader.{key}" for key, differs in differing.items() if differs)
    ours, theirs = ("x".join(map(str, size)) for size in (shape, first))
    return f"{path} must be {theirs} like the first training image, but it is {ours}; set {keys}."


def _open(path: Path) -> Image.Image:
    """Open an image, as what its extension says first: trying all of Pillow's formats takes half the time."""
    file = io.BytesIO(path.read_bytes())
    try:
        return Image.open(file, formats=[Image.registered_extensions()[path.suffix.lower()]])
    except UnidentifiedImageError:
        return Image.open(path)


def _read(path: Path, image_size: int | None, channels: int | None) -> np.ndarray:
    """Decode one image, uint8 ``(C, H, W)``."""
    try:
        with _open(path) as image:
            if image.mode in WIDE_MODES:
                raise DataError(f"{path} must have 8 bits a channel, but its mode is {image.mode!r}.")
            grey = channels == 1 or (channels is None and image.mode in GREY_MODES)
            plain = image.convert("L" if grey else "RGB")
    except DataError:
        raise
    except Exception as error:  # Pillow's plugins raise many types: OSError, SyntaxError, struct.error, ...
        raise DataError(f"{path} must be an image that Pillow can read, but it is not ({error}).") from error
    if image_size is not None:
        plain = ImageOps.fit(plain, (image_size, image_size), Image.Resampling.BILINEAR)
    array = np.asarray(plain)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
