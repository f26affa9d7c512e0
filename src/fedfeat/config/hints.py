"""Where a key is known that its section does not have: in other options of the group, or as a further argument."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Any, cast

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from fedfeat.config.search_path import folders, options_in, overrides
from fedfeat.errors import ConfigError

_SHOWN = 6
"""So many options are named."""


def unknown_key(
    key: str,
    known: Iterable[str],
    target: str | None = None,
    section: DictConfig | None = None,
    whose: str = "",
) -> ConfigError:
    """Build the refusal of a key that is not known where it stands.

    Args:
        key: The key, dotted.
        known: The names that are known there.
        target: What is made of the section that it stands in, and may take arguments that it does not list.
        section: The section itself, in which the key may stand further below.
        whose: What is said beside the options that have the key, as `preset_of` gives it.
    """
    if found := _owners(key, folders(())):
        group, owners = found
        options = _listed(f"{group}={one}" for one in owners)
        shown = options if len(owners) <= _SHOWN else f"{len(owners)} options of {group}"
        return ConfigError.unknown(key, known, f"it is a key of {shown}{whose}")
    above, dot, name = key.rpartition(".")
    if section is not None and (places := list(_places(OmegaConf.to_container(section), name, above + dot))):
        return ConfigError.unknown(key, known, f"there is {_listed(places)}")
    refusal = ConfigError.unknown(key, known)
    # Sections of our own parts list all that they take.
    if target is None or target.startswith("fedfeat.") or str(refusal).endswith("?"):
        return refusal
    return ConfigError.unknown(key, known, f"further arguments of {target} are given as +{key}=<value>")


def preset_of(key: str) -> str:
    """Give the end of a sentence about a key of the run's composed configuration that is not on its command line.

    It says which preset sets the key, and the cure. While a configuration is being composed, nothing is known of it:
    `HydraConfig` is unset, or that of an earlier one.
    """
    if not HydraConfig.initialized():
        return ""
    job = HydraConfig.get()
    preset = job.runtime.choices.get("experiment")
    # As they were given: an interpolation in them may lead nowhere.
    typed = cast("list[str]", OmegaConf.to_container(job.overrides.task, resolve=False))
    if preset is None or any(one.get_key_element().lstrip("+~") == key for one in overrides(typed)):
        return ""
    return f", and experiment={preset} sets it; ~{key} takes it away"


def _owners(key: str, places: Sequence[Traversable]) -> tuple[str, list[str]] | None:
    """Give the group that a dotted key belongs to, and those of its options that have the key."""
    parts = key.split(".")
    for end in range(len(parts) - 1, 0, -1):
        group = "/".join(parts[:end])
        if options := options_in(places, group):
            found = [one for one in options if _has(places, group, one, parts[end:])]
            return (group, found) if found else None
    return None


def _has(places: Sequence[Traversable], group: str, option: str, below: Sequence[str]) -> bool:
    """Whether an option, or one that it is based on, has a key; of presets that set keys elsewhere, none has."""
    for folder in places:
        file = folder.joinpath(*group.split("/"), f"{option}.yaml")
        if not file.is_file() or "@package" in (text := file.read_text()):
            continue
        node: Any = yaml.safe_load(text)
        bases = node.get("defaults", ()) if isinstance(node, Mapping) else ()
        if any(isinstance(one, str) and one != "_self_" and _has(places, group, one, below) for one in bases):
            return True
        for name in below:
            node = node.get(name, _ABSENT) if isinstance(node, Mapping) else _ABSENT
        if node is not _ABSENT:
            return True
    return False


def _places(node: Any, name: str, prefix: str = "") -> Iterator[str]:
    """Give the dotted keys of sections that have a key of a name."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if key == name and not name.startswith("_"):
            yield f"{prefix}{key}"
        if key != "hydra":
            yield from _places(value, name, f"{prefix}{key}.")


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


_ABSENT = object()
