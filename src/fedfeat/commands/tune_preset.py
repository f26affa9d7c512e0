"""The words of a command line as a preset: one file of YAML that composes to the same run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources.abc import Traversable
from typing import Any

import yaml
from hydra.core.override_parser.types import Override

from fedfeat.config.search_path import folders, has_option, overrides

# Options of these are presets themselves: they are taken by their files, in the order in which a run takes them.
_PRESETS = ("experiment", "arm", "scale", "sweep", "debug")


def preset_of(words: Sequence[str], comment: str) -> str:
    """Write a preset that composes to what the words do; where runs lie and which launcher starts them is left out.

    What the words delete (``~key``) no preset can: `deletions` go beside it.

    Args:
        words: Overrides, each with one value.
        comment: What the preset is.
    """
    places = folders(words)
    given = [one for one in overrides(words) if not (one.key_or_group.startswith("hydra") or one.is_delete())]
    presets = [one for name in _PRESETS for one in given if one.key_or_group == name]
    groups = [one for one in given if one not in presets and _is_group(places, one)]
    values = [one for one in given if one not in presets and one not in groups]
    defaults: list[Any] = [f"/{one.key_or_group}/{name}" for one in presets for name in _names(one)]
    defaults += [_default(one) for one in groups]
    body: dict[str, Any] = {}
    for one in values:
        _put(body, one.key_or_group.split("."), one.value())
    content = ({"defaults": defaults} if defaults else {}) | body
    return f"# @package _global_\n# {comment}\n{yaml.safe_dump(content, sort_keys=False)}"


def deletions(words: Sequence[str]) -> list[str]:
    """Give the words that delete something."""
    return [word for word in words if word.startswith("~")]


def _is_group(places: Sequence[Traversable], one: Override) -> bool:
    names = [name for name in _names(one) if isinstance(name, str)]
    return bool(names) and all(has_option(places, one.key_or_group, name) for name in names)


def _names(one: Override) -> list[Any]:
    value = one.value()
    return value if isinstance(value, list) else [value]


def _default(one: Override) -> dict[str, Any]:
    package = f"@{one.package}" if one.package else ""
    begin = "/" if one.is_add() else "override /"
    return {f"{begin}{one.key_or_group}{package}": one.value()}


def _put(body: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        body = body.setdefault(key, {})
    body[keys[-1]] = value
