"""The file of a campaign, read and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfeat.errors import ConfigError
from fedfeat.evidence.campaign import Campaign, Study, Tuned
from fedfeat.evidence.campaign_yaml import among, files, mapping, name, read_yaml, texts, words

_ROOT_KEYS = ("key", "into", "words", "environment", "arms", "studies")
_STUDY_KEYS = ("priority", "words", "settings", "arms", "grid", "own", "seeds", "tuned", "keeps", "then")
_TUNED_KEYS = ("study", "alike")


def read_campaign(path: Path) -> Campaign:
    """Read a campaign's file.

    Raises:
        ConfigError: It is no YAML of a campaign.
    """
    root = mapping("", read_yaml(path), _ROOT_KEYS)
    arms = {arm: words(f"arms.{arm}", found) for arm, found in mapping("arms", root.get("arms")).items()}
    studies = {
        study: _study(study, mapping(f"studies.{study}", node, _STUDY_KEYS), arms)
        for study, node in mapping("studies", root.get("studies")).items()
    }
    for study in studies.values():
        _check_tuned(study, studies)
    key = root.get("key", path.stem)
    key = name("key", str(key) if type(key) in (int, float) else key)
    into = root.get("into", f"results/{key}")
    if not isinstance(into, str) or not into:
        raise ConfigError.rule("into", "be a folder", into)
    return Campaign(key, words("words", root.get("words", [])), _environment(root), studies, into)


def _environment(root: Mapping[str, Any]) -> dict[str, str]:
    found = mapping("environment", root.get("environment", {}))
    for variable, value in found.items():
        if type(value) not in (str, int, float):
            raise ConfigError.rule(f"environment.{variable}", "be a text or a number", value)
    return {variable: str(value) for variable, value in found.items()}


def _study(study: str, node: Mapping[str, Any], arms: Mapping[str, tuple[str, ...]]) -> Study:
    place = f"studies.{study}"
    chosen = node.get("arms")
    if not isinstance(chosen, list) or not chosen:
        raise ConfigError.rule(f"{place}.arms", "be a list of at least one arm", chosen)
    chosen = [str(arm) for arm in chosen]
    among(f"{place}.arms", chosen, [*arms], "file")
    if len({*chosen}) < len(chosen):
        raise ConfigError.rule(f"{place}.arms", "name each arm once", chosen)
    priority = node.get("priority", 0)
    if type(priority) not in (int, float) or not math.isfinite(priority):
        raise ConfigError.rule(f"{place}.priority", "be a number", priority)
    return Study(
        name=study,
        words=words(f"{place}.words", node.get("words", [])),
        arms={arm: arms[arm] for arm in chosen},
        settings=_axis(f"{place}.settings", node.get("settings")),
        grid=_axis(f"{place}.grid", node.get("grid")),
        own=_own(place, node.get("own"), chosen),
        seeds=_seeds(f"{place}.seeds", node.get("seeds", [0])),
        priority=float(priority),
        tuned=_tuned(f"{place}.tuned", node.get("tuned"), chosen),
        keeps=files(f"{place}.keeps", node.get("keeps", [])),
        then=_then(f"{place}.then", node.get("then", {}), chosen),
    )


def _seeds(place: str, node: Any) -> tuple[int, ...]:
    if not isinstance(node, list) or not node or not all(type(seed) is int and seed >= 0 for seed in node):
        raise ConfigError.rule(place, "be a list of at least one number from 0 on", node)
    if len({*node}) < len(node):
        raise ConfigError.rule(place, "name each seed once", node)
    return tuple(node)


def _then(place: str, node: Any, arms: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Read what follows the runs of some arms."""
    found = mapping(place, node)
    among(place, [*found], arms)
    commands = {arm: texts(f"{place}.{arm}", command) for arm, command in found.items()}
    for arm, command in commands.items():
        if not command:
            raise ConfigError.rule(f"{place}.{arm}", "name a program", [])
    return commands


def _own(place: str, node: Any, arms: Sequence[str]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Read what arms have beside the grid, of equal size for all, so that none is tuned more than another."""
    if node is None:
        return {}
    found = {
        arm: _axis(f"{place}.own.{arm}", points) for arm, points in mapping(f"{place}.own", node).items()
    }
    among(f"{place}.own", [*found], arms)
    sizes = {arm: len(found.get(arm, [""])) for arm in arms}
    if len(set(sizes.values())) > 1:
        rule = "try as many points for every arm of the study"
        raise ConfigError.rule(
            f"{place}.own", rule, ", ".join(f"{arm} {size}" for arm, size in sizes.items())
        )
    return found


def _tuned(place: str, node: Any, arms: Sequence[str]) -> Tuned | None:
    if node is None:
        return None
    found = mapping(place, node, _TUNED_KEYS)
    alike = mapping(f"{place}.alike", found.get("alike", {}))
    among(f"{place}.alike", [*alike], arms)
    return Tuned(str(found.get("study")), {arm: str(other) for arm, other in alike.items()})


def _check_tuned(study: Study, studies: Mapping[str, Study]) -> None:
    if study.tuned is None:
        return
    place = f"studies.{study.name}.tuned"
    if study.tuned.study not in studies:
        raise ConfigError.rule(f"{place}.study", "name a study of the file", study.tuned.study, studies)
    if studies[study.tuned.study].tuned is not None:
        raise ConfigError.rule(f"{place}.study", "name a study that is not tuned itself", study.tuned.study)
    source = studies[study.tuned.study]
    if all(len(source.points(arm)) < 2 for arm in source.arms):
        raise ConfigError.rule(f"{place}.study", "name a study with a grid", study.tuned.study)
    known = source.arms
    for arm in study.arms:
        other = study.tuned.alike.get(arm, arm)
        if other not in known:
            rule = f"lead from every arm to one of {study.tuned.study} ({', '.join(known)})"
            raise ConfigError.rule(f"{place}.alike", rule, other)


def _axis(place: str, node: Any) -> dict[str, tuple[str, ...]]:
    if node is None:
        return {"": ()}
    if node == {}:
        raise ConfigError.rule(place, "be left out or name one", node)
    return {one: words(f"{place}.{one}", found) for one, found in mapping(place, node).items()}
