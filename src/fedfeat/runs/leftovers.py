"""What killed runs leave outside of any run directory: Ray's folders of sockets.

Ray gives them names that tell too little. So a run puts a mark with its process into such a folder, and every later
start removes the folders whose processes have ended.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from fedfeat.files import Owner, atomic_write_text, remove_leftovers

MARK = "fedfeat-owners"
"""File in such a folder: a line for each process that uses it."""
RAY_PREFIX = "fedfeat-ray-"
RAY_PARENT = Path("/tmp")
"""Ray's sockets need short paths, so its folder does not follow ``TMPDIR``."""


def mark(folder: Path) -> None:
    """Note in a folder that this process uses it."""
    atomic_write_text(folder / MARK, f"{Owner.of()}\n")


def sweep(run_dir: Path) -> None:
    """Remove what killed processes have left in a run directory that is locked, and Ray's folders."""
    remove_leftovers(run_dir, locked=True)
    with os.scandir(run_dir) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                remove_leftovers(Path(entry), locked=True)
    for found in RAY_PARENT.glob(f"{RAY_PREFIX}*/{MARK}"):
        _remove_if_gone(found)


def _remove_if_gone(found: Path) -> None:
    owners = _owners(found)
    with suppress(FileNotFoundError):  # another start has removed it meanwhile
        if owners and found.parent.stat().st_uid == os.getuid() and all(one.is_gone() for one in owners):
            shutil.rmtree(found.parent, ignore_errors=True)


def _owners(path: Path) -> list[Owner]:
    try:
        return list(map(Owner.read, path.read_text().split()))
    except (OSError, ValueError):  # of another user, or no mark
        return []
