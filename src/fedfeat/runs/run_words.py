"""What a person calls a run and looks for it by: its name, kind, tags, and the few facts that runs are filtered by."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedfeat.config.objective import judged_by, validated_by
from fedfeat.runs.directory import fixes_numbers, key_of
from fedfeat.runs.finished import published_numbers
from fedfeat.runs.text import option_name

LONGEST_NAME = 128
"""Characters of a run's name, as W&B has it."""
# What the first words of a name tell, and presets, which the keys within them do.
_TOLD = ("algorithm", "arm", "data", "partition", "seed", "experiment", "sweep", "debug")
_SECTIONS = {
    "groups": "structure.groups",
    "depth": "structure.depth",
    "num_clients": "federation.num_clients",
    "cohort_size": "federation.cohort_size",
    "num_rounds": "federation.num_rounds",
    "local_epochs": "federation.local_epochs",
    "lr": "optimizer.lr",
    "seed": "seed",
}
COST_METRICS = ("comm/total_bytes", "compute/examples", "compute/flops", "time/total_s")
_OUTCOMES = (
    "global/acc",
    "personal/acc_mean",
    "personal/acc_worst",
    "global/client_acc_worst",
    "global/client_acc_mean",
    "local_pre_agg/acc_mean",
    "final_all/acc_mean",
    "align/agreement",
    "global/loss",
    "train/loss",
)


@dataclass(frozen=True)
class RunWords:
    """What tells a run from others.

    Attributes:
        label: Method, data, partition, swept keys, keys given by hand, seed; or the name that was given by hand.
        kind: ``run``, ``sweep`` or ``debug``.
        tags: Folder of its preset (the paper), the preset, arm, scale.
        facts: What a person filters by: ``method``, ``data``, ``partition``, ``model``, ``groups``, ``depth`` and so
            on; ``setting`` is what all seeds of one experiment have in common: the label without the seed, the network
            and the preset; and ``published`` what a paper has for it, by metric.
    """

    label: str | None = None
    kind: str = "run"
    tags: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


def words_of(
    config: Mapping[str, Any],
    choices: Mapping[str, str | None],
    overrides: Sequence[str],
    swept: Collection[str],
) -> RunWords:
    """Describe a run.

    Args:
        config: The resolved configuration.
        choices: Option of each of Hydra's groups; what it lacks, the configuration's classes tell.
        overrides: ``key=value`` words that it was started with.
        swept: Keys that have several values in its sweep.
    """
    facts = _facts(config, choices)
    first = [str(facts[key]) for key in ("method", "data", "partition") if facts.get(key)]
    given = [word for word in overrides if _tells(word)]
    keys = sorted(given, key=lambda word: (key_of(word) not in swept, word))
    setting = [*first, *(word.lstrip("+~") for word in keys)]
    by_hand = any(key_of(word) == "name" for word in overrides)
    label = config["name"] if by_hand else _joined(setting, f"seed={config['seed']}")
    option = {group: choices.get(group) for group in ("experiment", "arm", "scale", "debug", "sweep")}
    kind = "debug" if option["debug"] else "sweep" if swept or option["sweep"] else "run"
    published = published_numbers(config)
    told = [str(value) for value in (facts.get("model"), option["experiment"]) if value]
    facts |= {"setting": _joined([*first, *told, *setting[len(first) :]]), "preset": option["experiment"]}
    facts |= {"published": published} if published else {}
    known = {key: value for key, value in facts.items() if value is not None}
    return RunWords(label[:LONGEST_NAME], kind, _tags(option), known)


def headline(metrics: Collection[str], target_metric: str | None = None) -> tuple[str, ...]:
    """Choose the nine metrics that, with the round, are a run's summary: five outcomes, then what it cost.

    Args:
        metrics: The names that a run has.
        target_metric: ``federation.target_metric``.
    """
    judged = [by(metrics, target_metric) for by in (judged_by, validated_by)]
    outcomes = dict.fromkeys(name for name in (*judged, *_OUTCOMES) if name and name in metrics)
    costs = [name for name in COST_METRICS if name in metrics]
    return (*list(outcomes)[: 9 - len(costs)], *costs)


def _facts(config: Mapping[str, Any], choices: Mapping[str, str | None]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "method": _at(config, "algorithm.name") or choices.get("algorithm"),
        "data": _at(config, "data.name") or choices.get("data"),
        "partition": choices.get("partition") or _class_name(config, "partition"),
        "model": choices.get("model") or _class_name(config, "model"),
    }
    facts |= {name: _at(config, key) for name, key in _SECTIONS.items()}
    if facts["depth"] is not None and facts["groups"] is None:
        facts["groups"] = "one per class"
    return facts


def _at(config: Mapping[str, Any], key: str) -> Any:
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _class_name(config: Mapping[str, Any], section: str) -> str | None:
    return option_name(str(_at(config, f"{section}._target_") or "")) or None


def _tells(word: str) -> bool:
    """Whether a word says more than the first words of a name do; a list of arms is more than its method."""
    key = key_of(word)
    if key == "arm":
        return "," in word
    return key.partition("@")[0] not in _TOLD and fixes_numbers(key)


def _joined(parts: Sequence[str], *last: str) -> str:
    """Join parts; where that is too long, digits of a digest stand for those before ``last``, from the end."""
    kept, more = list(parts), list[str]()
    digest = hashlib.sha256(", ".join(parts).encode()).hexdigest()[:8]
    while len(text := ", ".join([*kept, *more, *last])) > LONGEST_NAME and len(kept) > 1:
        kept, more = kept[:-1], [f"... {digest}"]
    return text


def _tags(option: Mapping[str, str | None]) -> tuple[str, ...]:
    preset = option["experiment"] or ""
    folder = preset.rpartition("/")[0]
    usual = {"arm": "none", "scale": "paper", "debug": None}
    more = [f"{group}={option[group]}" for group in usual if option[group] not in (None, usual[group])]
    return tuple(tag[:64] for tag in (folder, preset, *more) if tag)
