"""Every row of the configuration's table of rules."""

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml

from fedfeat.errors import ConfigError
from fedfeat.rules import RULES, check

REFUSED = [
    ("seed", -1, "an integer of at least 0"),
    ("seed", 1.0, "an integer of at least 0"),
    ("seed", True, "an integer of at least 0"),
    ("seed", None, "an integer of at least 0"),
    ("name", "", "a non-empty text"),
    ("group", 3, "a non-empty text"),
    ("debug", 1, "true or false"),
    ("debug", "yes", "true or false"),
    ("resume", "always", "one of auto, never"),
    ("resume", None, "one of auto, never"),
    ("federation.num_clients", 0, "an integer of at least 1"),
    ("federation.held_out", -1, "an integer of at least 0"),
    ("federation.held_out", 0.5, "an integer of at least 0"),
    ("federation.num_rounds", -1, "an integer of at least 0"),
    ("federation.cohort_size", 0, "an integer of at least 1"),
    ("federation.cohort_size", 2.0, "an integer of at least 1"),
    ("federation.fraction", 0, "in (0, 1]"),
    ("federation.fraction", 1.01, "in (0, 1]"),
    ("federation.fraction", True, "in (0, 1]"),
    ("federation.fraction", "0.5", "in (0, 1]"),
    ("federation.local_epochs", 0, "in (0, inf)"),
    ("federation.local_epochs", float("inf"), "in (0, inf)"),
    ("federation.local_steps", 0, "an integer of at least 1"),
    ("federation.local_steps", 1.5, "an integer of at least 1"),
    ("federation.batch_size", 0, "an integer of at least 1"),
    ("federation.opt_state", "drop", "one of reset, keep"),
    ("federation.straggler_fraction", 1.0, "in [0, 1)"),
    ("federation.straggler_policy", "wait", "one of partial, drop"),
    ("federation.on_client_error", "ignore", "one of raise, skip"),
    ("federation.eval_every", 0, "an integer of at least 1"),
    ("federation.eval_batch_size", None, "an integer of at least 1"),
    ("federation.evaluate_local", 0, "true or false"),
    ("federation.checkpoint_every", 0, "an integer of at least 1"),
    ("federation.ram_budget_mb", 0, "in (0, inf)"),
    ("federation.targets", [0.5, 1.5], "a list in which each must be in (0, 1]"),
    ("federation.targets", 0.5, "a list in which each must be in (0, 1]"),
    ("federation.target_metric", "", "a non-empty text"),
    ("optimizer.lr", 0.0, "in (0, inf)"),
    ("optimizer.lr", float("nan"), "in (0, inf)"),
    ("optimizer.momentum", 1, "in [0, 1)"),
    ("optimizer.weight_decay", -1e-4, "in [0, inf)"),
    ("schedule.gamma", 0.0, "in (0, 1]"),
    ("schedule.floor", -0.1, "in [0, 1]"),
    ("schedule.every", 0, "an integer of at least 1"),
    ("schedule.warmup", -1, "an integer of at least 0"),
    ("trainer.accelerator", 1, "a non-empty text"),
    ("trainer.devices", 0, "a number of devices"),
    ("trainer.devices", [], "a number of devices"),
    ("trainer.devices", True, "a number of devices"),
    ("trainer.precision", "fp8", "one of transformer-engine"),
    ("trainer.precision", True, "one of transformer-engine"),
    ("trainer.gradient_clip_val", 0, "in (0, inf)"),
    ("trainer.gradient_clip_algorithm", "l2", "one of norm, value"),
    ("trainer.strategy", 2, "a non-empty text"),
    ("trainer.num_threads", 0, "an integer of at least 1"),
    ("trainer.deterministic", "warn", "true or false"),
    ("trainer.channels_last", None, "true or false"),
    ("trainer.compile", "false", "true or false"),
    ("partition.alpha", 0, "in (0, inf)"),
    ("partition.power", -1.0, "in (0, inf)"),
    ("partition.classes_per_client", 0, "an integer of at least 1"),
    ("partition.shards_per_client", 0, "an integer of at least 1"),
    ("partition.min_size", -1, "an integer of at least 0"),
    ("partition.val_fraction", 1.0, "in [0, 1)"),
    ("partition.cap", 1, "true or false"),
    ("partition.distinct", "no", "true or false"),
    ("data.loader.download", "maybe", "true or false"),
    ("algorithm.client.personal", "head", "a list in which each must be a non-empty text"),
    ("algorithm.client.personal", [1], "a list in which each must be a non-empty text"),
    ("algorithm.client.mu", -0.1, "in [0, inf)"),
    ("algorithm.client.op", "add", "one of conv, multi, single"),
    ("algorithm.client.lambda_init", "half", "in (-inf, inf)"),
    ("algorithm.client.conv_init", "zero", "one of default, average"),
    ("algorithm.client.conv_bias", 1, "true or false"),
    ("algorithm.client.concat", "global", "one of global_first, local_first"),
    ("algorithm.client.cache_eg", "auto", "true or false"),
    ("algorithm.client.softmax_scope", "some", "one of all, present_classes, kept_groups"),
    ("algorithm.server.weighting", "equal", "one of samples, uniform"),
    ("algorithm.server.pairing", "none", "one of presence, all"),
    ("algorithm.server.group_weighting", "equal", "one of samples, uniform, class_count"),
    ("algorithm.server.ema", 1.0, "in [0, 1)"),
    ("algorithm.server.eval_eg", "next", "one of prev, self"),
    ("algorithm.server.stale_clients", 0, "true or false"),
    ("algorithm.server.average.weighting", "equal", "one of samples, uniform"),
    ("algorithm.server.average.pairing", "none", "one of presence, all"),
    ("algorithm.server.average.group_weighting", "equal", "one of samples, uniform, class_count"),
    ("structure.groups", 0, "an integer of at least 1"),
    ("structure.layer_unit", "layer", "one of block, conv"),
    ("structure.width_policy", "round", "one of nearest, ceil, floor, uneven"),
    ("structure.boundary", "full", "one of slice, dense"),
    ("structure.norm_shared", "gn", "one of bn, gn1, none"),
    ("structure.norm_group", "gn1", "one of gn, bn, none"),
    ("structure.separate", 1, "true or false"),
    ("structure.trim", "yes", "true or false"),
    ("structure.warmup_epochs", 0, "an integer of at least 1"),
    ("structure.tau", 1.5, "in [0, 1]"),
    ("diagnostics.every", 0, "an integer of at least 1"),
    ("diagnostics.images_per_class", 0, "an integer of at least 1"),
    ("diagnostics.pref_at", "after", "one of post_act, pre_act"),
    ("diagnostics.pref_reduce", "mean", "one of product_then_mean, mean_then_product"),
    ("diagnostics.pref_score", "score", "one of logit, prob"),
    ("diagnostics.pref_neg", "zero", "one of clamp, abs, keep"),
]

ACCEPTED = [
    ("seed", 0),
    ("federation.num_rounds", 0),
    ("federation.cohort_size", None),
    ("federation.fraction", 1),
    ("federation.local_epochs", 0.5),
    ("federation.batch_size", None),
    ("federation.targets", []),
    ("federation.straggler_fraction", 0),
    ("optimizer.momentum", 0),
    ("schedule.gamma", 1.0),
    ("trainer.devices", "auto"),
    ("trainer.devices", -1),
    ("trainer.devices", [0, 2]),
    ("trainer.precision", 32),
    ("trainer.gradient_clip_val", None),
    ("partition.alpha", None),
    ("partition.val_fraction", 0.0),
    ("algorithm.server.weighting", "uniform"),
    ("model.width", "left to the constructor"),
    ("published", {"global/acc": 0.9}),
]


def nested(key, value):
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


@pytest.mark.parametrize(("key", "value", "text"), REFUSED)
def test_a_broken_rule_is_refused_in_one_sentence(key, value, text):
    ending = ".*, but it is " + re.escape(repr(value)) + r"\.$"
    with pytest.raises(ConfigError, match="^" + re.escape(f"{key} must be {text}") + ending):
        check(nested(key, value))


@pytest.mark.parametrize(("key", "value"), ACCEPTED)
def test_a_good_value_passes(key, value):
    check(nested(key, value))


def test_the_table_has_each_key_once_and_every_row_is_tried():
    keys = [rule.key for rule in RULES]
    assert len(set(keys)) == len(keys)
    assert set(keys) == {key for key, _, _ in REFUSED}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.key)
def test_null_is_allowed_exactly_where_it_is_optional(rule):
    if rule.optional:
        check(nested(rule.key, None))
    else:
        with pytest.raises(ConfigError, match=re.escape(rule.key)):
            check(nested(rule.key, None))


@pytest.mark.parametrize(
    ("federation", "sentence"),
    [
        (
            {"num_clients": 3, "cohort_size": 4},
            "federation.cohort_size must be at most federation.num_clients (3), but it is 4.",
        ),
        (
            {"num_clients": 3, "held_out": 3},
            "federation.held_out must be below federation.num_clients (3), but it is 3.",
        ),
        (
            {"num_clients": 3, "held_out": 1, "cohort_size": 3},
            "federation.cohort_size must be at most federation.num_clients less federation.held_out (2), but it is 3.",
        ),
        (
            {"cohort_size": 2, "fraction": 0.5},
            "federation.fraction must be null beside federation.cohort_size (2), but it is 0.5.",
        ),
        (
            {"local_epochs": None, "local_steps": None},
            "federation.local_epochs must be set where federation.local_steps is null, but it is None.",
        ),
        (
            {"local_epochs": 1, "local_steps": 5},
            "federation.local_steps must be null beside federation.local_epochs (1), but it is 5.",
        ),
        (
            {"target_metric": "local_pre_agg/acc_mean", "evaluate_local": False},
            "federation.target_metric must be measured: federation.evaluate_local=true does so, but it is "
            "'local_pre_agg/acc_mean'.",
        ),
    ],
)
def test_rules_between_keys(federation, sentence):
    with pytest.raises(ConfigError) as caught:
        check({"federation": federation})
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "federation",
    [
        {"num_clients": 3, "cohort_size": 3, "fraction": None},
        {"num_clients": 3, "held_out": 0, "cohort_size": 3},
        {"num_clients": 3, "held_out": 2, "cohort_size": 1},
        {"cohort_size": None, "fraction": None},
        {"local_epochs": 1, "local_steps": None},
        {"local_epochs": None, "local_steps": 1},
        {"target_metric": "local_pre_agg/acc_mean", "evaluate_local": True},
        {"target_metric": "global/acc", "evaluate_local": False},
    ],
)
def test_good_pairs_pass(federation):
    check({"federation": federation})


def test_a_key_of_the_federation_that_nothing_reads_is_refused():
    sentence = (
        r"^federation\.nu must be a known key, but there is none of that name; known there: num_clients, "
    )
    with pytest.raises(ConfigError, match=sentence):
        check({"federation": {"num_clients": 3, "nu": 1}})


def test_a_key_at_the_top_that_nothing_reads_is_refused():
    sentence = r"^nothing must be a known key, but there is none of that name; known there: name, group, seed"
    with pytest.raises(ConfigError, match=sentence):
        check({"seed": 0, "nothing": {"deep": 1}})


def test_every_key_of_the_default_federation_is_known():
    text = (Path(__file__).parents[2] / "configs" / "federation" / "default.yaml").read_text()
    check({"federation": yaml.safe_load(text)})


def test_precisions_are_lightnings():
    from lightning_fabric.connector import _PRECISION_INPUT  # here, for it imports torch

    known = [value for group in get_args(_PRECISION_INPUT) for value in get_args(group)]
    assert len(known) >= 10
    for value in known:
        check({"trainer": {"precision": value}})


def test_torch_is_not_imported():
    code = "import sys, fedfeat.rules; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
