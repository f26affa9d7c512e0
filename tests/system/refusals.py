"""How tests of bad input put a command together and look at what it left."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest


def digest(folder: Path) -> dict[str, str]:
    """Digest of every file below a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def command(small: list[str], overrides: str, root: Path) -> list[str]:
    """Put overrides after those of ``small`` that they do not make meaningless by replacing their group."""
    given = overrides.replace("{root}", str(root)).split(" ")
    replaced = tuple(f"{word.split('=')[0]}." for word in given if word.split("=")[0] in ("data", "model"))
    return [word for word in small if not replaced or not word.startswith(replaced)] + given


def refused(outcome, sentence: str) -> None:
    assert outcome.code != 0
    assert outcome.stderr.count("\n") == 1, outcome.stderr
    assert re.search(rf"^fedfeat: {sentence}", outcome.stderr), outcome.stderr
    assert "Traceback" not in outcome.stderr


def named(rows: list[tuple]) -> list:
    """Parameters of a test out of rows that begin with the name of their case."""
    return [pytest.param(*values, id=name) for name, *values in rows]


def refused_at_start(
    cli: Callable,
    small: list[str],
    overrides: str,
    root: Path,
    sentence: str,
    prepare: Callable[[Path], None] | None = None,
) -> None:
    if prepare is not None:
        prepare(root)
    before = digest(root / "run")
    refused(cli(*command(small, overrides, root)), sentence)
    # A lock is no run: the same command with better values may use the directory.
    assert digest(root / "run") | {".lock": ""} == before | {".lock": ""}
