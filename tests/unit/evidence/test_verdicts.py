"""What the pages of methods tell of a run of which nothing is published."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from fedfeat.evidence.claims import Claim, Claims, Reading, Rule
from fedfeat.evidence.verdicts import Verdicts


@pytest.fixture
def verdicts():
    reading = Reading("chosen", ("s",), ("",), "q", ("a",), 0.05)
    rule = Rule("chosen", None, 0.5, is_lower=True)
    claim = Claim("one", "g", "c", "s", "", "p", ("s",), ("",), "last3/global/acc", rule)
    found = Verdicts(None, Claims(reading, (claim,)), Path())
    found.__dict__["chosen"] = "a"
    return found


def run(rounds, **setting):
    metrics = pd.DataFrame({"global/acc": [0.5] * rounds, "personal/acc_mean": [0.5] * rounds})
    return SimpleNamespace(metrics=metrics, setting=setting)


def test_it_is_what_its_first_claim_is_about(verdicts):
    assert verdicts._own("s", "a", run(9)) == "last3/global/acc"


def test_without_a_claim_it_is_its_accuracy(verdicts):
    assert verdicts._own("t", "a", run(5)) == verdicts._own("s", "b", run(5)) == "last5/global/acc"
    assert verdicts._own("t", "a", run(4)) == "global/acc"
    setting = {"federation.target_metric": "personal/acc_mean"}
    assert verdicts._own("t", "a", run(5, **setting)) == "last5/personal/acc_mean"
