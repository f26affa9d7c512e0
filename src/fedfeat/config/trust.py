"""What a run directory may name: it is data, so only parts that the user has anyway are made of its configuration.

These are the parts that our own configurations name, those that configurations of installed packages name (entry point
``fedfeat.configs``), torch's optimizers, and what the user has named beside the directory. Everything is looked through
before the first of it is imported.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Any

from fedfeat.config.imports import imported
from fedfeat.config.search_path import folders
from fedfeat.errors import ConfigError

GET_CLASS = "hydra.utils.get_class"
"""Gives the class that ``path`` beside it names, the one target whose argument is another target."""
_NAMED = re.compile(r"\b_target_: *(?:hydra\.utils\.get_class\s+path: *)?([A-Za-z_][\w.]*\.\w+)")
_OPTIMIZERS = "torch.optim"
NOT_MADE = ("debug", "executor", "hydra", "logger")
"""Groups of a stored run of which nothing is made: a logger may write, or connect, when it is made."""


def check_stored(config: Mapping[str, Any], trust: Sequence[str] = ()) -> None:
    """Refuse the configuration of a run directory that is not plain values, or that names what nobody has declared.

    Args:
        config: The configuration as it is stored, nested dictionaries and lists.
        trust: What else it may name: packages, modules, or single classes and functions.

    Raises:
        ConfigError: Names the key, what it names, and how to allow it.
    """
    for key, value in _values(config, ""):
        # A resolver reads the environment, or whatever else it was made for.
        if isinstance(value, str) and "${" in value:
            raise ConfigError.rule(key, "be a plain value in a run directory", value)
    declared = _declared()
    for key, name in targets(config):
        if not isinstance(name, str) or name == GET_CLASS:
            rule = (
                f"be the name of a class or function, or {GET_CLASS} with a path beside it and nothing else"
            )
            raise ConfigError.rule(key, rule, name)
        if not _is_trusted(name, declared, trust):
            if within := [one for one in trust if name.startswith(f"{one}.")]:
                rule = f"be a class or function that the trusted {within[0]} defines, and that can be imported here"
                raise ConfigError.rule(key, rule, name)
            rule = (
                "name a part of fedfeat, of torch.optim or of a package with the entry point fedfeat.configs in a run "
                f"directory, or one that you trust (--trust {name}; from Python trust=[{name!r}])"
            )
            raise ConfigError.rule(key, rule, name)


def targets(node: Any) -> Iterator[tuple[str, Any]]:
    """Go through everything that Hydra would import for a configuration: key and dotted name, or what stands there."""
    for key, value in _values(node, ""):
        if key.rpartition(".")[2] == "_target_" and value != GET_CLASS:
            yield key, value
    for key, section in _sections(node, ""):
        if section.get("_target_") == GET_CLASS:
            # Arguments by place, `_args_`, would come in the path's stead.
            rest = {name: value for name, value in section.items() if name != "_target_"}
            plain = list(rest) == ["path"]
            yield (f"{key}path", rest["path"]) if plain else (f"{key}_target_", GET_CLASS)


def _is_trusted(name: str, declared: frozenset[str], trust: Sequence[str]) -> bool:
    if name in declared or name in trust:
        return True
    if name.startswith(f"{_OPTIMIZERS}."):
        found = _object(name, _OPTIMIZERS)
        return isinstance(found, type) and issubclass(found, imported(f"{_OPTIMIZERS}.Optimizer"))
    return any(name.startswith(f"{one}.") and _object(name, one) is not None for one in trust)


def _object(name: str, package: str) -> Any:
    """Import what is defined in a package or module; None for anything else, as for what it has imported itself."""
    try:
        found = imported(name)
    except Exception:
        return None
    home = getattr(found, "__module__", None)
    return found if callable(found) and f"{home}.".startswith(f"{package}.") else None


def _declared() -> frozenset[str]:
    """List what our configurations name, and those of installed packages."""
    named = (name for folder in folders(()) for name in _named_below(folder))
    # Hydra's own make anything of what is named beside them.
    return frozenset(name for name in named if not name.startswith("hydra."))


def _named_below(folder: Traversable) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name not in NOT_MADE:
            yield from _named_below(entry)
        elif entry.name.endswith(".yaml"):
            yield from _NAMED.findall(entry.read_text(encoding="utf-8"))


def _values(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Go through all values that are no lists and no sections, and through targets whatever they are."""
    for key, value in _items(node):
        if key == "_target_" or not isinstance(value, Mapping | list):
            yield f"{prefix}{key}", value
        yield from _values(value, f"{prefix}{key}.")


def _sections(node: Any, prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(node, Mapping):
        yield prefix, node
    for key, value in _items(node):
        yield from _sections(value, f"{prefix}{key}.")


def _items(node: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(node, Mapping):
        yield from node.items()
    elif isinstance(node, list):
        yield from enumerate(node)
