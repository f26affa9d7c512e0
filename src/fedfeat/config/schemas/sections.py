"""The schema of a section: what may stand beside a ``_target_``, or where one of several is made of it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from fedfeat.config.imports import imported
from fedfeat.config.rule_table import RULES, Rule
from fedfeat.config.schemas.places import Groups, Place
from fedfeat.config.schemas.values import Part, Schema, general, opened, part, ref, value

_NO_SECTION = general()["interpolation"] | {"errorMessage": "Must be a section with keys of its own."}
_DEFAULTS: dict[str, Schema] = {"defaults": {}}
_HYDRA: dict[str, Schema] = {
    "_partial_": value(bool),
    "_recursive_": value(bool),
    "_convert_": {"enum": ["none", "partial", "object", "all"]},
    "_args_": {"type": "array"},
}


class Sections:
    """Schemas of sections, which refer to each other and to what can be made by name.

    Args:
        groups: The groups, as read.
    """

    def __init__(self, groups: Groups) -> None:
        places = list(_below(groups.root))
        self.targets = sorted({target for place in places for target in place.targets})
        made = {name: found for name in self.targets if (found := _imported(name)) is not None}
        said = {name: _said([place for place in places if name in place.targets]) for name in made}
        found_parts = {name: part(one, said[name]) for name, one in made.items()}
        self.parts: dict[str, Part] = {name: one for name, one in found_parts.items() if one is not None}
        self.definitions: dict[str, Schema] = general() | _HYDRA | self._of_targets()
        self.definitions |= {"target": self._target(), "made": self._made()}
        self.definitions["part"] = {"type": "object", "required": ["_target_"], "allOf": [ref("made")]}

    def refer(self, place: Place) -> Schema:
        """Refer to the schema of what a place may hold: its section, or an interpolation."""
        name = f"in:{place.name}"
        if name not in self.definitions:
            section = {"allOf": [self.of_file(place)], "properties": {"defaults": False}}
            self.definitions[name] = {"if": {"type": "string"}, "then": _NO_SECTION, "else": section}
        return ref(name)

    def of_file(self, place: Place) -> Schema:
        """Refer to the schema of a section, or a file that is one: it may be null, and have a list of defaults."""
        if place.name not in self.definitions:
            self.definitions[place.name] = {}  # a part may hold one of its own group
            self.definitions[place.name] = {"type": ["object", "null"]} | self._section(place)
        return ref(place.name)

    def _section(self, place: Place) -> Schema:
        targets = place.all_targets()
        if not targets:
            return self._of_no_part(place)
        known = [one for one in targets if one in self.parts]
        other = {"type": "object", "not": {"properties": {"_target_": {"enum": known}}}}
        variants = [{"if": _of(one), "then": self._of_one(place, one)} for one in known]
        return {
            "if": {"required": ["_target_"]},
            "then": {"allOf": [*variants, {"if": other, "then": ref("made")}]},
            "else": self._of_parts(place, targets),
        }

    def _of_no_part(self, place: Place) -> Schema:
        keys, rules = place.all_keys(), _rules(place)
        # Where all are parts, as callbacks are, names are free.
        named = bool(keys) and all(one.all_targets() for one in keys.values())
        names = sorted({*keys, *rules})
        return {
            "properties": _DEFAULTS | {one: self._key(place, one, []) for one in names},
            "additionalProperties": ref("part") if named else place.names_others,
        }

    def _of_one(self, place: Place, target: str) -> Schema:
        """Give the schema of a section of one target; most places add nothing to it."""
        arguments = self.parts[target].arguments
        inner = (name for name, one in place.all_keys().items() if name in arguments and one.all_targets())
        is_plain = not (_rules(place) or any(inner) or self.parts[target].hands_on)
        return ref(target) if is_plain else self._of_parts(place, [target])

    def _of_parts(self, place: Place, targets: list[str]) -> Schema:
        """Give the schema of a section of one target, or without one where it may be any of several."""
        if any(self.parts[one].hands_on for one in targets if one in self.parts):
            # Arguments are those of other parts, which stand beside it.
            targets = [*targets, *(one for one in place.all_targets() if one not in targets)]
        known = [one for one in targets if one in self.parts]
        names = {name for one in known for name in self.parts[one].arguments} | {*_rules(place)}
        takes_more = len(known) < len(targets) or any(
            self.parts[one].takes_more and not self.parts[one].hands_on for one in known
        )
        names |= {*place.all_keys()} if takes_more else set()
        return {
            "properties": _own_keys() | {name: self._key(place, name, known) for name in sorted(names)},
            "additionalProperties": takes_more,
        }

    def _key(self, place: Place, name: str, targets: list[str]) -> Schema | bool:
        """Give the schema of a key, of any of the targets that have it."""
        child, rule = place.all_keys().get(name), _rules(place).get(name)
        having = [one for one in targets if name in self.parts[one].arguments]
        found = list({one["$ref"]: one for one in (self._argument(one, name) for one in having)}.values())
        schemas: list[Schema] = [found[0] if len(found) == 1 else {"anyOf": found}] if found else []
        if child is not None and (child.all_targets() or (child.all_keys() and not found)):
            inner = self.refer(child)
            schemas = [{"if": {"type": "object"}, "then": inner, "else": schemas[0]}] if schemas else [inner]
        if rule is not None and rule.test.schema == {"not": {}}:
            return False
        schemas += [of_rule(rule)] if rule is not None else []
        described: Schema = describe(child, rule) if rule or not having else {}
        schemas = schemas or [ref("anything")]
        return schemas[0] if len(schemas) == 1 and not described else described | {"allOf": schemas}

    def _argument(self, target: str, name: str) -> Schema:
        """Refer to an argument, that of another target which has the same."""
        found: Schema = self.definitions[target]["properties"][name]
        own = ref(target)["$ref"]
        return (
            found
            if [*found] == ["$ref"] and "/properties/" in found["$ref"]
            else {"$ref": f"{own}/properties/{name}"}
        )

    def _of_targets(self) -> dict[str, Schema]:
        """Give what stands in a section of each target; what several have alike stands once."""
        found, places = {}, dict[str, Schema]()
        for target, one in self.parts.items():
            arguments = {}
            for name, schema in sorted(one.arguments.items()):
                text = f"{name} {json.dumps(schema)}"
                arguments[name] = places.get(text, schema)
                places.setdefault(text, {"$ref": f"{ref(target)['$ref']}/properties/{name}"})
            properties = _own_keys() | arguments
            found[target] = {
                "type": "object",
                "properties": properties,
                "additionalProperties": one.takes_more,
            }
        return found

    def _target(self) -> Schema:
        ours = [one for one in self.targets if one.startswith("fedfeat.")]
        refusal = "Must name what an option of fedfeat names, or what lies in another package."
        known = {"enum": ours, "errorMessage": refusal}
        return {
            "description": "What is made of this section, by its name for Python.",
            "anyOf": [known, {"type": "string", "pattern": "^(?!fedfeat[.])"}],
        }

    def _made(self) -> Schema:
        other = {"type": "object", "not": {"properties": {"_target_": {"enum": sorted(self.parts)}}}}
        free: Schema = {"properties": {"_target_": ref("target")}, "additionalProperties": ref("anything")}
        known = [{"if": _of(one), "then": ref(one)} for one in self.parts]
        return {"properties": {"defaults": False}, "allOf": [*known, {"if": other, "then": free}]}


def of_rule(rule: Rule) -> Schema:
    """Give the schema of what a rule of the table asks for; of a key that is never given there is none."""
    kinds = [rule.test.schema, {"type": "null"}]
    return opened({"anyOf": kinds} if rule.optional else rule.test.schema)


def describe(place: Place | None, rule: Rule | None) -> Schema:
    """Say what a file says beside a key, and what the rule asks for."""
    said = place.comment if place is not None else ""
    words = [said[:1].upper() + said[1:]] if said else []
    words += [f"Must {rule.test.text}{' or null' if rule.optional else ''}."] if rule is not None else []
    return {"description": " ".join(one.rstrip(".") + "." for one in words)} if words else {}


def _rules(place: Place) -> dict[str, Rule]:
    """Give the rules of the table for the keys of a place."""
    prefix = f"{place.name.replace('/', '.')}."
    found = {rule.key.removeprefix(prefix): rule for rule in RULES if rule.key.startswith(prefix)}
    return {name: rule for name, rule in found.items() if "." not in name}


def _own_keys() -> dict[str, Schema]:
    return _DEFAULTS | {"_target_": ref("target")} | {key: ref(key) for key in _HYDRA}


def _said(places: list[Place]) -> dict[str, str]:
    """Give the comments beside the keys of several places; keys without one are known all the same."""
    return {name: one.comment for place in places for name, one in place.keys.items()}


def _of(target: str) -> Schema:
    return {"type": "object", "properties": {"_target_": {"const": target}}, "required": ["_target_"]}


def _below(place: Place) -> Iterator[Place]:
    yield place
    for one in place.keys.values():
        yield from _below(one)


def _imported(name: str) -> Callable[..., Any] | None:
    """Import a target; None where what it needs is not installed, as an extra."""
    try:
        found: Callable[..., Any] = imported(name)
    except Exception:  # whatever a module raises that lacks something
        return None
    return found
