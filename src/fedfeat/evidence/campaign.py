"""A campaign: a queue of runs in one file, each known by study, setting, arm and seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fedfeat.errors import ConfigError

_ROOT_KEYS = ("key", "words", "environment", "arms", "studies")
_STUDY_KEYS = ("priority", "words", "settings", "arms", "grid", "seeds", "tuned", "clients")
_TUNED_KEYS = ("study", "alike")


class Cell(NamedTuple):
    """One run of a campaign.

    Attributes:
        study: What it belongs to.
        setting: The study's second axis, such as a partition; empty where it has none.
        arm: What is compared.
        point: The point of the grid, where the study tunes; empty otherwise.
        seed: Its seed.
    """

    study: str
    setting: str
    arm: str
    point: str
    seed: int

    @property
    def name(self) -> str:
        """Its folder below the campaign's."""
        parts = (self.study, self.setting, self.arm, self.point, f"seed_{self.seed}")
        return "/".join(part for part in parts if part)


@dataclass(frozen=True)
class Tuned:
    """Where a study takes what its arms are tuned to.

    Attributes:
        study: The study with the grid.
        alike: Arms that take what another was tuned to, by name.
    """

    study: str
    alike: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """Runs that belong together: arms by settings by seeds.

    Attributes:
        name: Its name.
        words: Overrides of every run.
        arms: Overrides by arm.
        settings: Overrides by setting; one without a name where there is no such axis.
        grid: Overrides by point of the grid that is tried for every arm; one without a name where nothing is tuned.
        seeds: The seeds.
        priority: Lower is earlier.
        tuned: Whose choices its arms take, or None.
        clients: Whether clients.csv is kept.
    """

    name: str
    words: tuple[str, ...]
    arms: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, tuple[str, ...]]
    grid: Mapping[str, tuple[str, ...]]
    seeds: tuple[int, ...]
    priority: float = 0.0
    tuned: Tuned | None = None
    clients: bool = False

    def cells(self) -> Iterator[Cell]:
        """Give its runs: seed by seed, so that what is compared is there together."""
        for seed in self.seeds:
            for setting in self.settings:
                for point in self.grid:
                    for arm in self.arms:
                        yield Cell(self.name, setting, arm, point, seed)


@dataclass(frozen=True)
class Campaign:
    """What a file asks for.

    Attributes:
        key: Name of the folder that holds its runs, whatever checkout they are started from.
        words: Overrides of every run.
        environment: Environment variables of every run.
        studies: By name.
    """

    key: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    studies: Mapping[str, Study]

    @classmethod
    def read(cls, path: Path) -> Campaign:
        """Read a file.

        Raises:
            ConfigError: It is no YAML of a campaign.
        """
        try:
            found = yaml.safe_load(path.read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} must be a readable YAML file, but it is not: {error}.") from error
        root = _mapping(str(path), found)
        _check_keys(str(path), root, _ROOT_KEYS)
        arms = {
            name: _words(f"arms.{name}", words) for name, words in _mapping("arms", root.get("arms")).items()
        }
        named = _mapping("studies", root.get("studies")).items()
        studies = {name: _study(name, _mapping(f"studies.{name}", node), arms) for name, node in named}
        for study in studies.values():
            _check_tuned(study, studies)
        environment = {k: str(v) for k, v in _mapping("environment", root.get("environment") or {}).items()}
        key = str(root.get("key") or path.stem)
        return cls(key, _words("words", root.get("words") or []), environment, studies)

    def ordered(self) -> list[Study]:
        """Give the studies in the order in which their runs are to be made."""
        return sorted(self.studies.values(), key=lambda study: study.priority)

    def cells(self) -> list[Cell]:
        """Give all runs in the order in which they are to be made."""
        return [cell for study in self.ordered() for cell in study.cells()]

    def words_of(self, cell: Cell, point: Sequence[str] = ()) -> tuple[str, ...]:
        """Give the overrides of a run, without its directory.

        Args:
            cell: The run.
            point: What its arm is tuned to.
        """
        study = self.studies[cell.study]
        parts = (self.words, study.words, study.settings[cell.setting], study.arms[cell.arm], point)
        return (*(word for part in parts for word in part), *study.grid[cell.point], f"seed={cell.seed}")

    def tuning_of(self, cell: Cell) -> list[Cell]:
        """Give the runs that decide what a run's arm is tuned to; none where nothing is."""
        tuned = self.studies[cell.study].tuned
        if tuned is None:
            return []
        arm = tuned.alike.get(cell.arm, cell.arm)
        return [other for other in self.studies[tuned.study].cells() if other.arm == arm]


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
    return Study(
        name=name,
        words=_words(f"{place}.words", node.get("words") or []),
        arms={arm: arms[arm] for arm in chosen},
        settings=_axis(f"{place}.settings", node.get("settings")),
        grid=_axis(f"{place}.grid", node.get("grid")),
        seeds=tuple(seeds),
        priority=float(node.get("priority", 0)),
        tuned=_tuned(f"{place}.tuned", node.get("tuned")),
        clients=bool(node.get("clients", False)),
    )


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
    known = studies[study.tuned.study].arms
    for arm in study.arms:
        source = study.tuned.alike.get(arm, arm)
        if source not in known:
            rule = f"lead from every arm to one of {study.tuned.study} ({', '.join(known)})"
            raise ConfigError.rule(f"{place}.alike", rule, source)


def _axis(place: str, node: Any) -> dict[str, tuple[str, ...]]:
    if node is None:
        return {"": ()}
    return {str(name): _words(f"{place}.{name}", words) for name, words in _mapping(place, node).items()}


def _mapping(place: str, node: Any) -> dict[str, Any]:
    if not isinstance(node, Mapping):
        raise ConfigError.rule(place, "hold keys with values", node)
    return {str(key): value for key, value in node.items()}


def _words(place: str, node: Any) -> tuple[str, ...]:
    if not isinstance(node, list) or not all(isinstance(word, str) and "=" in word for word in node):
        raise ConfigError.rule(place, "be a list of overrides such as seed=1", node)
    return tuple(node)


def _check_keys(place: str, node: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in node:
        if key not in known:
            raise ConfigError.unknown(f"{place}.{key}", known)
