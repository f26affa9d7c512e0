"""The notebook that adds a method: at zero strength it is FedAvg bit for bit, and its rules are those of its types."""

import ast

import pytest
from notebook_runs import Stored, data, printed, run_once

pytestmark = pytest.mark.slow

executed = run_once("add_a_method")


class TestAsStored(Stored):
    NAME = "add_a_method"


def test_at_zero_strength_it_is_fedavg_and_else_not(executed):
    assert printed(executed["zero"]).splitlines() == [
        "strength 0 is FedAvg, bit for bit: True",
        "strength 1 is something else: True",
    ]


def test_a_wrong_strength_is_refused_by_the_types_of_the_notebook(executed):
    assert (
        printed(executed["refused"]).strip() == "algorithm.client.strength must be in [0, inf), but it is -1."
    )


def test_what_it_says_of_the_comparison_holds(executed):
    assert data(executed["compare"], "image/png")
    lines = printed(executed["numbers"]).splitlines()
    lists = {
        line.partition(":")[0]: [ast.literal_eval(f"[{part}") for part in _after(line)] for line in lines
    }
    for anchored, fedavg in zip(lists["anchored"], lists["FedAvg"], strict=True):
        assert min(anchored) > max(fedavg)


def _after(line):
    return [part.partition("]")[0] + "]" for part in line.split("[")[1:]]
