"""A file of claims, read and held to what it has to be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedfeat.errors import ConfigError
from fedfeat.evidence.campaign import Study
from fedfeat.evidence.campaign_yaml import among, mapping, read_yaml, texts
from fedfeat.evidence.claims import Claim, Claims, Reading
from fedfeat.evidence.rules import MIN_ARMS, Prediction, Rule

_ROOT_KEYS = ("reading", "claims")
_READING_KEYS = ("name", "studies", "settings", "quantity", "order", "margin")
_TEXTS = ("id", "group", "claim", "source", "published", "protocol", "quantity", "caveat", "note")
_OPTIONAL = ("settings", "caveat", "note", "asked_after")
_KEYS = (*_TEXTS, "studies", "settings", "rule", "asked_after")
_RULE_KEYS = ("arm", "against", "more_than", "less_than")
_PREDICTION_KEYS = ("predicts", "arms")
_TARGET = "to_target/"


def read_claims(path: Path, studies: Mapping[str, Study] | None = None) -> Claims:
    """Read a file of claims.

    Args:
        path: The file.
        studies: Those of the campaign, in which what claims name has to be; None looks for nothing.

    Raises:
        ConfigError: It is no YAML of claims, or a claim names what there is not.
    """
    root = mapping("", read_yaml(path), _ROOT_KEYS)
    _need("the file", root, _ROOT_KEYS)
    reading = _reading(mapping("reading", root["reading"], _READING_KEYS))
    if not isinstance(root["claims"], list):
        raise ConfigError.rule("claims", "be a list", root["claims"])
    claims = tuple(_claim(f"claims[{at}]", one) for at, one in enumerate(root["claims"]))
    names = [claim.id for claim in claims]
    for at, one in enumerate(names):
        if one in names[:at]:
            raise ConfigError.rule(f"claims[{at}].id", "be that of one claim alone", one)
    if studies is not None:
        _check_reading(reading, studies)
        for at, claim in enumerate(claims):
            _check_names(f"claims[{at}]", claim, {**studies}, reading.name)
    return Claims(reading, claims)


def _reading(node: Mapping[str, Any]) -> Reading:
    _need("reading", node, _READING_KEYS)
    lists = {key: _some(f"reading.{key}", node[key]) for key in ("studies", "settings", "order")}
    margin = _number("reading.margin", node["margin"])
    return Reading(name=str(node["name"]), quantity=str(node["quantity"]), margin=margin, **lists)


def _claim(place: str, node: Any) -> Claim:
    found = mapping(place, node, _KEYS)
    _need(place, found, [key for key in _KEYS if key not in _OPTIONAL])
    rule = _rule(f"{place}.rule", found["rule"])
    is_gap = isinstance(rule, Rule) and rule.against is not None and not rule.bound
    if str(found["quantity"]).startswith(_TARGET) and not is_gap:
        needed = (
            "have against, and 0 as its bound: what reaching a target took is known from below alone of a run that "
            "never came there"
        )
        raise ConfigError.rule(f"{place}.rule", needed, dict(found["rule"]))
    if type(asked_after := found.get("asked_after", False)) is not bool:
        raise ConfigError.rule(f"{place}.asked_after", "be true or false", asked_after)
    studies, settings = (_some(f"{place}.{key}", found.get(key, [""])) for key in ("studies", "settings"))
    words = {key: " ".join(str(found.get(key, "")).split()) for key in _TEXTS}
    return Claim(**words, studies=studies, settings=settings, rule=rule, asked_after=asked_after)


def _rule(place: str, found: Any) -> Rule | Prediction:
    node = mapping(place, found, (*_RULE_KEYS, *_PREDICTION_KEYS))
    if not node.keys().isdisjoint(_PREDICTION_KEYS):
        return _prediction(place, mapping(place, found, _PREDICTION_KEYS))
    if "arm" not in node or ("more_than" in node) == ("less_than" in node):
        raise ConfigError.rule(place, "have arm and one of more_than and less_than", dict(node))
    side = "more_than" if "more_than" in node else "less_than"
    bound = _number(f"{place}.{side}", node[side])
    arm, against = str(node["arm"]), node.get("against")
    if arm == against:
        raise ConfigError.rule(f"{place}.against", "be another arm", against)
    return Rule(arm, None if against is None else str(against), bound, side == "more_than")


def _prediction(place: str, node: Mapping[str, Any]) -> Prediction:
    _need(place, node, _PREDICTION_KEYS)
    arms = texts(f"{place}.arms", node["arms"])
    if len({*arms}) < max(len(arms), MIN_ARMS):
        raise ConfigError.rule(f"{place}.arms", f"be at least {MIN_ARMS}, each named once", [*arms])
    return Prediction(str(node["predicts"]), arms)


def _some(place: str, node: Any) -> tuple[str, ...]:
    """Read words, at least one."""
    if not (found := texts(place, node)):
        raise ConfigError.rule(place, "be left out or name one", [])
    return found


def _number(place: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ConfigError.rule(place, "be a number", value)
    return float(value)


def _need(place: str, node: Mapping[str, Any], keys: tuple[str, ...] | list[str]) -> None:
    if missing := [key for key in keys if key not in node]:
        raise ConfigError.rule(place, f"have {', '.join(missing)}", sorted(node))


def _check_reading(reading: Reading, studies: Mapping[str, Study]) -> None:
    among("reading.studies", reading.studies, [*studies], "campaign", "studies")
    arms, settings = _of(studies, reading.studies)
    among("reading.settings", reading.settings, settings, what="settings")
    among("reading.order", reading.order, arms)


def _check_names(place: str, claim: Claim, studies: Mapping[str, Study], reading: str) -> None:
    among(f"{place}.studies", claim.studies, [*studies], "campaign", "studies")
    arms, settings = _of(studies, claim.studies)
    among(f"{place}.settings", claim.settings, settings, what="settings")
    among(f"{place}.rule", claim.rule.arms, [*arms, reading])


def _of(studies: Mapping[str, Study], chosen: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Give the arms and the settings of some studies."""
    some = [studies[one] for one in chosen]
    return [arm for one in some for arm in one.arms], [setting for one in some for setting in one.settings]
