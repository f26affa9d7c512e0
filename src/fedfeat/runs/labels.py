"""Settings and their names: what a person would write to tell them apart, e.g. ``fed2, structure.groups=20``."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfeat.runs.fewest import fewest
from fedfeat.runs.finished import Run, but_seeds, identity
from fedfeat.runs.text import is_number, option_name, written

# The first words of a name; their options need no group beside them. The first one is always there, the next two
# wherever they differ.
_SPOKEN = ("algorithm", "data", "partition", "model")
_ALWAYS = ("algorithm", "data", "partition")
# Where it ran, under which preset, or what the algorithm's name and keys tell: no setting is named by these groups.
_SILENT = re.compile(r"(hydra|paths|logger|executor|experiment|arm|scale|sweep|debug)(/.*|$)")
_NAMES = ("algorithm.name", "data.name")
# Without Hydra's record the configuration tells these: keys whose last part is a name, or a class.
_TELLING = {
    "algorithm": ("algorithm.name", "algorithm.client._target_"),
    "data": ("data.name", "data.loader._target_"),
    "partition": ("partition._target_",),
    "model": ("model._target_",),
}


@dataclass(frozen=True, eq=False)
class Setting:
    """Runs that differ in nothing but the seed.

    Attributes:
        runs: The runs, by seed.
        words: Option of every group of the configuration that tells experiments apart.
        values: All keys of the configuration.
    """

    runs: tuple[Run, ...]
    words: dict[str, str]
    values: dict[str, Any]

    def get(self, name: str) -> Any:
        """Give a group's option, a key's value, or None."""
        return self.words[name] if name in self.words else self.values.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self.values or name in self.words


@dataclass(frozen=True)
class Naming:
    """What the names of several settings are made of.

    Attributes:
        words: Groups of the configuration.
        keys: Keys of it.
    """

    words: tuple[str, ...]
    keys: tuple[str, ...]

    def label(self, setting: Setting, but: Collection[str] = ()) -> str:
        """Name a setting, without some groups and keys; what it lacks is left out."""
        parts = [
            setting.words[group] if group in _SPOKEN else f"{group}={setting.words[group]}"
            for group in self.words
            if group in setting.words and group not in but
        ]
        keys = [key for key in self.keys if key in setting.values and key not in but]
        return ", ".join([*parts, *(f"{key}={written(setting.values[key])}" for key in keys)])

    def order(self, setting: Setting) -> list[tuple[int, float, str]]:
        """Give what settings are sorted by: part after part of their names, numbers as numbers."""
        return [sort_key(setting.get(name)) for name in (*self.words, *self.keys)]


def sort_key(value: Any) -> tuple[int, float, str]:
    """Sort nothing before numbers, and these before words."""
    if value is None:
        return 0, 0.0, ""
    return (1, float(value), "") if is_number(value) else (2, 0.0, written(value))


def group_runs(runs: Sequence[Run]) -> list[Setting]:
    """Put runs together that differ in nothing but the seed."""
    kinds = [(but_seeds(run), run) for run in sorted(runs, key=_seed)]
    alike: dict[str, list[Run]] = {}
    for kind, run in kinds:
        alike.setdefault(kind, []).append(run)
    seeds = {kind: _following(some) for kind, some in alike.items()}
    groups: dict[str, tuple[dict[str, Any], list[Run]]] = {}
    for kind, run in kinds:
        values = {key: value for key, value in run.setting.items() if key not in seeds[kind]}
        groups.setdefault(identity(values, run.data), (values, []))[1].append(run)
    words = _words(runs)
    return [Setting(tuple(group), words(group[0]), values) for values, group in groups.values()]


def _following(runs: Sequence[Run]) -> set[str]:
    """Name the keys that follow `seed` in every run: the seed by another name. One that stays fixed is a choice."""
    keys = {key for run in runs for key in run.setting if key.endswith("seed")}
    return {key for key in keys if all(run.setting.get(key, _seed(run)) == _seed(run) for run in runs)}


def name_settings(settings: Sequence[Setting]) -> Naming:
    """Choose of what the names of settings are made.

    They begin with the algorithm, then data and partition where these differ, then other groups whose options differ
    and do not follow from those. The keys come next that were given by hand and differ; where these do not tell all
    settings apart, few of the others that do.
    """
    groups = dict.fromkeys(group for group in (*_SPOKEN, *(g for s in settings for g in s.words)))
    words = ["algorithm"]
    for group in groups:
        told = [[setting.words.get(name) for name in words] for setting in settings]
        options = [setting.words.get(group) for setting in settings]
        follows = group not in _ALWAYS and _follows(options, told)
        if group not in words and len(set(options)) > 1 and not follows:
            words.append(group)
    by_hand = frozenset(key for setting in settings for run in setting.runs for key in run.written)
    # A group of which nothing is taken is a key too, e.g. `structure: null`.
    keys = {key for setting in settings for key in setting.values} - {*_NAMES, *groups}
    keys = {key for key in keys if len({_text(setting, key) for setting in settings}) > 1}
    given = sorted(keys & by_hand)
    base = [
        (*(setting.words.get(word) for word in words), *(_text(setting, key) for key in given))
        for setting in settings
    ]
    ranked = sorted(keys - set(given), key=lambda key: ("_target_" in key, len(key), key))
    chosen = fewest(base, [[_text(setting, key) for setting in settings] for key in ranked])
    return Naming(tuple(words), (*given, *(ranked[number] for number in chosen)))


def label_settings(settings: Sequence[Setting], naming: Naming) -> list[str]:
    """Name settings, each otherwise: with a number where nothing else tells two apart."""
    labels = [naming.label(setting) for setting in settings]
    return [
        label if labels.count(label) == 1 else f"{label} ({labels[:number].count(label) + 1})"
        for number, label in enumerate(labels)
    ]


def label_runs(runs: Sequence[Run]) -> list[str]:
    """Name runs one by one, by their seeds too where these differ."""
    words = _words(runs)
    settings = [Setting((run,), words(run), {**run.setting, "seed": run.summary["seed"]}) for run in runs]
    return label_settings(settings, name_settings(settings))


def data_sets(settings: Sequence[Setting]) -> list[str]:
    """Name the data sets that settings were run on, each once."""
    return sorted({setting.words.get("data", "?") for setting in settings})


def _follows(options: Sequence[Any], told: Sequence[Sequence[Any]]) -> bool:
    """Whether equal rows have equal options."""
    return len({tuple(row) for row in told}) == len({(*row, o) for row, o in zip(told, options, strict=True)})


def _words(runs: Sequence[Run]) -> Callable[[Run], dict[str, str]]:
    """Give what names the options of a run: Hydra's record, if all runs have one, else what the configuration tells."""
    recorded = all(run.choices for run in runs)
    names = {(run.setting.get("data.name"), run.data) for run in runs}
    ambiguous = {name for name, _ in names if sum(name == other for other, _ in names) > 1}

    def words(run: Run) -> dict[str, str]:
        found = {group: name for group in _TELLING if (name := _told(run.setting, group))}
        if recorded:
            found |= {group: o for group, o in run.choices.items() if not _SILENT.match(group)}
        found |= {
            group: str(run.setting[f"{group}.name"])
            for group in ("algorithm", "data")
            if f"{group}.name" in run.setting
        }
        found.setdefault("algorithm", str(run.summary.get("algorithm") or run.path.name))
        if run.setting.get("data.name") in ambiguous:
            # Folders of images of one's own: different data under one name.
            found["data"] += f" ({_folder(run, runs)})"
        return found

    return words


def _folder(run: Run, runs: Sequence[Run]) -> str:
    """Name the folder of a run's data, with its digest or a number where others of that name hold other data."""
    name = Path(run.data_root).name
    others = [*dict.fromkeys(one.data for one in runs if Path(one.data_root).name == name)]
    return name if len(others) == 1 else f"{name} {run.examples[:7] or others.index(run.data) + 1}"


def _told(setting: Mapping[str, Any], group: str) -> str:
    key = next((key for key in _TELLING[group] if key in setting), "")
    name = str(setting.get(key, ""))
    return option_name(name) if key.endswith("_target_") else name


def _text(setting: Setting, key: str) -> str | None:
    return written(setting.values[key]) if key in setting.values else None


def _seed(run: Run) -> Any:
    return run.summary["seed"]
