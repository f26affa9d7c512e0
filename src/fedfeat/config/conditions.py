"""Conditions on single values of a configuration, each with its words.

In ``Annotated`` they say what a constructor's argument must satisfy, for example ``mu: NotNegative = 0.001`` or
``share: Annotated[float, interval("(0, 1]")]``; `arguments.check_targets` holds a configuration to that.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple


class Condition(NamedTuple):
    """A condition on a value, the words that follow ``must``, and the same as JSON schema, for editors.

    A schema may let pass what the condition refuses, never the other way round; an empty one lets everything pass.
    """

    holds: Callable[[Any], bool]
    text: str
    schema: Mapping[str, Any] = MappingProxyType({})

    def __hash__(self) -> int:  # unions of types are compared by it
        return hash((self.holds, self.text))


def interval(text: str) -> Condition:
    """Require a finite number in an interval, e.g. ``"(0, 1]"`` or ``"[0, inf)"``."""
    low, high = (float(end) for end in text[1:-1].split(","))
    ends = {
        "minimum" if text[0] == "[" else "exclusiveMinimum": low,
        "maximum" if text[-1] == "]" else "exclusiveMaximum": high,
    }

    def holds(value: Any) -> bool:
        if type(value) not in (int, float) or not math.isfinite(value):
            return False
        above = value > low if text[0] == "(" else value >= low
        return bool(above and (value < high if text[-1] == ")" else value <= high))

    finite = {name: int(end) if end == int(end) else end for name, end in ends.items() if math.isfinite(end)}
    return Condition(holds, f"be in {text}", {"type": "number"} | finite)


def integer(low: int) -> Condition:
    """Require an integer of at least ``low``."""
    return Condition(
        lambda value: type(value) is int and value >= low,
        f"be an integer of at least {low}",
        {"type": "integer", "minimum": low},
    )


def one_of(*options: str | int | None) -> Condition:
    """Require one of the options, of the same type."""
    words = ", ".join(dict.fromkeys(str(option) for option in options))
    return Condition(
        lambda value: any(type(value) is type(option) and value == option for option in options),
        f"be one of {words}",
        {"enum": list(options)},
    )


def list_of(item: Condition) -> Condition:
    """Require a list whose items satisfy a condition."""
    return Condition(
        lambda value: isinstance(value, list) and all(item.holds(part) for part in value),
        f"be a list in which each must {item.text}",
        {"type": "array", "items": item.schema},
    )


def any_of(*conditions: Condition, text: str) -> Condition:
    """Require one of several conditions, in words of their own."""
    return Condition(
        lambda value: any(one.holds(value) for one in conditions),
        text,
        {"anyOf": [one.schema for one in conditions]},
    )


INTEGER = Condition(lambda value: type(value) is int, "be an integer", {"type": "integer"})
BOOL = Condition(lambda value: type(value) is bool, "be true or false", {"type": "boolean"})
TEXT = Condition(
    lambda value: isinstance(value, str) and value != "",
    "be a non-empty text",
    {"type": "string", "minLength": 1},
)
FOLDER = Condition(
    lambda value: TEXT.holds(value) and not value.startswith("~"),
    "be a folder, without ~, which only a shell replaces",
    {"type": "string", "minLength": 1, "pattern": "^[^~]"},
)

Number = Annotated[float, interval("(-inf, inf)")]
Positive = Annotated[float, interval("(0, inf)")]
NotNegative = Annotated[float, interval("[0, inf)")]
Share = Annotated[float, interval("[0, 1)")]
"""Of something, but never all of it."""
UnitInterval = Annotated[float, interval("[0, 1]")]
Count = Annotated[int, integer(1)]
Natural = Annotated[int, integer(0)]
Text = Annotated[str, TEXT]
