"""The options of the configuration's groups, and whether the command line gives names where it chooses one."""

import importlib.util
from collections.abc import Iterator, Sequence
from importlib.resources.abc import Traversable
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, Override

from fedfeat.config.conditions import FOLDER
from fedfeat.config.search_path import (
    CONFIGS,
    check_searchpath,
    folders,
    has_option,
    options,
    options_in,
    overrides,
    presets_in,
)
from fedfeat.errors import ConfigError

__all__ = ["CONFIGS", "check_choices", "options"]

_MORE = {"model": " (one of torchvision's: model=torchvision model.arch=<name>)"}


def check_choices(arguments: Sequence[str]) -> None:
    """Refuse what is not the name of an option, of those groups whose options are known here.

    Hydra refuses them as well, but not before the first run of a sweep, and for some it says neither group nor value.

    Raises:
        ConfigError: Names the group, its options and the value.
    """
    if any(word.partition("=")[0] in ("--config-name", "-cn") for word in arguments):
        return  # A primary configuration of the user's own may name more folders.
    check_searchpath(arguments)
    places = folders(arguments)
    for override in overrides(arguments):
        group = override.key_or_group
        if not group:
            raise ConfigError.rule("an override", "begin with its key", override.input_line)
        is_slurm = group == "hydra/launcher" and str(override.value()).startswith("submitit_")
        if is_slurm and importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher") is None:
            rule = "be basic where the extra slurm is not installed (uv sync --extra slurm)"
            raise ConfigError.rule(group, rule, override.value())
        if group == "hydra.run.dir" and override.value() in ("", None):
            # Hydra takes the directory of the start, in which a run would leave its files.
            raise ConfigError.rule(group, "name a directory", override.value())
        if group in ("hydra.run.dir", "hydra.sweep.dir") and str(override.value()).startswith("~"):
            raise ConfigError.rule(group, FOLDER.text, override.value())
        _check_slash(override, places)
        # Hydra has options of its own in the groups below `hydra`.
        if override.is_delete() or group.startswith("hydra/") or not options_in(places, group):
            continue
        for choice in _choices(override.value()):
            if not isinstance(choice, str | int | float | None):
                continue  # Of Hydra's own syntax, as glob(*).
            if not isinstance(choice, str) or not (
                choice == "" or "$" in choice or has_option(places, group, choice)
            ):
                raise _unknown(places, group, choice)


def _check_slash(override: Override, places: Sequence[Traversable]) -> None:
    """Refuse a name for a key whose dots stand for the slashes of a group, as for that group's option."""
    key, value = override.key_or_group, override.value()
    group = key.replace(".", "/")
    if "." in key and isinstance(value, str | int) and "$" not in str(value) and options_in(places, group):
        raise ConfigError(
            f"{key} must be chosen as a group, {group}={value}, but it is given as a key with dots."
        )


def _unknown(places: Sequence[Traversable], group: str, choice: str | float | None) -> ConfigError:
    """Refuse a choice with the options of its folder, of the group and of its folders."""
    known, presets = options_in(places, group), presets_in(places, group)
    folder = str(choice).rpartition("/")[0]
    shown = [name for name in presets if folder and name.startswith(f"{folder}/")] or [
        *known,
        *dict.fromkeys(f"{name.partition('/')[0]}/..." for name in presets),
    ]
    more = _MORE.get(group, "")
    return ConfigError.rule(group, f"be one of {', '.join(shown)}{more}", choice, [*known, *presets])


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


def _choices(value: Any) -> Iterator[Any]:
    """Go through the values of a choice, a list of them, or a sweep over either."""
    if isinstance(value, ChoiceSweep | list):
        for item in value.list if isinstance(value, ChoiceSweep) else value:
            yield from _choices(item)
    else:
        yield value
