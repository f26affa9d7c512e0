"""Splits on disk: made once per (data, scheme, number of clients, seed), then reused by every run."""

import csv
import hashlib
import inspect
import io
import json
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfeat.data.partition.parts import (
    ClassTestParts,
    ClientSplit,
    IndexTestParts,
    Parts,
    TestParts,
    class_counts,
)
from fedfeat.data.partition.schemes import Scheme
from fedfeat.errors import DataError
from fedfeat.files import atomic_write_bytes, atomic_write_text, remove_leftovers, scratch_folder

if TYPE_CHECKING:
    from fedfeat.data.examples import Dataset

_log = logging.getLogger("fedfeat")

# Part of every key; raised when the same scheme and seed begin to give other splits.
FORMAT = 3
# Where classes come from that do not change between two runs of one FORMAT.
_OWN = ("fedfeat", "builtins", "abc", "typing")


def load_or_make(
    scheme: Scheme, dataset: "Dataset", num_clients: int, seed: int, cache_dir: Path | str
) -> ClientSplit:
    """Give the split of a data set, from disk where it is there.

    Several processes may make the same split at once: each writes a folder of its own, the first rename
    wins, and all get the same split. A split that cannot be read is made again.

    Args:
        scheme: How the examples are handed out.
        dataset: The data set.
        num_clients: Number of clients.
        seed: The experiment's seed.
        cache_dir: Splits lie in ``<cache_dir>/splits/<sha256 of what they depend on>/``.
    """
    key = json.dumps(
        {
            "format": FORMAT,
            "dataset": dataset.fingerprint(),
            **_description(scheme),
            "num_clients": num_clients,
            "seed": seed,
        },
        indent=2,
        sort_keys=True,
    )
    folder = Path(cache_dir) / "splits" / hashlib.sha256(key.encode()).hexdigest()
    train, test = (part.labels.cpu().numpy() for part in (dataset.train, dataset.test))
    found = read_split(folder, num_clients, len(train), test)
    if found is not None:
        return found
    if folder.exists():
        _log.warning("The split %s must be whole and readable, but it is not: it is made again.", folder)
    columns = dataset.train.columns, dataset.test.columns
    split = scheme.split(train, test, dataset.num_classes, num_clients, seed, *columns)
    # Training examples come first also in the counting of merged splits.
    counts = class_counts(split.train, np.concatenate([train, test]), dataset.num_classes)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder.parent)
        with scratch_folder(folder.parent, "making") as scratch:
            made = scratch / "split"
            _write(made, split, counts, dataset.classes, key)
            _publish(made, folder, lambda: read_split(folder, num_clients, len(train), test) is not None)
    except OSError as error:
        raise DataError.unwritable("splits", folder.parent, error) from error
    return split


def read_split(
    folder: Path, num_clients: int, num_examples: int, test_labels: np.ndarray
) -> ClientSplit | None:
    """Read a stored split, or give None where there is none or it is damaged.

    Args:
        folder: The split's folder.
        num_clients: Number of clients, K.
        num_examples: Number of training examples.
        test_labels: Class of every test example, (N_test,); class-wise test parts refer to it.
    """
    try:
        # From memory: NumPy leaves the file open where the archive is damaged.
        data = (folder / "split.npz").read_bytes()
        if hashlib.sha256(data).hexdigest() != (folder / "split.sha256").read_text().strip():
            return None
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = dict(file)
        num_test, merged = len(test_labels), bool(arrays["merged"])
        if merged:
            num_examples = num_test = num_examples + num_test
        train = _read_parts(arrays, "train", num_clients, num_examples)
        val = _read_parts(arrays, "val", num_clients, num_examples)
        test: TestParts
        if "test_mask" in arrays:
            test = ClassTestParts(arrays["test_mask"].reshape(num_clients, -1), test_labels)
        else:
            test = IndexTestParts(_read_parts(arrays, "test", num_clients, num_test))
        # Absent from what was stored before there was such an order.
        server_order = bool(arrays.get("server_order", False))
        return ClientSplit(train, val, test, bool(arrays["permuted"]), merged, server_order)
    except Exception:  # a damaged archive raises nearly anything, and is made again whatever it is
        return None


def _description(scheme: Scheme) -> dict[str, Any]:
    """Give a scheme's name and parameters, of a scheme within it likewise, whose parameters alone would not tell it.

    Of a class from elsewhere its place and a digest of its file come with them: what it does may change between runs.
    So may what lies in a file that a parameter names.
    """
    values = {name: _value(one) for name, one in vars(scheme).items()}
    found = {"scheme": type(scheme).__name__, "parameters": values}
    kinds = [kind for kind in type(scheme).__mro__ if kind.__module__.partition(".")[0] not in _OWN]
    return found | ({"from": [_place(kind) for kind in kinds]} if kinds else {})


def _value(one: Any) -> Any:
    if isinstance(one, Scheme):
        return _description(one)
    if isinstance(one, str | Path) and os.path.isfile(place := os.path.expanduser(one)):
        return [str(one), hashlib.sha256(Path(place).read_bytes()).hexdigest()]
    return str(one) if isinstance(one, Path) else one


def _place(kind: type) -> list[str]:
    return [kind.__module__, kind.__qualname__, hashlib.sha256(_source(kind)).hexdigest()]


def _source(kind: type) -> bytes:
    """Give the file of a class, of one from a notebook its lines, and where there are none what fits nothing stored."""
    with suppress(OSError, TypeError):
        return Path(inspect.getfile(kind)).read_bytes()
    with suppress(OSError, TypeError):
        return inspect.getsource(kind).encode()
    return os.urandom(16)


def _write(folder: Path, split: ClientSplit, counts: np.ndarray, classes: tuple[str, ...], key: str) -> None:
    folder.mkdir()
    flags = ("permuted", "merged", "server_order")
    arrays = {name: np.array(getattr(split, name)) for name in flags}
    for name, parts in (("train", split.train), ("val", split.val)):
        arrays |= {f"{name}_indices": parts.indices, f"{name}_offsets": parts.offsets}
    if isinstance(split.test, ClassTestParts):
        arrays["test_mask"] = split.test.mask
    else:
        arrays |= {"test_indices": split.test.parts.indices, "test_offsets": split.test.parts.offsets}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    atomic_write_bytes(folder / "split.npz", buffer.getvalue())
    atomic_write_text(folder / "split.sha256", hashlib.sha256(buffer.getvalue()).hexdigest() + "\n")
    atomic_write_text(folder / "key.json", key + "\n")
    atomic_write_text(folder / "classes.csv", _table(counts, classes))


def _table(counts: np.ndarray, classes: tuple[str, ...]) -> str:
    rows = np.column_stack([np.arange(len(counts)), counts.sum(axis=1), counts]).tolist()
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([["client", "num_examples", *classes], *rows])
    return text.getvalue()


def _publish(made: Path, folder: Path, is_good: Callable[[], bool]) -> None:
    """Rename a finished folder into place; a good one that came first stays, a damaged one goes."""
    while True:
        try:
            os.rename(made, folder)
            return
        except OSError:
            if not folder.exists():
                raise
        if is_good():
            return
        with suppress(FileNotFoundError):  # another process may have moved it first
            os.rename(folder, made.with_name("damaged"))
        shutil.rmtree(made.with_name("damaged"), ignore_errors=True)


def _read_parts(arrays: dict[str, np.ndarray], name: str, num_clients: int, num_examples: int) -> Parts:
    parts = Parts(arrays[f"{name}_indices"], arrays[f"{name}_offsets"])
    steps = np.diff(parts.offsets)
    is_sound = (
        parts.num_clients == num_clients
        and parts.offsets[0] == 0
        and parts.offsets[-1] == len(parts.indices)
        and steps.min() >= 0
        and (not len(parts.indices) or 0 <= parts.indices.min() <= parts.indices.max() < num_examples)
    )
    if not is_sound:
        raise ValueError(f"{name} parts do not fit the data set")
    return parts
