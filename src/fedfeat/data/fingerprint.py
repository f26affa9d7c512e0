"""Digests of data and splits: what a run began with, and whether it goes on with the same.

A digest of many bytes is noted beside a stamp of the files that they came from, so that it is made once.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedfeat.files import atomic_write_json

if TYPE_CHECKING:
    from fedfeat.data.examples import Dataset
    from fedfeat.data.partition.parts import ClientSplit


class Fingerprint(NamedTuple):
    """Digests of what a federation learns from.

    Attributes:
        examples: Of the data set as it was loaded, every input and label, and of a public one.
        split: Of who holds which example.
    """

    examples: str
    split: str

    @classmethod
    def of(cls, dataset: "Dataset", split: "ClientSplit", public: "Dataset | None") -> "Fingerprint":
        """Take that of a data set, its split and a public data set, each as it was given."""
        vectors = dataset.vocabulary.vectors if dataset.vocabulary else None
        words = None if vectors is None else array_digest(vectors.cpu().numpy())
        also = public.content_sha256 if public else None
        whole = repr((dataset.content_sha256, tuple(dataset.mean), tuple(dataset.std), words, also))
        return cls(hashlib.sha256(whole.encode()).hexdigest(), split_digest(split))


class Note(NamedTuple):
    """A digest that was noted.

    Attributes:
        stamp: Of the files when it was made, see `stamp_of`.
        sha256: The digest.
    """

    stamp: str
    sha256: str

    @classmethod
    def read(cls, path: Path) -> "Note | None":
        """Read what `write` wrote; None where there is none or it is damaged."""
        with suppress(OSError, ValueError, TypeError):
            return cls(**json.loads(path.read_text()))
        return None

    def write(self, path: Path) -> None:
        """Write it."""
        atomic_write_json(path, self._asdict(), indent=None)


def noted(path: Path, stamp: str, compute: Callable[[], str]) -> str:
    """Give a digest from its note where the stamp is still the same, or make it and note it where that can be."""
    found = Note.read(path)
    if found is None or found.stamp != stamp:
        found = Note(stamp, compute())
        with suppress(OSError):
            found.write(path)
    return found.sha256


def stamp_of(paths: Iterable[Path]) -> str:
    """Give a digest of names, sizes, times and inodes of files, which changes whenever one is written."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        stat = path.stat()
        # The change time too: the other can be set to any value.
        digest.update(
            f"{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}\0{stat.st_ino}\n".encode()
        )
    return digest.hexdigest()


def dataset_digest(dataset: "Dataset") -> str:
    """Give a digest of every byte of both splits; the name may be that of the folder that they lie in."""
    digest = hashlib.sha256()
    for examples in (dataset.train, dataset.test):
        digest.update(b"|inputs:" + (examples.inputs_sha256 or examples.digest()).encode())
        columns = {name: np.asarray(examples.columns[name]) for name in sorted(examples.columns)}
        for name, array in {"labels": examples.labels.cpu().numpy(), **columns}.items():
            digest.update(f"|{name}:{array_digest(array)}".encode())
    return digest.hexdigest()


def split_digest(split: "ClientSplit") -> str:
    """Give a digest of every index of a split."""
    digest = hashlib.sha256(repr((split.permuted, split.merged)).encode())
    for arrays in (split.train, split.val, split.test.arrays()):
        for array in arrays:
            digest.update(array_digest(array).encode())
    return digest.hexdigest()


def array_digest(array: np.ndarray) -> str:
    """Give a digest of type, shape and bytes of an array; what is not numeric counts as text."""
    numeric = array.dtype.kind in "biuf"
    digest = hashlib.sha256(f"{array.dtype.str if numeric else 'text'}:{array.shape}|".encode())
    if numeric:
        digest.update(np.ascontiguousarray(array).data)
    else:
        digest.update("\0".join(map(str, array.tolist())).encode())
    return digest.hexdigest()
