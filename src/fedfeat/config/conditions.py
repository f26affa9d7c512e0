"""Conditions on single values of a configuration, each with its words.

In ``Annotated`` they say what a constructor's argument must satisfy, for example ``mu: NotNegative = 0.001`` or
``share: Annotated[float, interval("(0, 1]")]``; `arguments.check_targets` holds a configuration to that.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple


class Condition(NamedTuple):
    """A condition on a value and the words that follow ``must``."""

    holds: Callable[[Any], bool]
    text: str


def interval(text: str) -> Condition:
    """Require a finite number in an interval, e.g. ``"(0, 1]"`` or ``"[0, inf)"``."""
    low, high = (float(end) for end in text[1:-1].split(","))

    def holds(value: Any) -> bool:
        if type(value) not in (int, float) or not math.isfinite(value):
            return False
        above = value > low if text[0] == "(" else value >= low
        return bool(above and (value < high if text[-1] == ")" else value <= high))

    return Condition(holds, f"be in {text}")


def integer(low: int) -> Condition:
    """Require an integer of at least ``low``."""
    return Condition(lambda value: type(value) is int and value >= low, f"be an integer of at least {low}")


def one_of(*options: str | int | None) -> Condition:
    """Require one of the options, of the same type."""
    words = ", ".join(dict.fromkeys(str(option) for option in options))
    return Condition(
        lambda value: any(type(value) is type(option) and value == option for option in options),
        f"be one of {words}",
    )


def list_of(item: Condition) -> Condition:
    """Require a list whose items satisfy a condition."""
    return Condition(
        lambda value: isinstance(value, list) and all(item.holds(part) for part in value),
        f"be a list in which each must {item.text}",
    )


BOOL = Condition(lambda value: type(value) is bool, "be true or false")
TEXT = Condition(lambda value: isinstance(value, str) and value != "", "be a non-empty text")

Number = Annotated[float, interval("(-inf, inf)")]
Positive = Annotated[float, interval("(0, inf)")]
NotNegative = Annotated[float, interval("[0, inf)")]
Share = Annotated[float, interval("[0, 1)")]
"""Of something, but never all of it."""
UnitInterval = Annotated[float, interval("[0, 1]")]
Count = Annotated[int, integer(1)]
Natural = Annotated[int, integer(0)]
Text = Annotated[str, TEXT]
