"""Where options of the configuration's groups are looked for: our folder, and those of a user's own packages."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin

from fedfeat.errors import ConfigError

_CHECKOUT = Path(__file__).parents[3] / "configs"
CONFIGS = _CHECKOUT if _CHECKOUT.is_dir() else Path(__file__).parents[1] / "configs"
ENTRY_POINTS = "fedfeat.configs"
"""Group of entry points by which an installed package names a package of its own that holds configurations."""


class InstalledConfigs(SearchPathPlugin):
    """Adds the configurations of all installed packages that declare the entry point, behind ours.

    Hydra asks plugins in every application of the environment, so others are left as they are.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Hydra hook: append to the search path."""
        if any(part.provider == "main" and part.path == str(CONFIGS) for part in search_path.get_path()):
            for package in installed():
                search_path.append(provider=ENTRY_POINTS, path=f"pkg://{package}")


def installed() -> list[str]:
    """List the packages of configurations that are installed, by name."""
    return sorted({point.value for point in entry_points(group=ENTRY_POINTS)})


def options(group: str, words: Sequence[str] = ()) -> list[str]:
    """List the options of a group such as ``model`` or ``algorithm/client``; none where there is no such group.

    Args:
        group: The group.
        words: The words of the command line, which may name more folders.
    """
    return options_in(folders(words), group)


def options_in(places: Sequence[Traversable], group: str) -> list[str]:
    """List the options that folders have of a group; see `options`."""
    found = set[str]()
    for folder in places:
        if (place := folder.joinpath(*group.split("/"))).is_dir():
            found |= {Path(file.name).stem for file in place.iterdir() if file.name.endswith(".yaml")}
    return sorted(found)


def has_option(places: Sequence[Traversable], group: str, option: str) -> bool:
    """Whether a folder has an option of a group, which may lie in a folder of its own as ``fed2/t1_vgg9``."""
    parts = f"{group}/{option.removesuffix('.yaml')}.yaml".split("/")
    return any(folder.joinpath(*parts).is_file() for folder in places)


def presets_in(places: Sequence[Traversable], group: str) -> list[str]:
    """List the options of a group that lie in folders of their own, as ``fed2/t1_vgg9`` of ``experiment``.

    A folder in a group is else a group itself (``algorithm/client``): its files belong into one place each.
    """
    found = set[str]()
    for folder in places:
        place = folder.joinpath(*group.split("/"))
        for inner in (one for one in place.iterdir() if one.is_dir()) if place.is_dir() else ():
            files = [file for file in inner.iterdir() if file.name.endswith(".yaml")]
            if files and all(file.read_text().startswith("# @package _global_") for file in files):
                found |= {f"{inner.name}/{Path(file.name).stem}" for file in files}
    return sorted(found)


def folders(words: Sequence[str]) -> list[Traversable]:
    """List the folders that hold groups: ours, those of installed packages and those that a command line names."""
    theirs = (_folder(f"pkg://{package}") for package in installed())
    return [folder for folder in (CONFIGS, *theirs, *_named(words)) if folder is not None]


def overrides(words: Sequence[str]) -> Iterator[Override]:
    """Go through the words of a command line that set something; those that are wrong are left to Hydra."""
    parser = OverridesParser.create()
    for word in words:
        if "=" in word and not word.startswith("-"):
            try:
                yield parser.parse_override(word)
            except HydraException:
                continue  # Hydra will say what is wrong with it.


def override_of(key: str, text: str) -> str:
    """Give the word that sets a key to a text as it stands: in quotes where Hydra would read it otherwise.

    Args:
        key: The key.
        text: Its value, such as a folder with the name of a sweep's run, ``lr=0.1,seed=0``.
    """
    plain = next((one.value() for one in overrides([f"{key}={text}"])), None)
    return f"{key}={text if plain == text and '$' not in text else quoted(text)}"


def quoted(text: str) -> str:
    """Put a text in quotes, so that it stands as it is, whatever of Hydra's grammar is in it."""
    # Of backslashes, those in front of a quote count, which is where the text ends, too.
    inner = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + (found[2] and rf"\{found[2]}"), text)
    return f"'{inner}'".replace("${", r"\${")


def typed_run_dir(run_dir: Path) -> str:
    """Give the word by which a run directory is named to go on in, as it is typed into a shell here."""
    return shlex.quote(override_of("hydra.run.dir", os.path.relpath(run_dir)))


def _named(words: Sequence[str]) -> Iterator[Traversable | None]:
    """Go through the folders of ``--config-dir``, ``--config-path`` and ``hydra.searchpath``."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, given, value = word.partition("=")
        if name in ("--config-dir", "-cd", "--config-path", "-cp"):
            yield _folder(value if given else following)
    yield from map(_folder, _searchpath(words))


def _searchpath(words: Sequence[str]) -> Iterator[str]:
    """Go through the places of ``hydra.searchpath``, as they are written."""
    for override in overrides(words):
        if override.key_or_group == "hydra.searchpath" and isinstance(paths := override.value(), list):
            yield from map(str, paths)


def check_searchpath(words: Sequence[str]) -> None:
    """Refuse places of ``hydra.searchpath`` that are not there: Hydra warns, but not before an option is missing.

    Raises:
        ConfigError: Names the first.
    """
    for path in _searchpath(words):
        scheme, found = path.rpartition("://")[0], _folder(path)
        is_there = found is not None and found.is_dir()
        if scheme in ("", "file", "pkg") and "${" not in path and not is_there:
            rule = "name folders (file://...) and packages (pkg://...) that are there"
            raise ConfigError.rule("hydra.searchpath", rule, path)


def _folder(path: str) -> Traversable | None:
    """Find a folder as Hydra names it; None where there is none, which Hydra will say."""
    scheme, _, rest = path.rpartition("://")
    if scheme not in ("", "file", "pkg"):
        return None
    if scheme != "pkg":
        return Path(rest)
    name, _, below = rest.replace(".", "/").partition("/")
    try:
        return files(name).joinpath(*below.split("/")) if below else files(name)
    except (ImportError, TypeError):
        return None


# On import, for whoever composes a configuration, on the command line or from Python, imports this.
Plugins.instance().register(InstalledConfigs)
