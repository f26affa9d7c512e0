"""The options of the configuration's groups, and whether the command line gives names where it chooses one."""

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException

from fedfeat.errors import ConfigError

_CHECKOUT = Path(__file__).parents[3] / "configs"
CONFIGS = _CHECKOUT if _CHECKOUT.is_dir() else Path(__file__).parents[1] / "configs"


def options(group: str) -> list[str]:
    """List the options of a group such as ``model`` or ``algorithm/client``; none where there is no such group."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def check_choices(arguments: Sequence[str]) -> None:
    """Refuse what cannot be the name of an option: numbers, true, false and null, also in a list.

    Hydra refuses them too, but says neither for which group nor which value. Names are left to it, for it may have
    been given more folders than `CONFIGS`.

    Args:
        arguments: The words of the command line.

    Raises:
        ConfigError: Names the group, its options and the value.
    """
    for override in _overrides(arguments):
        group = override.key_or_group
        if (
            group == "hydra/launcher"
            and str(override.value()).startswith("submitit_")
            and not _has_submitit()
        ):
            rule = "be basic where the extra slurm is not installed (uv sync --extra slurm)"
            raise ConfigError.rule(group, rule, override.value())
        if not override.is_delete() and options(group):
            for choice in _choices(override.value()):
                if choice is None or isinstance(choice, int | float):
                    raise ConfigError.rule(group, f"be one of {', '.join(options(group))}", choice)


def check_arm(arguments: Sequence[str]) -> None:
    """Refuse an arm beside an algorithm: an arm brings its own, and another one would run under the arm's name.

    Args:
        arguments: Overrides of a run, those of a sweep included.

    Raises:
        ConfigError: Names both.
    """
    chosen = {override.key_or_group: override.value() for override in _overrides(arguments)}
    arm, algorithm = chosen.get("arm", "none"), chosen.get("algorithm")
    if arm != "none" and algorithm is not None:
        raise ConfigError.rule("arm", f"be none beside algorithm={algorithm}", arm)


def with_trace(arguments: Sequence[str]) -> list[str]:
    """Give the words of a command line with ``trace`` for ``debug`` where the latter is true or false, no option."""
    said = {f"debug={value}": f"trace={value}" for value in ("true", "false")}
    return [said.get(word.replace(" ", "").lower(), word) for word in arguments]


def shows_trace(arguments: Sequence[str]) -> bool:
    """Whether the words of a command line, as `with_trace` gives them, ask for the stack trace of an error."""
    chosen = {override.key_or_group: override.value() for override in _overrides(arguments)}
    return chosen.get("trace") is True or chosen.get("debug") in options("debug")


def _has_submitit() -> bool:
    return importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher") is not None


def _overrides(arguments: Sequence[str]) -> Iterator[Override]:
    parser = OverridesParser.create()
    for word in arguments:
        if "=" in word and not word.startswith("-"):
            try:
                yield parser.parse_override(word)
            except HydraException:
                continue  # Hydra will say what is wrong with it.


def _choices(value: Any) -> Iterator[Any]:
    """Go through the single values of a choice, a list of them, or a sweep over either."""
    if isinstance(value, ChoiceSweep):
        value = value.list
    if isinstance(value, list):
        for item in value:
            yield from _choices(item)
    else:
        yield value
