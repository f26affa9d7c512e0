"""Schemas of lists of defaults: which options a file begins with, and which it chooses of other groups."""

from collections.abc import Sequence

from fedfeat.config.schemas.places import Groups
from fedfeat.config.schemas.values import Schema, ref

_BEFORE = "^((override|optional) +)?"


def options(groups: Groups) -> dict[str, Schema]:
    """Give the definitions of what may be chosen of each group: an option, none, or a list of them."""
    return {f"options:{name}": _chosen(name, known) for name, known in groups.options.items()}


def of_file(groups: Groups, group: str) -> Schema:
    """Give the schema of the list in a file of a group.

    Args:
        groups: All groups.
        group: The file's; an empty text for a file that sets keys anywhere.
    """
    relative = {
        name.removeprefix(f"{group}/"): name for name in groups.options if name.startswith(f"{group}/")
    }
    relative |= {} if group else {name: name for name in groups.options}
    absolute = {f"/{name}": name for name in groups.options}
    # Editors offer the usual form; the others pass.
    offered = {
        f"override {key}": ref(f"options:{name}") for key, name in (relative if group else absolute).items()
    }
    passing = {
        f"{_BEFORE}{key}(@.*)?$": ref(f"options:{name}") for key, name in (absolute | relative).items()
    }
    entry = {
        "type": "object",
        "properties": offered,
        "patternProperties": passing | {_BEFORE + ("" if group == "hydra" else "/?hydra/"): {}},
        "additionalProperties": False,
    }
    of_folder = [
        name for one in ([group] if group else sorted(groups.presets)) for name in groups.options.get(one, ())
    ]
    whole = [f"/{name}/{one}" for name, known in groups.options.items() for one in known]
    names = list(dict.fromkeys(["_self_", *of_folder, *(() if group else whole)]))
    one = _one_of(names, "an option of this folder, or of another one with its path")
    others = [{"type": "string", "pattern": "^/"}] if group else []
    text = {"if": {"anyOf": [ref("interpolation"), *others]}, "then": {}, "else": one}
    return {
        "type": "array",
        "description": "What this file begins with, and what it puts in the place of other options.",
        "items": {
            "anyOf": [one, {"type": ["string", "object"]}],  # by which texts are completed
            **{"if": {"type": "string"}, "then": text, "else": entry},
        },
    }


def _chosen(group: str, known: Sequence[str]) -> Schema:
    one = _one_of([*known, None], f"an option of {group}: {', '.join(known[:40])}")
    return {"anyOf": [one, ref("interpolation"), {"type": "array", "items": {"enum": [*known]}}]}


def _one_of(names: Sequence[str | None], words: str) -> Schema:
    """Ask for one of many names, which editors would else list in their refusal."""
    return {"enum": list(names), "errorMessage": f"Must be {words}."}
