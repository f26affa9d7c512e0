"""Where sections stand in the tree of a configuration, and what is made of them: read from the groups' files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import yaml

from fedfeat.config.schemas.comments import beside_keys
from fedfeat.config.trust import GET_CLASS

GLOBAL = "# @package _global_"
_HERE = PurePosixPath()


@dataclass(eq=False)
class Place:
    """A key, as files know it.

    Attributes:
        name: Its dotted name, that of a group with slashes.
        targets: What is made of the section here, by the files.
        keys: The keys of the section.
        like: Places whose options may stand here as well.
        comment: What a file says beside it.
    """

    name: str
    targets: set[str] = field(default_factory=set)
    keys: dict[str, "Place"] = field(default_factory=dict)
    like: list["Place"] = field(default_factory=list)
    comment: str = ""

    def key(self, name: str) -> "Place":
        """Give a key of the section; it may be new."""
        return self.keys.setdefault(name, Place(f"{self.name}.{name}".lstrip(".")))

    def at(self, way: Sequence[str]) -> "Place":
        """Give what lies further below."""
        return self.key(way[0]).at(way[1:]) if way else self

    @property
    def names_others(self) -> bool:
        """Whether its keys are dotted ones of the whole configuration, as those of a space that is searched."""
        return bool(self.keys) and all("." in name for name in self.keys)

    def all_like(self) -> list["Place"]:
        """List this place and those whose options may stand here, each once."""
        found, waiting = [], [self]
        while waiting:
            one = waiting.pop(0)
            if one not in found:
                found.append(one)
                waiting += one.like
        return found

    def all_targets(self) -> list[str]:
        """List what may be made of the section."""
        return sorted({target for one in self.all_like() for target in one.targets})

    def all_keys(self) -> dict[str, "Place"]:
        """Give the keys that the section may have."""
        found: dict[str, Place] = {}
        for one in self.all_like():
            found = one.keys | found
        return dict(sorted(found.items()))


class Groups(NamedTuple):
    """The tree, its groups, the names of their options, and which groups are of presets; files in no group."""

    root: Place
    places: dict[str, Place]
    options: dict[str, list[str]]
    presets: frozenset[str]
    primary: list[str]


def read(folders: Sequence[Traversable]) -> Groups:
    """Read every file of folders that hold groups."""
    files = [(way, text) for folder in folders for way, text in _files(folder)]
    root, options = Place(""), dict[str, set[str]]()
    presets = {way.parts[0] for way, text in files if text.startswith(GLOBAL)}
    for way, _ in files:
        group = way.parts[0] if way.parts[0] in presets else way.parent.as_posix()
        options.setdefault(group, set()).add(way.relative_to(group).with_suffix("").as_posix())
    primary = sorted(options.pop(".", set()))
    places = {group: root.at(group.split("/")) for group in sorted(options) if group not in presets}
    for group, place in places.items():
        place.name = group
    for way, text in files:
        group = "" if way.parent == PurePosixPath(".") else way.parent.as_posix()
        place = root if text.startswith(GLOBAL) or not group else places[group]
        said = beside_keys(text)
        _merge(place, yaml.safe_load(text) or {}, said)
        for name, words in said.items() if not group else ():
            if name[0] == "defaults" and len(name) > 1:
                root.key(default_group(name[1])[1] or name[1]).comment = words
        for other, where in _mounted(root, group, place, text):
            if other in places and places[other] is not where:
                where.like += [] if places[other] in where.like else [places[other]]
    known = {group: sorted(found) for group, found in sorted(options.items())}
    return Groups(root, places, known, frozenset(presets), primary)


def default_group(key: str) -> tuple[str, str]:
    """Split a key of a list of defaults, as ``override /algorithm/server@server.average``: group and package."""
    group, _, package = key.rpartition(" ")[2].partition("@")
    return group, package


def _files(folder: Traversable, way: PurePosixPath = _HERE) -> Iterator[tuple[PurePosixPath, str]]:
    for file in sorted(folder.iterdir(), key=lambda one: one.name):
        if file.is_dir() and not file.name.startswith((".", "__")):
            yield from _files(file, way / file.name)
        elif file.name.endswith(".yaml"):
            yield way / file.name, file.read_text(encoding="utf-8")


def _merge(place: Place, node: Any, said: Mapping[tuple[str, ...], str], way: tuple[str, ...] = ()) -> None:
    if not isinstance(node, Mapping):
        return
    if isinstance(node.get("_target_"), str):
        place.targets.add(node["_target_"])
    for key, value in node.items():
        if str(key).startswith("_") or (key == "defaults" and not way):
            continue
        child = place.key(str(key))
        child.comment = child.comment or said.get((*way, str(key)), "")
        _merge(child, value, said, (*way, str(key)))
        for item in value if isinstance(value, list) else ():
            if isinstance(item, Mapping) and item.get("_target_") == GET_CLASS:
                place.targets.add(item["path"])  # to which the others hand on their arguments


def _mounted(root: Place, group: str, place: Place, text: str) -> Iterator[tuple[str, Place]]:
    """Go through the groups whose options a file puts somewhere else than in their own places, with the place."""
    node = yaml.safe_load(text)
    for entry in node.get("defaults", ()) if isinstance(node, Mapping) else ():
        for key in entry if isinstance(entry, Mapping) else ():
            other, package = default_group(key)
            below = package.removeprefix("_global_.").removeprefix("_here_").split(".") if package else []
            if package:
                start = root if package.startswith("_global_") or not group else place
                absolute = other[1:] if other.startswith("/") else f"{group}/{other}".lstrip("/")
                yield absolute, start.at([one for one in below if one])
