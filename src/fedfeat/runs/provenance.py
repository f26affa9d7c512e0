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
    status = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
    try:
        top = _git("rev-parse", "--show-toplevel").strip()
        found = _git("--no-optional-locks", *status, "--", "../*.py")
    except (OSError, ValueError, subprocess.SubprocessError):
        return set()
    return {Path(top, line[3:]) for line in found.split("\0") if line}


def git_commit() -> str | None:
    """Commit of the source tree, with ``-dirty`` where files differ from it; None outside a checkout and a bundle."""
    # What scripts/bundle.py packs may be unpacked within another checkout.
    with suppress(OSError):
        return (Path(__file__).parents[3] / "COMMIT").read_text().strip()
    try:
        # Installed within a project of somebody else's, it lies in a folder that their repository ignores.
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        return _git("describe", "--always", "--abbrev=40", "--dirty", "--exclude=*").strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    """Give what git prints in the folder of this file; it fails where git does, or where there is none."""
    command = ["git", *words]
    return subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
    ).stdout
