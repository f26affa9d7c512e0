"""A file of claims, read and held to what it has to be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedfeat.errors import ConfigError
from fedfeat.evidence.claims import Claim, Claims, Reading, Rule

_OPTIONAL = ("settings", "caveat", "note", "asked_after")
_NO_TEXTS = ("studies", "settings", "rule", "asked_after")
_KEYS = ("id", "group", "claim", "source", "published", "protocol", "quantity", "studies", "rule", *_OPTIONAL)
_RULE_KEYS = ("arm", "against", "more_than", "less_than")


def read_claims(path: Path) -> Claims:
    """Read a file of claims.

    Raises:
        ConfigError: A claim lacks a key or has one too many.
    """
    found = yaml.safe_load(path.read_text())
    node = found["reading"]
    lists = {key: tuple(node[key]) for key in ("studies", "settings", "order")}
    reading = Reading(name=node["name"], quantity=node["quantity"], margin=float(node["margin"]), **lists)
    return Claims(reading, tuple(_claim(f"claims[{at}]", one) for at, one in enumerate(found["claims"])))


def _claim(place: str, node: Mapping[str, Any]) -> Claim:
    for key in node:
        if key not in _KEYS:
            raise ConfigError.unknown(f"{place}.{key}", _KEYS)
    missing = [key for key in _KEYS if key not in node and key not in _OPTIONAL]
    if missing:
        raise ConfigError.rule(place, f"have {', '.join(missing)}", sorted(node))
    if str(node["quantity"]).startswith("to_target/") and node["rule"].get("against") is None:
        needed = "have against: what reaching a target took is known from below alone of a run that never came there"
        raise ConfigError.rule(f"{place}.rule", needed, dict(node["rule"]))
    texts = {key: " ".join(str(node.get(key, "")).split()) for key in _KEYS if key not in _NO_TEXTS}
    if type(asked_after := node.get("asked_after", False)) is not bool:
        raise ConfigError.rule(f"{place}.asked_after", "be true or false", asked_after)
    lists = {"studies": tuple(node["studies"]), "settings": tuple(node.get("settings", [""]))}
    rule = _rule(f"{place}.rule", node["rule"])
    fields: dict[str, Any] = {**texts, **lists, "rule": rule, "asked_after": asked_after}
    return Claim(**fields)


def _rule(place: str, node: Mapping[str, Any]) -> Rule:
    for key in node:
        if key not in _RULE_KEYS:
            raise ConfigError.unknown(f"{place}.{key}", _RULE_KEYS)
    if "arm" not in node or ("more_than" in node) == ("less_than" in node):
        raise ConfigError.rule(place, "have arm and one of more_than and less_than", dict(node))
    is_lower = "more_than" in node
    return Rule(
        node["arm"], node.get("against"), float(node["more_than" if is_lower else "less_than"]), is_lower
    )
