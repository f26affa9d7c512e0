"""The files of schemas: one for each group, one for presets, and one of what they share."""

import json
from collections.abc import Sequence
from importlib.resources.abc import Traversable
from typing import Any

from hydra.conf import HydraConf

from fedfeat.config.rule_table import KEYS, RULES
from fedfeat.config.schemas import defaults
from fedfeat.config.schemas.places import GLOBAL, Groups, Place, read
from fedfeat.config.schemas.sections import Sections, describe, of_rule
from fedfeat.config.schemas.values import Schema, ref, value

SHARED, TREE = "shared.json", "tree.json"
_DRAFT = "http://json-schema.org/draft-07/schema#"
_FILE = "file:"
_FREE: Schema = {"type": ["object", "null"]}
_PUBLISHED: Schema = _FREE | {
    "description": "A paper's numbers by quantity; where they depend on keys, `by` names these.",
    "additionalProperties": {
        "type": ["number", "object", "null"],
        "properties": {"by": {"type": "array", "items": {"type": "string"}}},
    },
}
_ARMS = _FREE | {"description": "Settings of single algorithms, to which others refer."}


def documents(folders: Sequence[Traversable]) -> dict[str, str]:
    """Make the schemas of all groups that folders hold.

    Args:
        folders: As `search_path.folders` gives them.

    Returns:
        Texts of files by their names: ``<group>.json``, with dots for its slashes, of the files of a group;
        ``tree.json`` of presets and the primary configuration; ``shared.json``, to which they refer.
    """
    groups = read(folders)
    sections = Sections(groups)
    shared = sections.definitions | defaults.options(groups)
    found = {"tree": _tree(groups, sections)}
    for name, place in groups.places.items():
        whole = [ref("hydra") if name == "hydra" else sections.of_file(place)]
        keys = {"defaults": defaults.of_file(groups, name)}
        found[name.replace("/", ".")] = {
            "title": f"An option of the group {name}",
            "allOf": whole,
            "properties": keys,
        }
    shared |= {"hydra": _hydra(groups, sections)} | {f"{_FILE}{name}": one for name, one in found.items()}
    shared = dict(sorted((shared | sections.definitions).items()))
    # Editors follow each reference to another file as if they had not read it before, so there is one.
    files = {f"{name}.json": {"$ref": f"{SHARED}{ref(_FILE + name)['$ref']}"} for name in sorted(found)}
    return {name: _text(one) for name, one in (files | {SHARED: {"definitions": shared}}).items()}


def schema_of(way: str, text: str) -> str:
    """Name the schema of a file by its path in the folder of groups, such as ``algorithm/client/fedprox.yaml``."""
    group = way.rpartition("/")[0]
    return TREE if not group or text.startswith(GLOBAL) else f"{group.replace('/', '.')}.json"


def is_ours(text: str) -> bool:
    """Whether a file is a schema as `documents` writes them for groups."""
    return f'"$ref": "{SHARED}{ref(_FILE)["$ref"]}' in text


def associations(folder: Traversable, where: str, schemas: str) -> dict[str, list[str]]:
    """Say which files of a folder of groups each schema is for, as editors of the family of VS Code are told.

    Args:
        folder: The folder.
        where: Its path from the folder that is opened in the editor.
        schemas: That of the schemas.
    """
    groups = read([folder])
    found = {f"{schemas}/{name.replace('/', '.')}.json": [f"{where}/{name}/*.yaml"] for name in groups.places}
    trees = [f"{where}/{name}.yaml" for name in groups.primary]
    trees += [f"{where}/{name}/**/*.yaml" for name in sorted(groups.presets)]
    return found | ({f"{schemas}/{TREE}": trees} if trees else {})


def _text(schema: Schema) -> str:
    """Write a schema with a line for each definition."""
    parts = []
    for key, node in ({"$schema": _DRAFT} | schema).items():
        lines = (
            [f"{_compact(name)}: {_compact(one)}" for name, one in node.items()] if type(node) is dict else ()
        )
        parts.append(f"{_compact(key)}: " + ("{\n" + ",\n".join(lines) + "\n}" if lines else _compact(node)))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _tree(groups: Groups, sections: Sections) -> Schema:
    rules = {rule.key: rule for rule in RULES}
    others = (name for name, place in groups.places.items() if "/" not in name and not place.names_others)
    own = [name for name in others if name not in (*KEYS, "hydra")]
    keys: dict[str, Any] = {"defaults": defaults.of_file(groups, ""), "hydra": ref("hydra")}
    for name in (*KEYS, *own):
        place = groups.root.keys.get(name, Place(name))
        if name in rules:
            keys[name] = describe(place, rules[name]) | of_rule(rules[name])
        elif place.all_targets() or place.all_keys():
            keys[name] = describe(place, None) | {"allOf": [sections.refer(place)]}
    keys |= {"arms": _ARMS, "published": _PUBLISHED}
    words = "A preset, which sets keys anywhere, or the whole configuration"
    return {"title": words, **_FREE, "properties": keys, "additionalProperties": False}


def _hydra(groups: Groups, sections: Sections) -> Schema:
    """Give the schema of Hydra's own section, from its data classes, and of the axes of a sweep."""
    whole = value(HydraConf)["then"]
    first = "|".join(sorted({name.partition("/")[0] for name in groups.options} | set(KEYS)))
    axes = _FREE | {
        "description": "Axes of --multirun: a key or group, and its values with commas between them.",
        "properties": {name: {} for name in sorted(groups.options)},
        "propertyNames": {
            "pattern": f"^[+~]*({first}|hydra)([./@].*)?$",
            "errorMessage": "Must be a key or group of the configuration.",
        },
    }
    own = {"sweeper": _FREE | {"properties": {"params": axes}}, "defaults": {}}
    if "hydra/launcher" in groups.places:
        own["launcher"] = sections.refer(groups.places["hydra/launcher"])
    return whole | _FREE | {"properties": whole["properties"] | own}
