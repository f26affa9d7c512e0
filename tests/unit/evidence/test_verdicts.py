"""What the pages of methods tell of a run of which nothing is published."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from fedfeat.errors import ConfigError
from fedfeat.evidence.claims import Claim, Claims, Reading
from fedfeat.evidence.rules import Rule
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


def judged_as(name, values, setting=""):
    rule = Rule("a", "b", 0.0, is_lower=True)
    claim = Claim(name, "g", "c", "s", "", "p", ("s",), (setting,), "global/acc", rule, caveat="mind it")
    numbers = {"a": dict(enumerate(values)), "b": dict.fromkeys(range(len(values)), 0.0)}
    return claim, claim.judged(lambda studies, setting, arm, quantity: numbers[arm])


# By a t test of three seeds p is .002, .033 and .79.
STRONG, WEAK, NONE = [1.0, 1.1, 0.95], [1.0, 1.6, 0.9], [1.0, -1.9, 0.1]


def test_a_decision_that_stands_alone_may_fall_with_many(verdicts):
    """Benjamini and Hochberg: of one p nothing changes; the weak of four has p * 4 / 2, beyond .05."""
    verdicts.__dict__["judged"] = [judged_as("weak", WEAK)]
    assert verdicts.corrected_part() == "1 of 1 tests decide; with the correction these do not: none.\n"
    others = [judged_as("strong", STRONG), judged_as("none", NONE, "10x3"), judged_as("nothing", NONE)]
    verdicts.__dict__["judged"] = [judged_as("weak", WEAK, "10x5"), *others]
    assert "2 of 4 tests decide; with the correction these do not: `weak 10x5`." in verdicts.corrected_part()


def test_two_seeds_are_not_tested(verdicts):
    verdicts.__dict__["judged"] = [judged_as("two", [1.0, 1.1])]
    assert verdicts.corrected_part() == "Nothing is tested yet.\n"


def test_a_verdict_is_not_read_without_its_caveat(verdicts):
    verdicts.__dict__["judged"] = [judged_as("one", STRONG), judged_as("two", NONE)]
    page = verdicts.claims_part()
    assert "- Verdict: **holds** (mind it)\n" in page
    assert verdicts.summary_part().count("holds (mind it) |") == 1
    assert page.count("- Protocol: p\n") == 1
    assert "- Protocol: That of [one](#one).\n" in page


def test_claims_with_a_published_number_have_a_table_of_their_own(verdicts):
    (ours, judged), (other, its) = judged_as("one", STRONG), judged_as("two", NONE)
    assert ours.published == ""
    verdicts.__dict__["judged"] = [(ours, judged), (replace(other, published=".5"), its)]
    rows = {of: verdicts.summary_part(of).count("](claims.md#") for of in ("all", "ours", "papers")}
    assert rows == {"all": 2, "ours": 1, "papers": 1}
    assert "#two) | .5 |" in verdicts.summary_part("papers")
    with pytest.raises(ConfigError, match="of must be one of papers, ours, all, but it is 'mine'"):
        verdicts.summary_part("mine")
