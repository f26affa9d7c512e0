"""Whether every ``_target_`` of a configuration exists and takes what stands beside it: names and values.

What a value must be is said by the constructor alone, in the types of its parameters, so a rule holds for the part
that has it and for no other part with a key of that name.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedfeat.config.annotations import Parameters, classes_taken, condition, makes_object, parameters, record
from fedfeat.config.explain import as_user_error, told
from fedfeat.config.hints import preset_of, unknown_key
from fedfeat.config.imports import imported
from fedfeat.config.origin import root_cause
from fedfeat.config.rule_table import BESIDE
from fedfeat.errors import ConfigError, did_you_mean


def check_targets(config: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse arguments that a ``_target_`` does not take, by their names or by their values.

    Hydra would notice only when the object is made: for a ``_partial_`` that is deep inside the program, where
    nobody knows the key any more. Values it never compares with types.

    Args:
        config: The resolved configuration as nested dictionaries and lists.
        prefix: Dotted key of ``config`` with a trailing dot.

    Raises:
        ConfigError: Names the key.
    """
    if makes_object(config):
        target = _imported(config["_target_"], f"{prefix}_target_")
        taken = parameters(target)
        if taken is not None:
            _check_arguments(_with_classes(taken, config, prefix), config, prefix)
    for key, value in config.items():
        for place, node in _sections(value):
            check_targets(node, f"{prefix}{key}{place}.")


def _check_arguments(taken: Parameters, given: Mapping[str, Any], prefix: str) -> None:
    for key, value in given.items():
        # Names with underscores at both ends are Hydra's own.
        if (key.startswith("_") and key.endswith("_")) or f"{prefix}{key}" in BESIDE:
            continue
        if key not in taken.types:
            if taken.takes_more:
                continue
            beside = (name.removeprefix(prefix) for name in BESIDE if name.startswith(prefix or " "))
            name = f"{prefix}{key}"
            raise unknown_key(name, [*taken.types, *beside], whose=preset_of(name))
        declared = taken.types[key]
        wanted = condition(declared)
        if wanted is not None and not wanted.holds(value):
            raise ConfigError.rule(f"{prefix}{key}", wanted.text, value)
        kind = record(declared)
        if kind is not None and isinstance(value, Mapping) and not makes_object(value):
            _check_arguments(parameters(kind) or Parameters({}, True), value, f"{prefix}{key}.")


def _with_classes(taken: Parameters, node: Mapping[str, Any], prefix: str) -> Parameters:
    """Add the parameters of classes that are themselves arguments, if it is to them that others are handed on."""
    if not taken.takes_more:
        return taken
    lists = [key for key, declared in taken.types.items() if classes_taken(declared)]
    classes = [
        _imported(item.get("path"), f"{prefix}{key}.{i}.path")
        for key in lists
        for i, item in enumerate(node[key] if isinstance(node.get(key), list) else ())
        if makes_object(item)
    ]
    if not classes:
        return taken
    found = [one for one in map(parameters, classes) if one is not None]
    types: dict[str, Any] = {}
    for one in (taken, *found):
        types = types | {name: declared for name, declared in one.types.items() if name not in types}
    return Parameters(types, takes_more=len(found) < len(classes) or any(one.takes_more for one in found))


def _imported(path: Any, key: str) -> Callable[..., Any]:
    try:
        found: Callable[..., Any] = imported(path)
    except Exception as error:
        # A module of ours may say itself what it lacks.
        raise as_user_error(error) or _unimported(key, path, root_cause(error)) from error
    return found


def _unimported(key: str, path: Any, cause: BaseException) -> ConfigError:
    rule = "name something that can be imported"
    if isinstance(cause, ModuleNotFoundError) and str(path).startswith(str(cause.name)):
        place, _, name = str(path).rpartition(".")
        its = vars(sys.modules[place]).items() if place in sys.modules else ()
        own = [known for known, value in its if getattr(value, "__module__", "") == place]
        return ConfigError(f"{key} must {rule}, but it is {path!r}{did_you_mean(name, own)}")
    return ConfigError(f"{key} must {rule}, but {path} says: {told(cause)}.")


def _sections(value: Any, place: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Find the sections that a value is or has, with their places in it."""
    if isinstance(value, Mapping):
        yield place, value
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _sections(item, f"{place}.{i}")
