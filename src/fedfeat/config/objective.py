"""The metric that a run is judged by, and the one whose number it gives to Hydra's optimizers."""

import re
from collections.abc import Collection, Container, Mapping
from difflib import get_close_matches
from typing import Any

from fedfeat.errors import ConfigError

AUTO = "auto"
COSTS = {
    "rounds": "round",
    "bytes": "comm/total_bytes",
    "up_bytes": "comm/up_bytes",
    "examples": "compute/examples",
    "seconds": "time/total_s",
}
"""What reaching something costs, and the column of metrics.csv in which it stands."""
_LESS = re.compile(rf"loss|distance|failed|(_std|_s|bytes|flops|{'|'.join(COSTS)})$")
_OWN = ("personal", "local_pre_agg", "final_all")
_OVER_CLIENTS = tuple(f"acc_{ending}" for ending in ("mean", "weighted", "std", "worst", "p10"))
_SERVERS, _FURTHER = ("val", "global"), ("_acc", "_loss")
"""Families in which a server half may have metrics of further models, such as ``global/cohort_mean_acc``."""
_FROM_START = ("personal", "comm", "compute", "time")
"""Families of which the evaluation before the first round has all names that the run ever has."""
# Of other families, not all names are known before the run.
_NAMES = {
    "val": ("acc", "loss"),
    "global": ("acc", "loss", *(f"client_{name}" for name in _OVER_CLIENTS)),
    **dict.fromkeys(_OWN, (*_OVER_CLIENTS, *(f"val_{name}" for name in _OVER_CLIENTS))),
}
_MEASURED = {
    "val": ("partition", "val_fraction", "partition.val_fraction above 0"),
    "local_pre_agg": ("federation", "evaluate_local", "federation.evaluate_local true"),
    "final_all": ("federation", "final_epochs", "federation.final_epochs set"),
    "align": ("diagnostics", "_target_", "diagnostics=alignment"),
}
_LIKENESS = 0.8
"""From which on an unknown family is a misspelt one, if what follows is a name of that: globl/acc, not own/acc."""


def more_is_better(name: str) -> bool:
    """Whether a method is better by more of a quantity: not by losses, distances, spreads and what something costs."""
    return not _LESS.search(name.rpartition("/")[2])


def check_objective(config: Mapping[str, Any]) -> None:
    """Refuse names of metrics that a run of this configuration cannot have.

    Raises:
        ConfigError: No metric is called so, or it is not measured.
    """
    target = (config.get("federation") or {}).get("target_metric")
    if target is not None:
        _check(config, "federation.target_metric", "null", target)
    _check(config, "objective", AUTO, config["objective"])


def _check(config: Mapping[str, Any], key: str, default: str, name: str) -> None:
    family, _, rest = name.partition("/")
    # Other families may be a method's own.
    meant = family if family in _NAMES else "".join(get_close_matches(family, _NAMES, 1, _LIKENESS))
    known = _NAMES.get(meant, ())
    further = family in _SERVERS and rest.endswith(_FURTHER)
    if known and (rest in known) != (family == meant) and not further:
        raise ConfigError.rule(key, f"be {default} or one of {_names(meant, known)}", name)
    for needed in (family, rest.partition("_")[0]):
        section, setting, how = _MEASURED.get(needed, ("", "", ""))
        if section and not (config.get(section) or {}).get(setting):
            raise ConfigError.rule(key, f"be measured ({how} does so)", name)


def will_come(name: str, first: Collection[str]) -> bool:
    """Whether a metric may still come that the evaluation before the first round lacks.

    Of the server's model it does so only where there is none yet, or where it is of a further model; metrics of local
    fits, of a last pass and of neurons come with later rounds.

    Args:
        name: The metric.
        first: Those of that evaluation.
    """
    family = name.partition("/")[0]
    if family in _SERVERS and any(other.startswith(f"{family}/") for other in first):
        return name.endswith(_FURTHER)
    return family not in _FROM_START


def judged_by(metrics: Container[str], target_metric: str | None = None) -> str | None:
    """Name what a run is judged by among its metrics, None where it has nothing of the kind.

    That is ``federation.target_metric`` alone where it is set, else the accuracy of the server's model, else that of
    the clients' own.
    """
    names = (target_metric,) if target_metric else ("global/acc", "personal/acc_weighted")
    return next((name for name in names if name in metrics), None)


def validated_by(metrics: Container[str], target_metric: str | None = None) -> str | None:
    """Name what a run is chosen by among its metrics on validation data, None where it has none.

    Where ``federation.target_metric`` is of clients' own models, that is the same of their validation examples;
    otherwise the server's model decides, and without it the clients' own.
    """
    family, _, target = (target_metric or "").partition("/")
    asked = f"{family}/val_{target.removeprefix('val_')}" if family in _OWN else f"val/{target}"
    names = (asked, "val/acc", "personal/val_acc_weighted")
    return next((name for name in names if name in metrics), None)


def objective_of(
    final: Mapping[str, float], objective: str, target_metric: str | None = None
) -> tuple[str, float] | None:
    """Give the metric that a run returns, by name and value; None where ``auto`` finds none.

    Args:
        final: The metrics of the last round.
        objective: A name, or ``auto``: validation accuracy where there is any, for an optimizer that looks at test data
            fits them; without it what ``to_target`` goes by, which is test accuracy.
        target_metric: ``federation.target_metric``.

    Raises:
        ConfigError: There is no metric of that name.
    """
    if objective == AUTO:
        name = validated_by(final, target_metric) or judged_by(final, target_metric)
        return None if name is None else (name, final[name])
    if objective in final:
        return objective, final[objective]
    rule = f"be {AUTO} or a metric of the last round ({', '.join(sorted(final)) or 'which has none'})"
    raise ConfigError.rule("objective", rule, objective)


def _names(family: str, known: tuple[str, ...]) -> str:
    return ", ".join(f"{family}/{name}" for name in known)
