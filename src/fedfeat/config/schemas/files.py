"""The files of schemas: one for each group, one for presets, and one of what they share."""

import json
from collections.abc import Sequence
from importlib.resources.abc import Traversable
from typing import Any

from hydra.conf import HydraConf

from fedfeat.config.rule_table import KEYS, RULES
from fedfeat.config.schemas.places import GLOBAL, Groups, Place, read
from fedfeat.config.schemas.sections import Sections, describe, of_rule
from fedfeat.config.schemas.values import Schema, ref, value

PARTS, TREE = "parts.json", "tree.json"
_DRAFT = "http://json-schema.org/draft-07/schema#"
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
        ``tree.json`` of presets and the primary configuration; ``parts.json``, to which they refer.
    """
    groups = read(folders)
    sections = Sections(groups)
    found = {TREE: _tree(groups, sections)}
    sections.definitions["hydra"] = _hydra(groups, sections)
    for name, place in groups.places.items():
        whole = {"allOf": [sections.of_file(place)], "properties": {"defaults": _defaults(groups, name)}}
        found[f"{name.replace('/', '.')}.json"] = {"title": f"An option of the group {name}"} | whole
    chosen = {f"options:{name}": _chosen(options) for name, options in groups.options.items()}
    absolute = [f"/{name}/{one}" for name, options in groups.options.items() for one in options]
    shared = sections.definitions | chosen | {"options": {"enum": absolute}}
    texts = {name: _text(one).replace('"$ref":"#/', f'"$ref":"{PARTS}#/') for name, one in found.items()}
    return dict(sorted(texts.items())) | {PARTS: _text({"definitions": dict(sorted(shared.items()))})}


def schema_of(way: str, text: str) -> str:
    """Name the schema of a file by its path in the folder of groups, such as ``algorithm/client/fedprox.yaml``."""
    group = way.rpartition("/")[0]
    return TREE if not group or text.startswith(GLOBAL) else f"{group.replace('/', '.')}.json"


def associations(folder: Traversable, where: str, schemas: str) -> dict[str, list[str]]:
    """Say which files of a folder of groups each schema is for, as editors of the family of VS Code are told.

    Args:
        folder: The folder.
        where: Its path from the folder that is opened in the editor.
        schemas: That of the schemas.
    """
    groups = read([folder])
    found = {
        f"{schemas}/{name.replace('/', '.')}.json": [f"{where}/{name}/*.yaml"]
        for name in sorted(groups.places)
    }
    trees = [f"{where}/{name}/**/*.yaml" for name in sorted(groups.presets)]
    primary = [f"{where}/{name}.yaml" for name in groups.options.get(".", ())]
    return found | ({f"{schemas}/{TREE}": primary + trees} if trees or primary else {})


def _text(schema: Schema) -> str:
    """Write a schema with a line for each definition, or each key at the top."""
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
    own = [name for name in groups.places if "/" not in name and name not in (*KEYS, "hydra")]
    keys: dict[str, Any] = {"defaults": _defaults(groups, ""), "hydra": ref("hydra")}
    for name in (*KEYS, *own):
        place = groups.root.keys.get(name, Place(name))
        if name in rules:
            keys[name] = describe(place, rules[name]) | of_rule(rules[name])
        elif place.all_targets() or place.all_keys():
            keys[name] = describe(place, None) | {"allOf": [sections.refer(place)]}
    keys |= {"arms": _ARMS, "published": _PUBLISHED}
    words = "A preset, which sets keys anywhere, or the whole configuration"
    kinds = {"type": ["object", "null"], "properties": keys, "additionalProperties": False}
    return {"title": words, **kinds}


def _hydra(groups: Groups, sections: Sections) -> Schema:
    """Give the schema of Hydra's own section, from its data classes, and of the axes of a sweep."""
    whole = value(HydraConf)["then"]
    first = sorted({name.partition("/")[0] for name in groups.options} | set(KEYS))
    axes = {
        "type": ["object", "null"],
        "description": "Axes of --multirun: a key or group, and its values with commas between them.",
        "properties": {name: {} for name in sorted({*groups.options})},
        "propertyNames": {"pattern": f"^[+~]*({'|'.join(first)}|hydra)([./@].*)?$"},
    }
    sweeper = {"type": ["object", "null"], "properties": {"params": axes}}
    own = {"sweeper": sweeper, "defaults": {}}
    if "hydra/launcher" in groups.places:
        own["launcher"] = sections.refer(groups.places["hydra/launcher"])
    return whole | {"type": ["object", "null"], "properties": whole["properties"] | own}


def _defaults(groups: Groups, group: str) -> Schema:
    """Give the schema of a list of defaults in a file of a group, or in one that sets keys anywhere."""
    inner = {name.removeprefix(f"{group}/"): name for name in groups.options if name.startswith(f"{group}/")}
    inner |= {} if group else {name: name for name in groups.options}
    of_all = {f"/{name}": name for name in groups.options}
    entries = {
        f"override {key}": ref(f"options:{name}") for key, name in (of_all if not group else inner).items()
    }
    patterns = {
        f"^((override|optional) +)?{key}(@.*)?$": ref(f"options:{name}")
        for key, name in (of_all | inner).items()
    }
    hydras = "^((override|optional) +)?" + ("" if group == "hydra" else "/?hydra/")
    own = [*groups.options.get(group, ()), "_self_"] if group else ["_self_"]
    here = {"anyOf": [{"enum": own}, ref("options"), ref("interpolation"), *_relative(groups, group)]}
    entry = {
        "properties": entries,
        "patternProperties": patterns | {hydras: {}},
        "additionalProperties": False,
    }
    words = "What this file begins with, and what it puts in the place of other options."
    return {
        "type": "array",
        "description": words,
        "items": {"if": {"type": "string"}, "then": here, "else": {"type": "object"} | entry},
    }


def _relative(groups: Groups, group: str) -> list[Schema]:
    """Presets name each other as they lie in their own group's folders."""
    return [] if group else [ref(f"options:{name}") for name in sorted(groups.presets)]


def _chosen(options: Sequence[str]) -> Schema:
    one = {"anyOf": [{"enum": [*options, None]}, ref("interpolation")]}
    return {"if": {"type": "array"}, "then": {"items": one}, "else": one}
