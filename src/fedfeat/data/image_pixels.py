"""Images of a folder decoded, once, into an array that is kept."""

import hashlib
import io
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fedfeat.data.fingerprint import Note, array_digest, stamp_of
from fedfeat.data.image_files import Listing
from fedfeat.errors import DataError
from fedfeat.files import atomic_open, remove_leftovers

log = logging.getLogger(__name__)

GREY_MODES = frozenset({"1", "L", "LA", "La"})
WIDE_MODES = frozenset({"F", "I", "I;16", "I;16B", "I;16L", "I;16N"})
"""Pillow's modes with more than 8 bits a channel, which converting to 8 bits would clip."""


def decoded(
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
            raise DataError(differs(path, image.shape, first.shape))
        pixels[row] = image
    return pixels


def differs(path: Path, shape: Sequence[int], first: Sequence[int]) -> str:
    """Say in a sentence how an image's shape (C, H, W) differs from the first one's, and which keys change it."""
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
