"""Conditions and their schemas judge alike, whatever the value."""

import math
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from fedfeat.config.annotations import condition
from fedfeat.config.conditions import (
    BOOL,
    INTEGER,
    TEXT,
    Count,
    NotNegative,
    Share,
    any_of,
    integer,
    interval,
    list_of,
    one_of,
)
from fedfeat.config.rule_table import RULES

CONDITIONS = {
    "interval": interval("(0, 1]"),
    "half open": interval("[0.5, inf)"),
    "integer": integer(2),
    "any integer": INTEGER,
    "one of": one_of("a", 1, None, "1"),
    "bool": BOOL,
    "text": TEXT,
    "list": list_of(integer(0)),
    "lists": list_of(list_of(one_of("a"))),
    "any of": any_of(integer(1), one_of("auto", -1), text="be so"),
    **{
        str(declared): condition(declared)
        for declared in (
            *(int, float, bool, str, list, dict, type(None), list[Count], tuple[int, str], tuple[float, ...]),
            *(dict[str, Share], Count | None, Literal["a", 1, True], int | Literal["all"], list[int] | str),
            Annotated[float, interval("[0, 1)"), interval("[0.25, 2]")],
            NotNegative | None,
        )
    },
}
# JSON knows no whole number that is none, and has no number that is not finite.
NUMBERS = st.integers(-3, 3) | st.floats(-2, 2).filter(lambda x: not x.is_integer())
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "a", "1", "all", "auto"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.parametrize("name", CONDITIONS)
@settings(max_examples=200, deadline=None)
@given(value=VALUES)
def test_a_condition_and_its_schema_judge_alike(name, value):
    rule = CONDITIONS[name]
    assert Draft7Validator(dict(rule.schema)).is_valid(value) == rule.holds(value)


def test_ends_are_those_of_the_text():
    assert interval("(0, 1]").schema == {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    assert interval("[0.5, inf)").schema == {"type": "number", "minimum": 0.5}
    assert not interval("[0, inf)").holds(math.inf)


def test_every_rule_of_the_table_has_a_schema():
    assert [rule.key for rule in RULES if not rule.test.schema] == []


def test_conditions_can_be_in_unions():
    assert hash(interval("[0, 1]")) is not None
    assert Annotated[float, interval("[0, 1]")] | None
