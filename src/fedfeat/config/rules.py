"""Whether a configuration satisfies the table of rules; checked before any work and before torch is imported."""

from collections.abc import Container, Iterator, Mapping
from typing import Any, TypeGuard

from fedfeat.config.known_classes import broken_by_classes
from fedfeat.config.objective import more_is_better
from fedfeat.config.rule_table import KEYS, REQUIRED, RULES
from fedfeat.config.search_path import CONFIGS
from fedfeat.config.spaces import SPACES
from fedfeat.errors import ConfigError

_ABSENT = object()


def check_complete(config: Mapping[str, Any]) -> None:
    """Refuse a resolved configuration without one of the `REQUIRED` keys, as ``~seed`` on the command line leaves it.

    Raises:
        ConfigError: Names the first missing key.
    """
    for key in REQUIRED:
        if _look_up(config, key) is _ABSENT:
            raise ConfigError(f"{key} must be present, but the configuration has no such key.")


def check_presets(config: Mapping[str, Any]) -> None:
    """Refuse what a preset of ``experiment``, ``arm``, ``scale`` or such sets below its group's own name.

    There it is without the line that Hydra wants at its beginning, also where that comes after a byte order mark.

    Raises:
        ConfigError: Names the group.
    """
    for key in config:
        if key not in KEYS and key != SPACES and CONFIGS.joinpath(key).is_dir():
            rule = "name a file that begins with '# @package _global_', without which it sets nothing"
            raise ConfigError.rule(key, rule, config[key])


def check(config: Mapping[str, Any], own_groups: Container[str] = ()) -> None:
    """Refuse a resolved configuration that breaks a rule.

    ``own_groups`` are groups beside ours that it was composed of; each may be a key at the top.

    Raises:
        ConfigError: The first broken rule: key, rule and value in one sentence.
    """
    for rule in RULES:
        value = _look_up(config, rule.key)
        if value is _ABSENT or (value is None and rule.optional):
            continue
        if not rule.test.holds(value):
            raise ConfigError.rule(rule.key, rule.test.text, value)
    for key, text, value in (*_broken_pairs(config), *broken_by_classes(config)):
        raise ConfigError.rule(key, text, value)
    _check_unread_keys(config, own_groups)


def _broken_pairs(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Go through the rules between keys; each has passed its own by now."""
    federation = config.get("federation") or {}
    num_clients, size = federation.get("num_clients"), federation.get("cohort_size")
    held_out = federation.get("held_out") or 0
    if num_clients is not None and held_out >= num_clients:
        yield "federation.held_out", f"be below federation.num_clients ({num_clients})", held_out
    if size is not None and num_clients is not None and size > num_clients - held_out:
        less = f" less federation.held_out ({num_clients - held_out})" if held_out else f" ({num_clients})"
        yield "federation.cohort_size", f"be at most federation.num_clients{less}", size
    if size is not None and federation.get("fraction") is not None:
        yield "federation.fraction", f"be null beside federation.cohort_size ({size})", federation["fraction"]
    metric = federation.get("target_metric")
    if metric is not None and not more_is_better(str(metric)):
        yield "federation.target_metric", "be a metric of which more is better", metric
    if federation.get("stop_at") is not None and federation.get("final_epochs") is not None:
        yield (
            "federation.stop_at",
            "be null beside federation.final_epochs, which come after the last round",
            federation["stop_at"],
        )
    scenario = config.get("scenario") or {}
    if scenario.get("straggler_policy") == "drop" and scenario.get("straggler_fraction") == 1:
        rule = "be below 1 beside scenario.straggler_policy=drop, which would leave nobody"
        yield "scenario.straggler_fraction", rule, scenario["straggler_fraction"]
    epochs, steps = (federation.get(key, _ABSENT) for key in ("local_epochs", "local_steps"))
    if epochs is None and steps is None:
        yield "federation.local_epochs", "be set where federation.local_steps is null", None
    if not {epochs, steps} & {None, _ABSENT}:
        yield "federation.local_steps", f"be null beside federation.local_epochs ({epochs})", steps
    yield from _broken_lengths(config.get("trainer") or {}, federation, scenario)
    yield from _broken_starts(config)


def _broken_lengths(
    trainer: Mapping[str, Any], federation: Mapping[str, Any], scenario: Mapping[str, Any]
) -> Iterator[tuple[str, str, Any]]:
    """Go through the rules between a fit's length and what makes its epochs shorter or counts batches together."""
    limit, together = trainer.get("limit_train_batches"), trainer.get("accumulate_grad_batches") or 1
    for reason in _counted_in_batches(federation, scenario):
        if limit is not None:
            yield "trainer.limit_train_batches", f"be null beside {reason}", limit
        if together > 1:
            yield "trainer.accumulate_grad_batches", f"be 1 beside {reason}", together


def _counted_in_batches(federation: Mapping[str, Any], scenario: Mapping[str, Any]) -> Iterator[str]:
    """Name what makes fits of a number of batches, of which each is a step."""
    if _is_number(steps := federation.get("local_steps")):
        yield f"federation.local_steps ({steps})"
    for key in ("local_epochs", "final_epochs"):
        if _is_number(epochs := federation.get(key)) and epochs % 1:
            yield f"a federation.{key} that is no whole number ({epochs:g})"
    late = scenario.get("straggler_fraction") and scenario.get("straggler_policy") != "drop"
    epochs = federation.get("local_epochs")
    if late and _is_number(epochs) and epochs <= scenario.get("straggler_least", 1):
        yield "stragglers of a part of an epoch, whose scenario.straggler_least is all that there are"


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float)


def _broken_starts(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Go through the rules between the network's weights, what is frozen, its structure and a pool."""
    model = config.get("model") or {}
    given = [f"model.{key}" for key in ("weights", "freeze") if model.get(key)]
    if config.get("structure") and given:
        yield (
            given[0],
            "be left out of networks with groups or levels (structure)",
            model[given[0].partition(".")[2]],
        )
    if model.get("cached") and config.get("pool"):
        yield "model.cached", "be false for a pool, whose networks see other features each", True
    if model.get("cached") and not model.get("freeze"):
        yield "model.cached", "be false where model.freeze is empty", True


def _check_unread_keys(config: Mapping[str, Any], own_groups: Container[str]) -> None:
    """Refuse ``+x`` and ``+federation.x``: no constructor receives them, so nothing else would notice."""
    sections: list[tuple[str, Mapping[str, Any], tuple[str, ...]]] = [("", config, KEYS)]
    for name in ("federation", "scenario"):
        known = tuple(rule.key.partition(".")[2] for rule in RULES if rule.key.startswith(f"{name}."))
        sections.append((f"{name}.", config.get(name) or {}, known))
    for prefix, keys, known in sections:
        for key in keys:
            # A search space is read by fedfeat-tune; no run has a use for it.
            if key not in known and (prefix or key not in own_groups or key == SPACES):
                raise ConfigError.unknown(f"{prefix}{key}", known)


def _look_up(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _ABSENT
        value = value[part]
    return value
