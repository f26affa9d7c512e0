"""The files of an image folder: which there are, their classes and whether one has changed."""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedfeat.errors import DataError

CACHE_VERSION = 2
"""Part of every cache key: raise it when decoding changes."""


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
