"""Which code made a run: the commit of the source tree, and the versions of packages. Imports nothing heavy."""

import importlib.metadata
import platform
import subprocess
from contextlib import suppress
from pathlib import Path

_PACKAGES = ("fedfeat", "torch", "torchvision", "pytorch-lightning", "torchmetrics", "hydra-core", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that make the numbers."""
    found = {"python": platform.python_version()} | dict.fromkeys(_PACKAGES, "not installed")
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def uncommitted() -> set[Path]:
    """Python files of the source tree that are in no commit, or differ from theirs; none outside a checkout."""
    here = Path(__file__).parents[1]
    words = [
        "git",
        "--no-optional-locks",
        "status",
        "--porcelain",
        "-z",
        "--no-renames",
        "--untracked-files=all",
        "--",
        "*.py",
    ]
    try:
        top, found = (
            subprocess.run(one, cwd=here, capture_output=True, text=True, timeout=10, check=True).stdout
            for one in (["git", "rev-parse", "--show-toplevel"], words)
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return set()
    return {Path(top.strip(), line[3:]) for line in found.split("\0") if line}


def git_commit() -> str | None:
    """Commit of the source tree, with ``-dirty`` where files differ from it; None outside a checkout and a bundle."""
    # What scripts/bundle.py packs may be unpacked within another checkout.
    with suppress(OSError):
        return (Path(__file__).parents[3] / "COMMIT").read_text().strip()
    # Installed within a project of somebody else's, it lies in a folder that their repository ignores.
    tracked = ["git", "ls-files", "--error-unmatch", Path(__file__).name]
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        for words in (tracked, command):
            result = subprocess.run(
                words, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
