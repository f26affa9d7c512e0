"""Files that are either the old one or the new one, whatever happens in between."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_open(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a temporary neighbour for writing that takes the place of `path` on success.

    The bytes are on the disk before the name changes, and the name is on the disk before this returns. On an
    error the old file stays as it was and the temporary one is removed; a killed process leaves
    ``.<name>.*.tmp`` behind.

    Args:
        path: The file to create or replace; missing parent folders are created.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
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
    _sync_folder(path.parent)


def atomic_write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path` completely or not at all."""
    with atomic_open(path) as file:
        file.write(data)


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write `text` (UTF-8) to `path` completely or not at all."""
    atomic_write_bytes(path, text.encode())


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
