"""The file of a campaign, read and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedfeat.errors import ConfigError
from fedfeat.evidence.campaign import Campaign, Study, Tuned

_ROOT_KEYS = ("key", "words", "environment", "arms", "studies")
_STUDY_KEYS = ("priority", "words", "settings", "arms", "grid", "own", "seeds", "tuned", "keeps", "then")
_TUNED_KEYS = ("study", "alike")


def read_campaign(path: Path) -> Campaign:
    """Read a campaign's file.

    Raises:
        ConfigError: It is no YAML of a campaign.
    """
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} must be a readable YAML file, but it is not: {error}.") from error
    root = _mapping(str(path), found)
    _check_keys(str(path), root, _ROOT_KEYS)
    arms = {name: _words(f"arms.{name}", words) for name, words in _mapping("arms", root.get("arms")).items()}
    named = _mapping("studies", root.get("studies")).items()
    studies = {name: _study(name, _mapping(f"studies.{name}", node), arms) for name, node in named}
    for study in studies.values():
        _check_tuned(study, studies)
    environment = {k: str(v) for k, v in _mapping("environment", root.get("environment") or {}).items()}
    key = str(root.get("key") or path.stem)
    return Campaign(key, _words("words", root.get("words") or []), environment, studies)


def _study(name: str, node: Mapping[str, Any], arms: Mapping[str, tuple[str, ...]]) -> Study:
    place = f"studies.{name}"
    _check_keys(place, node, _STUDY_KEYS)
    chosen = node.get("arms") or []
    if not isinstance(chosen, list) or not chosen:
        raise ConfigError.rule(f"{place}.arms", "be a list of arms", chosen)
    for arm in chosen:
        if arm not in arms:
            raise ConfigError.rule(f"{place}.arms", "name arms of the file", arm, arms)
    seeds = node.get("seeds", [0])
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise ConfigError.rule(f"{place}.seeds", "be a list of numbers from 0 on", seeds)
    if len({*seeds}) < len(seeds):
        raise ConfigError.rule(f"{place}.seeds", "name each seed once", seeds)
    priority = node.get("priority", 0)
    if type(priority) not in (int, float) or not math.isfinite(priority):
        raise ConfigError.rule(f"{place}.priority", "be a number", priority)
    return Study(
        name=name,
        words=_words(f"{place}.words", node.get("words") or []),
        arms={arm: arms[arm] for arm in chosen},
        settings=_axis(f"{place}.settings", node.get("settings")),
        grid=_axis(f"{place}.grid", node.get("grid")),
        own=_own(place, node.get("own"), chosen),
        seeds=tuple(seeds),
        priority=float(priority),
        tuned=_tuned(f"{place}.tuned", node.get("tuned")),
        keeps=_texts(f"{place}.keeps", node.get("keeps") or []),
        then=_then(place, node.get("then") or {}, chosen),
    )


def _then(place: str, node: Any, arms: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Read what follows the runs of some arms."""
    found = _mapping(f"{place}.then", node)
    for arm in found:
        if arm not in arms:
            raise ConfigError.rule(f"{place}.then", "name arms of the study", arm, arms)
    commands = {arm: _texts(f"{place}.then.{arm}", command) for arm, command in found.items()}
    for arm, command in commands.items():
        if not command:
            raise ConfigError.rule(f"{place}.then.{arm}", "name a program", [])
    return commands


def _own(place: str, node: Any, arms: Sequence[str]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Read what arms have beside the grid, of equal size for all, so that none is tuned more than another."""
    if node is None:
        return {}
    found = {
        arm: _axis(f"{place}.own.{arm}", points) for arm, points in _mapping(f"{place}.own", node).items()
    }
    for arm in found:
        if arm not in arms:
            raise ConfigError.rule(f"{place}.own", "name arms of the study", arm, arms)
    sizes = {arm: len(found.get(arm, [""])) for arm in arms}
    if len(set(sizes.values())) > 1:
        rule = "try as many points for every arm of the study"
        raise ConfigError.rule(
            f"{place}.own", rule, ", ".join(f"{arm} {size}" for arm, size in sizes.items())
        )
    return found


def _tuned(place: str, node: Any) -> Tuned | None:
    if node is None:
        return None
    found = _mapping(place, node)
    _check_keys(place, found, _TUNED_KEYS)
    return Tuned(str(found.get("study")), _mapping(f"{place}.alike", found.get("alike") or {}))


def _check_tuned(study: Study, studies: Mapping[str, Study]) -> None:
    if study.tuned is None:
        return
    place = f"studies.{study.name}.tuned"
    if study.tuned.study not in studies:
        raise ConfigError.rule(f"{place}.study", "name a study of the file", study.tuned.study, studies)
    if studies[study.tuned.study].tuned is not None:
        raise ConfigError.rule(f"{place}.study", "name a study that is not tuned itself", study.tuned.study)
    known = studies[study.tuned.study].arms
    for arm in study.arms:
        source = study.tuned.alike.get(arm, arm)
        if source not in known:
            rule = f"lead from every arm to one of {study.tuned.study} ({', '.join(known)})"
            raise ConfigError.rule(f"{place}.alike", rule, source)


def _axis(place: str, node: Any) -> dict[str, tuple[str, ...]]:
    if node is None:
        return {"": ()}
    if node == {}:
        raise ConfigError.rule(place, "be left out or name one", node)
    return {str(name): _words(f"{place}.{name}", words) for name, words in _mapping(place, node).items()}


def _mapping(place: str, node: Any) -> dict[str, Any]:
    if not isinstance(node, Mapping):
        raise ConfigError.rule(place, "hold keys with values", node)
    return {str(key): value for key, value in node.items()}


def _words(place: str, node: Any) -> tuple[str, ...]:
    if not isinstance(node, list) or not all(isinstance(word, str) and "=" in word for word in node):
        raise ConfigError.rule(place, "be a list of overrides such as seed=1", node)
    return tuple(node)


def _texts(place: str, node: Any) -> tuple[str, ...]:
    if not isinstance(node, list) or not all(isinstance(word, str) for word in node):
        raise ConfigError.rule(place, "be a list of words", node)
    return tuple(node)


def _check_keys(place: str, node: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in node:
        if key not in known:
            raise ConfigError.unknown(f"{place}.{key}", known)
