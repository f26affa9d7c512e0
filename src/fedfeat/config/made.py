"""What the targets of a configuration have made, held to its kind: they may be functions of anyone's own."""

from typing import TypeVar

import hydra
from omegaconf import DictConfig

from fedfeat.errors import ConfigError

Part = TypeVar("Part")


def made(section: DictConfig, kind: type[Part], key: str) -> Part:
    """Make the part of a section.

    Args:
        section: What names its target.
        kind: What it has to be.
        key: Of the section.

    Raises:
        ConfigError: It is something else.
    """
    return held_to(kind, hydra.utils.instantiate(section, _convert_="all"), key)


def held_to(kind: type[Part], found: object, key: str) -> Part:
    """Give what the target of a section has made, or refuse it.

    Raises:
        ConfigError: It is of another kind.
    """
    if isinstance(found, kind):
        return found
    wanted = f"{kind.__module__}.{kind.__qualname__}"
    raise ConfigError(f"{key} must make a {wanted}, but it makes a {type(found).__qualname__}.")
