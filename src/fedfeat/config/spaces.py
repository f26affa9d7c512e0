"""What may be tried of a key: an interval or some choices, written as Hydra's sweeps are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException

from fedfeat.config.search_path import folders, has_option, overrides
from fedfeat.errors import ConfigError

SPACES = "tune"
"""Folder of the spaces, a file for each method; `base` is of those that have none."""
BASE = "base"


class Interval(NamedTuple):
    """Numbers from one to another.

    Attributes:
        low: The lowest.
        high: The highest.
        log: Whether ratios count instead of differences.
        whole: Whether it has whole numbers alone.
    """

    low: float
    high: float
    log: bool
    whole: bool

    def word(self, key: str, value: float) -> str:
        """Give the override by which a run takes a value of it; four digits are as good as seventeen.

        Unless rounding them leaves the interval, whose end a configuration may refuse: 0.99999 is not 1.
        """
        if self.whole:
            return f"{key}={value:.0f}"
        rounded = f"{value:.4g}"
        return f"{key}={rounded if self.low <= float(rounded) <= self.high else repr(value)}"

    def ends(self) -> tuple[float, float]:
        """Give the lowest and the highest."""
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', log' if self.log else ''}{', whole' if self.whole else ''}"


class Choices(NamedTuple):
    """Some values, as they are written in an override.

    Attributes:
        texts: The values.
    """

    texts: tuple[str, ...]

    def word(self, key: str, value: str) -> str:
        """Give the override by which a run takes a value of it."""
        return f"{key}={value}"

    def ends(self) -> tuple[str, str]:
        """Give the first and the last."""
        return self.texts[0], self.texts[-1]

    def __str__(self) -> str:
        return " | ".join(self.texts)


Dimension = Interval | Choices
Space = Mapping[str, Dimension]


def dimension(key: str, text: str) -> Dimension:
    """Read what may be tried of a key.

    Raises:
        ConfigError: It is no interval, and no choice of several.
    """
    try:
        found = OverridesParser.create().parse_override(f"{key}={text}")
        if found.is_sweep_override():
            return _of(found, text)
    except HydraException as error:
        raise _refusal(key, text) from error
    raise _refusal(key, text)


def _of(found: Override, text: str) -> Dimension:
    value = found.value()
    if getattr(value, "shuffle", False):  # drawn anew whenever it is read, so no search could go on
        raise _refusal(found.key_or_group, text)
    if not isinstance(value, IntervalSweep):
        return Choices(tuple(found.sweep_string_iterator()))
    low, high = value.start, value.end
    if low is None or high is None or not low < high or ("log" in value.tags and low <= 0):
        raise _refusal(found.key_or_group, text)
    return Interval(low, high, "log" in value.tags, isinstance(low, int) and isinstance(high, int))


def _refusal(key: str, text: str) -> ConfigError:
    rule = "be tried as choice(A, B), interval(LOW, HIGH), tag(log, interval(LOW, HIGH)) or int(interval(LOW, HIGH))"
    return ConfigError.rule(key, rule, text)


def split_words(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Tell the words of a command line that fix a value from those that give several, by key with its ``+``."""
    swept = {one.get_key_element(): str(one.input_line).partition("=")[2] for one in _swept(words)}
    lines = {one.input_line for one in _swept(words)}
    return [word for word in words if word not in lines], swept


def _swept(words: Sequence[str]) -> Iterator[Override]:
    return (one for one in overrides(words) if one.is_sweep_override())


def space_name(candidates: Sequence[str | None], words: Sequence[str] = ()) -> str:
    """Choose the file of a method's space: that of the first name which has one, else `BASE`.

    Args:
        candidates: Names of the method.
        words: The words of the command line, which may name more folders.
    """
    places = folders(words)
    return next((name for name in candidates if name and has_option(places, SPACES, name)), BASE)
