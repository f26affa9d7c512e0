"""What killed runs leave outside of any run directory: folders of sockets and tensors in shared memory.

Their makers, ``multiprocessing``, PyTorch and Ray, give them names that tell too little. So a run puts a mark with the
processes that use such a folder into it, and every later start removes the folders whose processes have all ended.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedfeat.files import Owner, atomic_write_text, remove_leftovers

MARK = "fedfeat-owners"
"""File in such a folder: a line for each process that uses it."""
RAY_PREFIX = "fedfeat-ray-"
RAY_PARENT = Path("/tmp")
"""Ray's sockets need short paths, so its folder does not follow ``TMPDIR``."""
_SHARED_MEMORY = Path("/dev/shm")


def mark(folder: Path, pids: Sequence[int] = (), is_new: bool = True) -> None:
    """Note in a folder that this process uses it, and others that it has started, beside those that are noted there.

    Args:
        folder: The folder.
        pids: The others.
        is_new: Whether it was made for this; one without a mark that was there before may be of a program that knows
            nothing of marks and goes on with it, such as a parent of this process, and gets none.
    """
    noted = [owner for owner in _owners(folder / MARK) if not owner.is_gone()]
    if noted or is_new:
        owners = dict.fromkeys([*noted, Owner.of(), *map(Owner.of, pids)])
        atomic_write_text(folder / MARK, "".join(f"{owner}\n" for owner in owners))


def sweep(run_dir: Path) -> None:
    """Remove what killed processes have left in a run directory that is locked, and in the system's folders."""
    remove_leftovers(run_dir, locked=True)
    with os.scandir(run_dir) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                remove_leftovers(Path(entry), locked=True)
    for parent, prefix in ((Path(tempfile.gettempdir()), "pymp-"), (RAY_PARENT, RAY_PREFIX)):
        for found in parent.glob(f"{prefix}*/{MARK}"):
            _remove_if_gone(found)


def _remove_if_gone(found: Path) -> None:
    owners = _owners(found)
    if not owners or found.parent.stat().st_uid != os.getuid() or not all(one.is_gone() for one in owners):
        return
    for owner in owners:
        _remove_shared_memory(owner)
    shutil.rmtree(found.parent, ignore_errors=True)


def _owners(path: Path) -> list[Owner]:
    try:
        return list(map(Owner.read, path.read_text().split()))
    except (OSError, ValueError):  # of another user, or no mark
        return []


def _remove_shared_memory(owner: Owner) -> None:
    """Remove a process's tensors, whose names begin with its number; a process that has it now keeps its own."""
    if Owner.of(owner.pid).started:
        return
    for path in _SHARED_MEMORY.glob(f"torch_{owner.pid}_*"):
        with suppress(OSError):
            path.unlink()
