"""Whether every ``_target_`` of a configuration exists and takes the arguments that stand beside it."""

import inspect
from collections.abc import Mapping
from typing import Any

from hydra.utils import get_object

from fedfeat.errors import ConfigError


def check_targets(config: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse an argument that its ``_target_`` does not take.

    Hydra would notice only when the object is made: for a ``_partial_`` that is deep inside the program, where
    nobody knows the key any more.

    Args:
        config: The resolved configuration as nested dictionaries and lists.
        prefix: Dotted key of ``config`` with a trailing dot.

    Raises:
        ConfigError: Names the key.
    """
    if "_target_" in config:
        _check_arguments(config, prefix)
    for key, value in config.items():
        if isinstance(value, Mapping):
            check_targets(value, f"{prefix}{key}.")


def _check_arguments(node: Mapping[str, Any], prefix: str) -> None:
    try:
        target = get_object(node["_target_"])
    except Exception as error:
        key, rule = f"{prefix}_target_", "name something that can be imported"
        raise ConfigError.rule(key, rule, node["_target_"]) from error
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # written in C: no signature to compare with
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    # Names with underscores at both ends are Hydra's own.
    given = [key for key in node if not (key.startswith("_") and key.endswith("_"))]
    for key in given:
        if key not in parameters:
            raise ConfigError.unknown(f"{prefix}{key}", parameters)
