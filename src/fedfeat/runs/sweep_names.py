"""Names of runs in their sweep's directory: what was swept first and whole, then what was set besides."""

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from fedfeat.runs.directory import fixes_numbers

_LONGEST = 255  # bytes of a name, on Linux (NAME_MAX)
_READABLE = 180  # bytes of a cut name, so that a listing can be read
_CUT = re.compile(r"\.\.\.([0-9a-f]{16})$")
_BETWEEN = re.compile(r",(?=[^][{}(),=]+=)")  # no comma within a list
# A preset names the sweep's own directory, by `group`.
_OF_THE_DIRECTORY = ("experiment", "sweep")


def directory_name(folder: str, overrides: Sequence[str], swept: Collection[str]) -> str:
    """Give the name of a run's directory: that of the run of the same overrides, if there is one, else `run_name`.

    A key that had one value in an earlier sweep may have several now, so the same run may have another order.

    Args:
        folder: Directory of the sweep.
        overrides: ``key=value`` of the run.
        swept: Keys that have several values in the sweep.
    """
    name = run_name(overrides, swept)
    there = [path.name for path in Path(folder).iterdir()] if Path(folder).is_dir() else []
    twins = [other for other in there if _identity(other) == _identity(name)]
    return name if name in twins or not twins else min(twins)


def run_name(overrides: Iterable[str], swept: Collection[str]) -> str:
    """Name a run by its overrides: swept ones first, the seed last of them, then others that fix its numbers.

    A name that is too long for a file system is cut behind what was swept, and ends in a digest of the whole.
    """
    first, rest = [], []
    for override in overrides:
        key, equals, value = override.lstrip("+").partition("=")
        # A slash would begin a folder of its own; in keys it names a group, as the dot does.
        part = key.replace("/", ".") + equals + value.replace("%", "%25").replace("/", "%2F")
        if key in swept:
            first.append(part)
        elif fixes_numbers(key.lstrip("~")) and key not in _OF_THE_DIRECTORY:
            rest.append(part)
    first.sort(key=lambda part: (part.startswith("seed="), part))
    whole = ",".join([*first, *sorted(rest)])
    if len(whole.encode()) <= _LONGEST:
        return whole or "defaults"
    digest = hashlib.sha256(",".join(sorted([*first, *rest])).encode()).hexdigest()[:16]
    room = _LONGEST - len(f"...{digest}")
    kept = min(max(_READABLE, len(",".join(first).encode())), room)
    return f"{whole.encode()[:kept].decode(errors='ignore')}...{digest}"


def _identity(name: str) -> Sequence[str]:
    """What the names of one run have in common, whatever was swept."""
    return found.groups() if (found := _CUT.search(name)) else sorted(_BETWEEN.split(name))
