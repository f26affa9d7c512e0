"""Every row of the configuration's table of rules."""

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml
from rule_rows import ACCEPTED, REFUSED

from fedfeat.config.rules import RULES, check
from fedfeat.errors import ConfigError


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
    ],
)
def test_rules_between_keys(federation, sentence):
    with pytest.raises(ConfigError) as caught:
        check({"federation": federation})
    assert str(caught.value) == sentence


TWO = {"accumulate_grad_batches": 2}


def test_parts_of_epochs_have_no_batches_of_one_step():
    check({"federation": {"local_epochs": 2}, "scenario": {"straggler_fraction": 0.5}, "trainer": TWO})
    with pytest.raises(
        ConfigError, match=r"^trainer.accumulate_grad_batches must be 1 beside stragglers of a part"
    ):
        check({"federation": {"local_epochs": 1}, "scenario": {"straggler_fraction": 0.5}, "trainer": TWO})
    with pytest.raises(
        ConfigError, match=r"^trainer.accumulate_grad_batches must be 1 beside a federation.final_epo"
    ):
        check({"federation": {"final_epochs": 0.5}, "trainer": TWO})


@pytest.mark.parametrize(
    ("federation", "trainer", "sentence"),
    [
        ({"local_steps": 5}, {"limit_train_batches": 2}, "null beside federation.local_steps (5)"),
        ({"local_steps": 5}, {"accumulate_grad_batches": 2}, "1 beside federation.local_steps (5)"),
        (
            {"local_epochs": 0.5},
            {"accumulate_grad_batches": 2},
            "1 beside a federation.local_epochs that is no whole number (0.5)",
        ),
        ({"local_epochs": 2}, {"accumulate_grad_batches": 2, "limit_train_batches": 2}, None),
        (
            {"local_epochs": 1.5},
            {"limit_train_batches": 2},
            "null beside a federation.local_epochs that is no whole number (1.5)",
        ),
        (
            {"local_epochs": 1, "final_epochs": 0.5},
            {"limit_train_batches": 2},
            "null beside a federation.final_epochs that is no whole number (0.5)",
        ),
        ({"local_steps": 5}, {"accumulate_grad_batches": 1, "limit_train_batches": None}, None),
    ],
)
def test_epochs_that_are_made_shorter_are_counted_in_epochs(federation, trainer, sentence):
    """Lightning would end after as many epochs as five steps of whole epochs are."""
    config = {"federation": {"local_epochs": None, "local_steps": None} | federation, "trainer": trainer}
    if sentence is None:
        check(config)
    else:
        with pytest.raises(
            ConfigError,
            match=rf"^trainer\.{next(iter(trainer))} must be {re.escape(sentence)}, but it is 2\.$",
        ):
            check(config)


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
    text = (Path(__file__).parents[3] / "configs" / "federation" / "default.yaml").read_text()
    check({"federation": yaml.safe_load(text)})


def test_precisions_are_lightnings():
    from lightning_fabric.connector import _PRECISION_INPUT  # here, for it imports torch

    known = [value for group in get_args(_PRECISION_INPUT) for value in get_args(group)]
    assert len(known) >= 10
    for value in known:
        check({"trainer": {"precision": value}})


def test_torch_is_not_imported():
    code = "import sys, fedfeat.config.rules; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
