"""What YAML files and docstrings say of single keys."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import yaml

_BESIDE = re.compile(r"^[^#\"']*?(#\s*)(.+)$")
_ALONE = re.compile(r"^(\s*)#\s*(.+)$")
_SECTIONS = re.compile(r"^(?:Args|Attributes|Parameters):[ \t]*\n((?:[ \t]+\S.*\n?|\s*\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^(\s+)\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s+(.*)$")


def beside_keys(text: str) -> dict[tuple[str, ...], str]:
    """Give the comments that stand beside the keys of a YAML text, by the way to the key; they may go on below."""
    lines = text.splitlines()
    return {
        way: found for way, line, column in _ends(yaml.compose(text)) if (found := _at(lines, line, column))
    }


def of_arguments(target: Any) -> dict[str, str]:
    """Give what a class, with its bases, or a function says in its docstrings of each argument or attribute."""
    found: dict[str, str] = {}
    for owner in inspect.getmro(target) if inspect.isclass(target) else (target,):
        for holder in (owner, vars(owner).get("__init__")) if inspect.isclass(owner) else (owner,):
            # Of a class alone, for `inspect.getdoc` would give that of a base.
            text = inspect.cleandoc(getattr(holder, "__doc__", None) or "") + "\n"
            for section in _SECTIONS.findall(text):
                found = dict(_entries(section)) | found
    return found


def first_words(text: str, longest: int = 240) -> str:
    """Cut a text after its last sentence that fits, or else after its last word that does."""
    if len(text) <= longest:
        return text
    cut = text[:longest]
    sentence = cut.rfind(". ")
    return cut[: sentence + 1] if sentence > 0 else f"{cut.rpartition(' ')[0]} ..."


def _ends(node: Any, way: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Go through the keys of a node and below, with the place behind which a comment on each begins.

    The sections of a list, as that of defaults, count as one.
    """
    for item in node.value if isinstance(node, yaml.SequenceNode) else ():
        yield from _ends(item, way)
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        same_line = value.start_mark.line == key.start_mark.line
        mark = value.end_mark if same_line and getattr(value, "style", "") not in (">", "|") else key.end_mark
        yield (*way, key.value), mark.line, mark.column
        yield from _ends(value, (*way, key.value))


def _at(lines: list[str], line: int, column: int) -> str:
    found = _BESIDE.match(lines[line][column:]) if line < len(lines) else None
    if found is None:
        return ""
    words, start = [found[2].strip()], column + found.start(1)
    for following in lines[line + 1 :]:
        more = _ALONE.match(following)
        if more is None or len(more[1]) != start:
            break
        words.append(more[2].strip())
    return " ".join(words)


def _entries(section: str) -> Iterator[tuple[str, str]]:
    """Go through the entries of a section of a docstring; what follows an empty line within one is left out."""
    lines = section.splitlines()
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    name, words, ended = "", [""], False
    for line in lines:
        entry = _ENTRY.match(line)
        if entry and len(entry[1]) == depth:
            if name:
                yield name, first_words(" ".join(words).strip())
            name, words, ended = entry[2], [entry[3].strip()], False
        elif not line.strip():
            ended = True
        elif not ended:
            words.append(line.strip())
    if name:
        yield name, first_words(" ".join(words).strip())
