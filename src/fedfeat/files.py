"""Files that are either the old one or the new one, whatever happens in between, and what killed processes leave."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import yaml

from fedfeat.errors import CheckpointError

_TEMPORARY = re.compile(r"\..+\.(\d+-\d+-[0-9a-f]{8})-\w+\.tmp")

# libyaml reads seven times as fast; a PyYAML built without it has its own loader alone.
_YAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Owner(NamedTuple):
    """The process that a temporary file belongs to: its number alone is given to another one later.

    Attributes:
        pid: Process number.
        started: When it was started, in clock ticks since the machine was; 0 where the system does not tell.
        place: Digest of what the number counts in: machine, its start, and namespace of process numbers.
    """

    pid: int
    started: int
    place: str

    @classmethod
    def of(cls, pid: int | None = None) -> Owner:
        """Give the mark of a living process here; None is this one."""
        pid = os.getpid() if pid is None else pid
        return cls(pid, _started(pid) or 0, _place())

    @classmethod
    def read(cls, text: str) -> Owner:
        """Read what `str` wrote.

        Raises:
            ValueError: It is no mark.
        """
        pid, started, place = text.split("-")
        return cls(int(pid), int(started), place)

    def __str__(self) -> str:
        return f"{self.pid}-{self.started}-{self.place}"

    def is_gone(self) -> bool:
        """Whether the process has ended; False too where that cannot be known here."""
        if self.place != _place():
            return False
        if not self.started:
            return not _exists(self.pid)
        return _started(self.pid) != self.started


@contextmanager
def atomic_open(path: str | Path, durable_name: bool = True) -> Iterator[IO[bytes]]:
    """Open a temporary neighbour for writing that takes the place of `path` on success.

    The bytes are on the disk before the name changes, and the name is on the disk before this returns. On an
    error the old file stays as it was and the temporary one is removed; a killed process leaves
    ``.<name>.<owner>-<thread>.tmp`` behind, for `remove_leftovers`.

    Args:
        path: The file to create or replace; missing parent folders are created.
        durable_name: Whether to wait for the name; who writes many files says `sync_folder` once instead.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{Owner.of()}-{threading.get_ident()}.tmp")
    try:
        # Of a killed process with the same number, or a link that somebody has put there.
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable_name:
        sync_folder(path.parent)


def atomic_write_bytes(path: str | Path, data: bytes, durable_name: bool = True) -> None:
    """Write `data` to `path` completely or not at all; see `atomic_open`."""
    with atomic_open(path, durable_name) as file:
        file.write(data)


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write `text` (UTF-8) to `path` completely or not at all."""
    atomic_write_bytes(path, text.encode())


def atomic_write_json(path: str | Path, fields: Mapping[str, Any], indent: int | None = 2) -> None:
    """Write fields as JSON to `path` completely or not at all."""
    atomic_write_text(path, json.dumps(fields, indent=indent) + "\n")


def write_once(path: Path, fields: Mapping[str, Any], indent: int | None = 2) -> None:
    """Write fields as JSON where no file is: what a run began with stays as it was."""
    if not path.exists():
        atomic_write_json(path, fields, indent)


@contextmanager
def fields_of(path: Path, what: str) -> Iterator[Any]:
    """Give what a JSON file of a run holds, to be read within; that it is damaged is said by what it must do.

    Args:
        path: The file, which is there.
        what: After "must", such as "describe the run's data".

    Raises:
        CheckpointError: It is no JSON, or what is within meets fields that it cannot read.
    """
    try:
        yield json.loads(path.read_text())
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise CheckpointError(f"{path} must {what}, but it does not: {error}.") from error


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Give a folder that is removed in the end, or by `remove_leftovers` where this process is killed."""
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{name}.{Owner.of()}-", suffix=".tmp") as folder:
        yield Path(folder)


def remove_leftovers(folder: Path, locked: bool = False) -> None:
    """Remove temporary files and folders of processes that have ended, by the marks in their names.

    Args:
        folder: Where they lie; it may be missing.
        locked: Whether this process alone writes there, so that those of other machines and starts go too.
    """
    here = Owner.of()
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            match = _TEMPORARY.fullmatch(entry.name)
            if not match:
                continue
            owner = Owner.read(match[1])
            if owner.is_gone() or (locked and owner.place != here.place):
                _remove(entry)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry, ignore_errors=True)
    else:
        Path(entry).unlink(missing_ok=True)


def _started(pid: int) -> int | None:
    """Give the start of a process in ticks; None where it has ended, or where the system does not tell."""
    try:
        # The second field is the program's name in brackets, which may hold anything.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(fields[18])
    except (OSError, ValueError, IndexError):
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@cache
def _place() -> str:
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def read_yaml(path: Path) -> Any:
    """Read a YAML file of plain values; an empty one holds None.

    Raises:
        yaml.YAMLError: It is no YAML.
    """
    return yaml.load(path.read_text(), Loader=_YAML)
