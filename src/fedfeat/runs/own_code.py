"""Which code of one's own a run was made by: no commit of ours tells, and it may have changed since."""

import hashlib
import importlib.util
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedfeat.config.origin import is_own
from fedfeat.config.trust import targets
from fedfeat.files import atomic_write_text

FILE = "own_code.json"

_log = logging.getLogger("fedfeat")


def digests(config: Mapping[str, Any]) -> dict[str, str]:
    """Give a digest of the Python files of each package or module that is neither ours nor installed.

    Args:
        config: The configuration, whose ``_target_``s name them.
    """
    roots = sorted({str(name).partition(".")[0] for _, name in targets(config)})
    found = {root: _files(root) for root in roots}
    return {root: _sha256(files) for root, files in found.items() if files}


def note_own_code(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Write the digests of a run that begins, where there are any and the files can be read."""
    found = dict[str, str]()
    if not (run_dir / "config.yaml").exists():
        with suppress(OSError):
            found = digests(config)
    if found:
        atomic_write_text(run_dir / FILE, json.dumps(found, indent=2) + "\n")


def warn_of_other_code(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Say what has changed since the run of a directory began."""
    try:
        stored = json.loads((run_dir / FILE).read_text())
        changed = [name for name, digest in digests(config).items() if stored.get(name, digest) != digest]
    except (OSError, ValueError, AttributeError):
        return
    if changed:
        _log.warning(
            "%s has changed since the run in %s began; another hydra.run.dir begins anew with the new code.",
            ", ".join(changed),
            run_dir,
        )


def _files(root: str) -> list[Path]:
    """List the Python files of a package or module of one's own."""
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in _of_package(folder)] or [Path(spec.origin or "")]
    return [file for file in files if is_own(str(file))]


def _of_package(folder: Path) -> list[Path]:
    """List the Python files of a package and of those within it, and look into no other folder, such as one of data."""
    inner = sorted(path.parent for path in folder.glob("*/__init__.py"))
    # Without those that an editor hides, such as a lock, which is a link to nowhere.
    return [*sorted(folder.glob("[!.]*.py")), *(file for one in inner for file in _of_package(one))]


def _sha256(files: list[Path]) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()
