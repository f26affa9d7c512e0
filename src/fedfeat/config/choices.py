"""The options of the configuration's groups, and whether the command line gives names where it chooses one."""

import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep

from fedfeat.config.search_path import CONFIGS, folders, options, options_in, overrides
from fedfeat.errors import ConfigError

__all__ = ["CONFIGS", "check_choices", "options"]


def check_choices(arguments: Sequence[str]) -> None:
    """Refuse what cannot be the name of an option: numbers, true, false and null, and in a list unknown names too.

    Hydra refuses them as well, but says neither for which group nor which value. Other names are left to it.

    Raises:
        ConfigError: Names the group, its options and the value.
    """
    places = folders(arguments)
    for override in overrides(arguments):
        group = override.key_or_group
        is_slurm = group == "hydra/launcher" and str(override.value()).startswith("submitit_")
        if is_slurm and importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher") is None:
            rule = "be basic where the extra slurm is not installed (uv sync --extra slurm)"
            raise ConfigError.rule(group, rule, override.value())
        if override.is_delete() or not (known := options_in(places, group)):
            continue
        for choice, in_list in _choices(override.value()):
            unknown = in_list and isinstance(choice, str) and "/" not in choice and choice not in known
            if choice is None or isinstance(choice, int | float) or (unknown and "$" not in choice):
                raise ConfigError.rule(group, f"be one of {', '.join(known)}", choice)


def check_arm(arguments: Sequence[str]) -> None:
    """Refuse an arm beside an algorithm: an arm brings its own, and another one would run under the arm's name.

    The overrides of a sweep are among the arguments.

    Raises:
        ConfigError: Names both.
    """
    chosen = {override.key_or_group: override.value() for override in overrides(arguments)}
    arm, algorithm = chosen.get("arm", "none"), chosen.get("algorithm")
    if arm != "none" and algorithm is not None:
        raise ConfigError.rule("arm", f"be none beside algorithm={algorithm}", arm)


def with_trace(arguments: Sequence[str]) -> list[str]:
    """Give the words of a command line with ``trace`` for ``debug`` where the latter is true or false, no option."""
    said = {f"debug={value}": f"trace={value}" for value in ("true", "false")}
    return [said.get(word.replace(" ", "").lower(), word) for word in arguments]


def shows_trace(arguments: Sequence[str]) -> bool:
    """Whether the words of a command line, as `with_trace` gives them, ask for the stack trace of an error."""
    chosen = {override.key_or_group: override.value() for override in overrides(arguments)}
    return chosen.get("trace") is True or chosen.get("debug") in options("debug", arguments)


def _choices(value: Any, in_list: bool = False) -> Iterator[tuple[Any, bool]]:
    """Go through the values of a choice, a list of them, or a sweep over either; with each, whether a list holds it."""
    if isinstance(value, ChoiceSweep):
        for item in value.list:
            yield from _choices(item)
    elif isinstance(value, list):
        for item in value:
            yield from _choices(item, in_list=True)
    else:
        yield value, in_list
