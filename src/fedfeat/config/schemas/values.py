"""What single values may be, as JSON schema: the conditions of `annotations`, opened to what stands for a value.

Anywhere in a file may stand an interpolation, which nobody knows before it is resolved, and a section from which
Hydra makes an object.
"""

import math
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, NamedTuple

from fedfeat.config.annotations import classes_taken, condition, constructors, parameters, record
from fedfeat.config.schemas.comments import of_arguments

Schema = dict[str, Any]

INTERPOLATION = r"\$\{|^\?\?\?$"


def ref(name: str) -> Schema:
    """Refer to a definition; ``/`` has a form of its own in a pointer."""
    return {"$ref": f"#/definitions/{name.replace('/', '~1')}"}


def opened(schema: Mapping[str, Any]) -> Schema:
    """Let what stands for a value pass, in its place and in the places within it."""
    if not schema:
        return ref("anything")
    # What completes values looks into alternatives alone, and what refuses them speaks of the first.
    return {"anyOf": [_within(schema), ref("open")], "if": ref("object"), "then": ref("made")}


def _within(schema: Mapping[str, Any]) -> Schema:
    found = dict(schema)
    for key, value in schema.items():
        if key in ("items", "additionalProperties") and isinstance(value, Mapping):
            found[key] = opened(value)
        elif key == "items":
            found[key] = [opened(one) for one in value]
        elif key in ("anyOf", "allOf"):
            found[key] = [_within(one) for one in value]
    if schema.get("type") == "object" and "additionalProperties" not in schema:
        found["additionalProperties"] = ref("anything")
    elif schema.get("type") == "array" and "items" not in schema:
        found["items"] = ref("anything")
    return found


def general() -> dict[str, Schema]:
    """Give what every file refers to: interpolations, sections that make objects, and anything."""
    text: Schema = {"type": "string", "pattern": INTERPOLATION}
    anything = ref("anything")
    return {
        "interpolation": text,
        "object": {"type": "object", "required": ["_target_"]},
        "open": {"anyOf": [text, ref("object")]},
        "anything": {
            "if": ref("object"),
            "then": ref("made"),
            "else": {"items": anything, "additionalProperties": anything},
        },
    }


def value(declared: Any) -> Schema:
    """Give the schema of a value of a declared type; the empty one where nothing is known of it."""
    found = condition(declared)
    kind = record(declared)
    plain = opened(found.schema if found else {})
    if kind is None:
        return plain
    types, takes_more = parameters(kind) or ({}, True)
    fields: Schema = {"properties": {name: value(one) for name, one in types.items()}}
    fields |= {} if takes_more else {"additionalProperties": False}
    is_plain = {"type": "object", "not": {"required": ["_target_"]}}
    return {"if": is_plain, "then": fields, "else": plain}


class Part(NamedTuple):
    """What is made of a section.

    Attributes:
        arguments: The schema of each argument.
        takes_more: Whether it takes arguments of which nothing is known.
        hands_on: Whether it hands those on to classes that are arguments themselves.
    """

    arguments: dict[str, Schema]
    takes_more: bool
    hands_on: bool


def part(target: Callable[..., Any], comments: Mapping[str, str]) -> Part | None:
    """Read the arguments of a target from its constructors' types and docstrings; None where it has none to read.

    Args:
        target: The target.
        comments: What files say beside the keys of its sections, for arguments of which the docstrings say nothing.
    """
    taken = parameters(target)
    if taken is None:
        return None
    said, defaults = dict(comments) | of_arguments(target), _defaults(target)
    arguments = {}
    for name, declared in taken.types.items():
        found = condition(declared)
        words = [said.get(name) or "", f"Must {found.text}." if found else ""]
        described: Schema = {"description": " ".join(filter(None, words))} if any(words) else {}
        if name in defaults and _is_plain(defaults[name]):
            described["default"] = _listed(defaults[name])
        elif name not in defaults and name not in comments:
            described["doNotSuggest"] = True  # the program gives it
        arguments[name] = described | value(declared)
    return Part(arguments, taken.takes_more, any(map(classes_taken, taken.types.values())))


def _defaults(target: Callable[..., Any]) -> dict[str, Any]:
    """Give the arguments that have a default; of several constructors, the first says it."""
    found: dict[str, Any] = {}
    for function, _ in constructors(target):
        for name, one in signature(function).parameters.items():
            found.setdefault(name, one.default)
    return {name: default for name, default in found.items() if default is not Parameter.empty}


def _is_plain(default: Any) -> bool:
    if isinstance(default, list | tuple):
        return all(map(_is_plain, default))
    return type(default) in (bool, int, str) or (type(default) is float and math.isfinite(default))


def _listed(default: Any) -> Any:
    return list(map(_listed, default)) if isinstance(default, list | tuple) else default
