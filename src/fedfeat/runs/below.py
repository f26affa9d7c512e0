"""Folders below another, also where a link among them leads to another disk."""

import os
from collections.abc import Iterator
from pathlib import Path


def walk(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Go through a folder and all below it as `os.walk` does, each folder once, in the order of their names.

    Args:
        folder: The folder. What vanishes meanwhile is left out.

    Yields:
        Path, names of folders (those that are taken out are not gone into) and names of files.
    """
    seen = set[tuple[int, int]]()
    for place, folders, files in os.walk(folder, followlinks=True):
        try:
            found = os.stat(place)
        except OSError:
            continue
        if (found.st_dev, found.st_ino) in seen:  # a link to what lies above it would have no end
            folders[:] = []
            continue
        seen.add((found.st_dev, found.st_ino))
        folders.sort()
        yield Path(place), folders, files


def holders(folder: Path, *names: str) -> list[Path]:
    """Give the folders that hold a file of one of some names, in their order."""
    return sorted(place for place, _, files in walk(folder) if not {*names}.isdisjoint(files))
