"""Which code of one's own a run was made by: no commit of ours tells, and it may have changed since."""

import hashlib
import importlib.util
import json
import logging
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedfeat.config.origin import is_own
from fedfeat.config.trust import targets
from fedfeat.files import atomic_write_json
from fedfeat.runs.provenance import uncommitted

FILE = "own_code.json"
_PACKAGE = Path(__file__).resolve().parents[1]

_log = logging.getLogger("fedfeat")


def digests(config: Mapping[str, Any], noted: Container[str] = ()) -> dict[str, str]:
    """Give a digest of the Python files of each package or module of one's own.

    They are neither ours nor installed, or modules of ours that no commit has as they are: a method may be written
    beside those of fedfeat.

    Args:
        config: The configuration, whose ``_target_``s name them.
        noted: Modules of ours that count whether a commit has them or not.
    """
    names = {str(name) for _, name in targets(config)}
    found = {root: _files(root) for root in {name.partition(".")[0] for name in names}}
    ours = {name.rpartition(".")[0] for name in names if name.startswith("fedfeat.")}
    changed = uncommitted()
    for module in ours:
        file = _PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
        if file.is_file() and (module in noted or file in changed):
            found[module] = [file]
    return {name: _sha256(files) for name, files in sorted(found.items()) if files}


def note_own_code(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Write the digests of the code that a run begins or goes on with, where there are any and the files can be read.

    Of each name the newest is the last, each is named once, and what has made no round is not kept.
    """
    made = _made_rounds(run_dir)
    stored = _stored(run_dir) if made else {}
    if made and not stored:
        return
    with suppress(OSError):
        kept = {
            name: [*(one for one in stored.get(name, ()) if one != now), now]
            for name, now in digests(config, stored).items()
        }
        if kept and kept != stored:
            atomic_write_json(run_dir / FILE, kept)


def warn_of_other_code(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Say what has changed since the last rounds of a directory's run."""
    stored = _stored(run_dir) if _made_rounds(run_dir) else {}
    if not stored:
        return
    try:
        changed = [
            name for name, now in digests(config, stored).items() if stored.get(name, [now])[-1] != now
        ]
    except OSError:
        return
    if changed:
        _log.warning(
            "%s has changed since the run in %s began; rounds from here on are of the new code, all of them in another "
            "hydra.run.dir.",
            ", ".join(changed),
            run_dir,
        )


def _made_rounds(run_dir: Path) -> bool:
    """Whether a run has a round to go on from."""
    return any((run_dir / "checkpoints").glob("*.json"))


def _stored(run_dir: Path) -> dict[str, list[str]]:
    """Read the digests; none where the file is missing or damaged. Earlier versions wrote a single one of each name."""
    try:
        found = json.loads((run_dir / FILE).read_text())
        return {name: [text] if isinstance(text, str) else [*text] for name, text in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


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
