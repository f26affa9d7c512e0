"""The values of a campaign's file, each checked where it is read: what is wrong is one sentence that names its key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from fedfeat.errors import ConfigError
from fedfeat.runs.directory import key_of, sets_place, sets_sweep

_NAME = re.compile(r"\w[\w.+ -]*")
_MERGE = "tag:yaml.org,2002:merge"
_KNOWN = (
    "clients.csv",
    "data.json",
    "executor.json",
    "metrics.csv",
    "own_code.json",
    "summary.json",
    "weights.json",
)
"""Files of runs whose names do not depend on the run."""
_WRITTEN = ("config.yaml", "data.json", "failure.txt", "metrics.csv", "overrides.yaml", "summary.json")
"""What of these a campaign keeps, not always as it is."""


def read_yaml(path: Path) -> Any:
    """Read a YAML file in which no key stands twice, of which YAML would keep the last.

    Raises:
        ConfigError: It cannot be read, or a key does.
    """
    try:
        text = path.read_text(encoding="utf-8")
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        for key, line in _repeated(root):
            raise ConfigError(f"{path} must name {key} once in one place, but line {line} names it again.")
        return None if root is None else loader.construct_document(root)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} must be a readable YAML file, but it is not: {_why(error)}.") from error


def _why(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"{error.problem} in line {error.problem_mark.line + 1}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _repeated(root: yaml.Node | None) -> Iterator[tuple[str, int]]:
    """Go through the keys that a mapping has before, with their lines."""
    left, known = [root], set[int]()
    while left:
        node = left.pop()
        if node is None or id(node) in known:  # one that aliases name is at several places
            continue
        known.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += node.value
        if isinstance(node, yaml.MappingNode):
            left += [value for _, value in node.value]
            names = set[str]()
            for key, _ in node.value:
                # Numbers are one where their values are: 0.1 and 0.10.
                is_number = key.tag.endswith((":int", ":float"))
                written = str(yaml.safe_load(key.value) if is_number else key.value)
                if written in names and key.tag != _MERGE:
                    yield str(key.value), key.start_mark.line + 1
                names.add(written)


def mapping(place: str, node: Any, known: Sequence[str] | None = None) -> dict[str, Any]:
    """Read keys with values.

    Args:
        place: Where it stands; empty for the whole file.
        node: What stands there.
        known: The keys that there are; None where they are names.
    """
    if not isinstance(node, Mapping):
        raise ConfigError.rule(place or "the file", "hold keys with values", node)
    found = {str(key): value for key, value in node.items()}
    for key, value in found.items():
        where = f"{place}.{key}" if place else key
        if known is None:
            name(where, key)
        elif key not in known:
            raise ConfigError.unknown(where, known)
        elif value is None:
            raise ConfigError.rule(where, "have a value or be left out", value)
    return found


def name(place: str, node: Any) -> str:
    """Read a name, which is that of a folder, too."""
    if not isinstance(node, str) or not _NAME.fullmatch(node):
        raise ConfigError.rule(place, "be named by letters, digits and any of '_.+ -'", node)
    return node


def words(place: str, node: Any) -> tuple[str, ...]:
    """Read overrides."""
    if not isinstance(node, list) or not all(isinstance(word, str) and "=" in word for word in node):
        raise ConfigError.rule(place, "be a list of overrides such as optimizer.lr=0.1", node)
    for word in node:
        if (key := key_of(word)) == "seed" or sets_place(word) or sets_sweep(word):
            raise ConfigError.rule(place, f"leave {key} to the campaign", word)
    return tuple(node)


def texts(place: str, node: Any) -> tuple[str, ...]:
    """Read words of any kind."""
    if not isinstance(node, list) or not all(isinstance(word, str) for word in node):
        raise ConfigError.rule(place, "be a list of words", node)
    return tuple(node)


def files(place: str, node: Any) -> tuple[str, ...]:
    """Read names of files below a folder; one that is all but the name of a file that runs have is a mistake."""
    for word in (found := texts(place, node)):
        parts = PurePosixPath(word).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise ConfigError.rule(place, "name files in the folder of a run", word)
        if word in _WRITTEN:
            raise ConfigError.rule(place, "leave out what is kept of every run", word)
        if word not in _KNOWN and difflib.get_close_matches(word, _KNOWN, cutoff=0.8):
            raise ConfigError.rule(place, "name files that runs have", word, _KNOWN)
    return found


def among(
    place: str, named: Sequence[Any], known: Sequence[str], of: str = "study", what: str = "arms"
) -> None:
    """Refuse what is no arm of the study, or of the file, or nothing else that is known there."""
    for one in named:
        if one not in known:
            raise ConfigError.rule(place, f"name {what} of the {of}", one, known)
