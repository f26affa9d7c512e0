"""Verdicts are functions of the numbers alone."""

import math
from contextlib import nullcontext

import pytest
import yaml

from fedfeat.errors import ConfigError
from fedfeat.evidence.campaign import Study
from fedfeat.evidence.claims import Claim, Reading, overall
from fedfeat.evidence.claims_file import read_claims
from fedfeat.evidence.intervals import Interval, difference
from fedfeat.evidence.rules import Prediction, Rule

MORE = Rule("a", "b", 0.01, is_lower=True)
LESS = Rule("a", "b", 0.01, is_lower=False)


@pytest.mark.parametrize(
    ("found", "more", "less"),
    [
        (Interval(0.05, 0.02, 0.08, 3), "holds", "does not hold"),
        (Interval(0.005, 0.002, 0.009, 3), "does not hold", "holds"),
        (Interval(0.02, 0.0, 0.04, 3), "undecided", "undecided"),
        (Interval(0.02, 0.01, 0.03, 3), "undecided", "undecided"),  # it touches the bound
        (Interval(0.05, 0.04, 0.06, 2), "undecided", "undecided"),
        (Interval(math.inf, 30.0, math.inf, 3), "holds", "does not hold"),
        (Interval(math.inf, -5.0, math.inf, 3), "undecided", "undecided"),
        (Interval(math.nan, math.nan, math.nan, 3), "undecided", "undecided"),
        (None, "not run", "not run"),
    ],
)
def test_a_rule_is_decided_by_the_whole_interval(found, more, less):
    assert MORE.verdict(found) == more
    assert LESS.verdict(found) == less


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ({"": "holds"}, "holds"),
        ({"x": "does not hold", "y": "does not hold"}, "does not hold"),
        (
            {"x": "holds", "y": "does not hold", "z": "undecided"},
            "holds with x; does not hold with y; undecided with z",
        ),
        ({"x": "holds", "y": "does not hold"}, "holds only with x"),
        ({"x": "holds", "y": "undecided"}, "holds with x; undecided with y"),
        ({"x": "undecided", "y": "not run"}, "undecided with x; not run with y"),
        ({"x": "not run", "y": "not run"}, "not run"),
        ({"x": "holds", "y": "does not hold", "z": "does not hold"}, "holds only with x"),
        ({"x": "undecided", "y": "does not hold"}, "does not hold with y; undecided with x"),
    ],
)
def test_settings_are_joined(verdicts, expected):
    assert overall(verdicts) == expected


NUMBERS = {
    ("x", "a"): {0: 0.9, 1: 0.91, 2: 0.92},
    ("x", "b"): {0: 0.5, 1: 0.51, 2: 0.52},
    ("y", "a"): {0: 0.3, 1: 0.31, 2: 0.32},
    ("y", "b"): {0: 0.5, 1: 0.51, 2: 0.52},
}


def values(studies, setting, arm, quantity):
    assert (studies, quantity) == (("s",), "global/acc")
    return NUMBERS.get((setting, arm), {})


def claim(rule, settings=("x", "y")):
    return Claim("id", "group", "claim", "source", "", "protocol", ("s",), settings, "global/acc", rule)


def test_a_claim_is_judged_in_every_setting():
    judged = claim(Rule("a", "b", 0.0, is_lower=True)).judged(values)
    assert judged.verdict == "holds only with x"
    assert judged.decided["x"].found.mean == pytest.approx(0.4)
    assert judged.decided["x"].numbers == [NUMBERS["x", "a"], NUMBERS["x", "b"]]
    alone = claim(Rule("a", None, 0.89, is_lower=True), ("x",)).judged(values)
    assert alone.decided["x"].found.mean == pytest.approx(0.91)
    assert alone.verdict == "undecided"  # .91 +- .0248 holds the bound
    absent = claim(Rule("a", "c", 0.0, is_lower=True), ("x",)).judged(values)
    assert (absent.decided["x"].found, absent.verdict) == (None, "not run")


@pytest.mark.parametrize("numbers", [[0.5, 0.6], [0.5, math.nan, 0.6], [math.inf] * 3, []])
def test_what_too_few_finite_numbers_say_is_no_test(numbers):
    rule = Rule("a", None, 0.0, is_lower=True)
    assert math.isnan(rule.decided(lambda arm, quantity: dict(enumerate(numbers)), "q").p_value)
    tested = rule.decided(lambda arm, quantity: dict(enumerate([0.5, 0.6, 0.7])), "q")
    # t is .6 / (.1 / 3 ** .5) = 10.39 of two degrees of freedom.
    assert tested.p_value == pytest.approx(0.00913, abs=1e-5)


ORDERED = Prediction("acc", ("a", "b", "c", "d", "e", "f"))


def over_arms(order, seeds=3):
    """Give numbers whose means have an order, and arms' letters as what predicts it."""

    def numbers(arm, quantity):
        mean = float(ORDERED.arms.index(arm)) if quantity == "agreement" else float(order.index(arm))
        return {seed: mean + 0.1 * (seed - 1) for seed in range(seeds if arm == "f" else 3)}

    return numbers


@pytest.mark.parametrize(
    ("order", "rho", "p", "verdict"),
    [
        ("abcdef", 1.0, 2 / 720, "holds"),
        ("fedcba", -1.0, 2 / 720, "does not hold"),
        # 1 - 6 * (sum of squared differences of ranks) / (6 * 35); five swaps of neighbours and no change are so near.
        ("abcdfe", 1 - 6 * 2 / 210, 12 / 720, "holds"),
        ("abcdfe"[::-1], 6 * 2 / 210 - 1, 12 / 720, "does not hold"),
        ("badcfe", 1 - 6 * 6 / 210, 42 / 720, "undecided"),
    ],
)
def test_a_prediction_is_decided_by_the_order_of_arms(order, rho, p, verdict):
    found = ORDERED.decided(over_arms(order), "agreement")
    assert found.found.rho == pytest.approx(rho)
    assert found.p_value == found.found.p_value == pytest.approx(p)
    assert found.verdict == verdict
    assert "over a, b, c, d, e, f the rank correlation of `x` with `acc`" in ORDERED.sentence("x")


def test_a_prediction_takes_arms_of_three_seeds():
    # Five arms are left, in one order: 2 of 120.
    found = ORDERED.decided(over_arms("fabcde", seeds=2), "agreement")
    assert found.found == (pytest.approx(1.0), pytest.approx(2 / 120), 5)
    nothing = ORDERED.decided(lambda arm, quantity: {}, "agreement")
    assert (nothing.found, nothing.verdict) == (None, "not run")
    alike = ORDERED.decided(lambda arm, quantity: {0: 1.0, 1: 1.0, 2: 1.0}, "agreement")
    assert (alike.verdict, math.isnan(alike.p_value)) == ("undecided", True)


def test_the_reading_is_the_first_that_is_nowhere_far_below_the_best():
    def chosen(margin, *order):
        return Reading("r", ("s",), ("x", "y"), "global/acc", order, margin).chosen(values)

    assert chosen(0.3, "b", "a") == "a"  # b is .4 below under x, a .2 below under y
    assert chosen(0.5, "b", "a") == "b"
    assert chosen(0.05, "a") == "a"
    assert chosen(0.3, "a", "c") is None  # c has no runs yet
    assert chosen(0.1, "a", "b") is None  # each is far below the other in one of the two


def test_a_reading_needs_three_seeds_and_may_be_just_so_far_below():
    reading = Reading("r", ("s",), ("x",), "q", ("a",), 0.0)
    assert reading.chosen(lambda *_: {0: 0.9, 1: 0.9}) is None
    assert reading.chosen(lambda *_: {0: 0.9, 1: 0.9, 2: 0.9}) == "a"


def test_a_reading_of_which_a_run_diverged_is_not_chosen():
    numbers = {"a": {0: 0.9, 1: math.nan, 2: 0.9}, "b": {0: 0.5, 1: 0.5, 2: 0.5}}
    reading = Reading("r", ("s",), ("x",), "global/acc", ("a", "b"), 0.05)
    assert reading.chosen(lambda studies, setting, arm, quantity: numbers[arm]) == "b"
    numbers["b"] = numbers["a"]
    assert reading.chosen(lambda studies, setting, arm, quantity: numbers[arm]) is None


@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_claim_of_which_a_run_diverged_is_undecided_with_four_seeds_too(lost):
    numbers = {"a": dict.fromkeys(range(4), 0.9), "b": dict.fromkeys(range(4), 0.5)}
    rule = Rule("a", "b", 0.0, is_lower=True)
    judge = claim(rule, ("x",)).judged
    assert judge(lambda studies, setting, arm, quantity: numbers[arm]).verdict == "holds"
    for seed in (3, 4):  # which both have, and one alone
        assert judge(lambda studies, setting, arm, quantity: numbers[arm]).verdict == "holds"
        before, numbers[lost] = numbers[lost], numbers[lost] | {seed: math.nan}
        assert judge(lambda studies, setting, arm, quantity: numbers[arm]).verdict == "undecided"
        numbers[lost] = before


CLAIM = {
    "id": "one", "group": "g", "claim": "c", "source": "s", "published": "", "protocol": "p", "studies": ["s"],
    "quantity": "global/acc", "rule": {"arm": "a", "against": "b", "more_than": 0},
}  # fmt: skip
READING = {"name": "r", "studies": ["s"], "settings": [""], "quantity": "q", "order": ["a"], "margin": 0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stuides": ["s"]}, "claims[0].stuides"),
        ({"published": None}, "claims[0].published must have a value or be left out, but it is None."),
        ({"studies": "s"}, "claims[0].studies must be a list of words, but it is 's'."),
        ({"settings": "10x3"}, "claims[0].settings must be a list of words, but it is '10x3'."),
        ({"settings": []}, "claims[0].settings must be left out or name one"),
        ({"studies": []}, "claims[0].studies must be left out or name one"),
        (
            {"rule": {"arm": "a", "against": "a", "less_than": 1}},
            "claims[0].rule.against must be another arm",
        ),
        (
            {"rule": {"arm": "a", "more_than": "much"}},
            "claims[0].rule.more_than must be a number, but it is 'much'.",
        ),
        (
            {"rule": {"arm": "a", "more_than": math.nan}},
            "claims[0].rule.more_than must be a number, but it is nan.",
        ),
        ({"rule": "a"}, "claims[0].rule must hold keys with values, but it is 'a'."),
        ({"asked_after": "no"}, "claims[0].asked_after must be true or false, but it is 'no'."),
        ({"rule": {"arm": "a"}}, "more_than and less_than"),
        ({"rule": {"arm": "a", "more_than": 0, "less_than": 1}}, "more_than and less_than"),
        ({"rule": {"arm": "a", "above": 0}}, "claims[0].rule.above"),
        (
            {"quantity": "to_target/0.5/rounds", "rule": {"arm": "a", "against": "b", "less_than": 9}},
            "claims[0].rule must have against, and 0 as its bound",
        ),
        ({"rule": {"predicts": "acc"}}, "claims[0].rule must have arms"),
        ({"rule": {"arms": ["a"]}}, "claims[0].rule must have predicts"),
        (
            {"rule": {"predicts": "acc", "arms": ["a", "b", "c", "d"]}},
            "claims[0].rule.arms must be at least 5, each named once",
        ),
        (
            {"rule": {"predicts": "acc", "arms": [*"abcdee"]}},
            "claims[0].rule.arms must be at least 5, each named once",
        ),
        ({"rule": {"predicts": "acc", "arms": [*"abcde"], "more_than": 0}}, "claims[0].rule.more_than"),
        (
            {"quantity": "to_target/0.5/rounds", "rule": {"predicts": "acc", "arms": [*"abcde"]}},
            "claims[0].rule must have against",
        ),
        # Of a run that never came there it is known from below alone: it could be less than nothing.
        (
            {"quantity": "to_target/0.5/rounds", "rule": {"arm": "a", "less_than": 9}},
            "claims[0].rule must have against",
        ),
    ],
)
def test_a_claim_that_cannot_be_decided_is_refused(tmp_path, change, said):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({"reading": READING, "claims": [CLAIM | change]}))
    with pytest.raises(ConfigError) as error:
        read_claims(path)
    assert said in str(error.value)


def test_a_file_of_claims_is_read(tmp_path):
    path = tmp_path / "claims.yaml"
    one = CLAIM | {"claim": "c\n d", "rule": {"arm": "a", "against": "b", "less_than": 1}}
    path.write_text(yaml.safe_dump({"reading": READING, "claims": [one]}))
    rule = Rule("a", "b", 1.0, is_lower=False)
    assert read_claims(path).claims == (
        Claim("one", "g", "c d", "s", "", "p", ("s",), ("",), "global/acc", rule),
    )
    late = one | {"claim": "c.", "published": ".5", "asked_after": True}
    path.write_text(
        yaml.safe_dump({"reading": READING, "claims": [late, late | {"id": "two", "asked_after": False}]})
    )
    ours, papers = read_claims(path).claims
    assert (ours.sentence, papers.sentence) == ("c (asked after the runs).", "c.")
    assert (ours.is_papers, papers.is_papers) == (False, True)
    path.write_text(
        yaml.safe_dump({"reading": READING, "claims": [{k: v for k, v in one.items() if k != "published"}]})
    )
    with pytest.raises(ConfigError, match="have published"):
        read_claims(path)


def test_a_claim_without_its_rule_is_refused(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(
        yaml.safe_dump({"reading": READING, "claims": [{k: v for k, v in CLAIM.items() if k != "rule"}]})
    )
    with pytest.raises(ConfigError, match="have rule"):
        read_claims(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file must hold keys with values, but it is None."),
        ("claims: []", "the file must have reading, but it is ['claims']."),
        ("reading: {}\nclaims: []", "reading must have name, studies, settings, quantity, order, margin"),
        ("reading: {nmae: r}\nclaims: []", "reading.nmae must be a known key"),
        ("claims: {a: [}", "must be a readable YAML file"),
        ("claims: []\nclaims: []", "must name claims once in one place, but line 2 names it again."),
    ],
)
def test_a_file_that_holds_no_claims_is_refused_in_one_sentence(tmp_path, text, said):
    (tmp_path / "claims.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_claims(tmp_path / "claims.yaml")
    assert said in str(error.value)


def test_an_id_names_one_claim(tmp_path):
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump({"reading": READING, "claims": [CLAIM, CLAIM]}))
    with pytest.raises(
        ConfigError, match=r"claims\[1\]\.id must be that of one claim alone, but it is 'one'\."
    ):
        read_claims(tmp_path / "claims.yaml")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"studies": ["s", "t"]}, "claims[0].studies must name studies of the campaign, but it is 't'"),
        (
            {"settings": ["10x4"]},
            "claims[0].settings must name settings of the study, but it is '10x4'; did you mean 10x3",
        ),
        (
            {"rule": {"arm": "a", "against": "c", "more_than": 0}},
            "claims[0].rule must name arms of the study, but it is 'c'",
        ),
    ],
)
def test_what_a_claim_names_is_in_the_campaign(tmp_path, change, said):
    """Without a look there it would be told as not run."""
    study = Study("s", (), {"a": (), "b": ()}, {"10x3": ()}, {"": ()}, (0,))
    reading = READING | {"settings": ["10x3"]}
    node = {"reading": reading, "claims": [CLAIM | {"settings": ["10x3"]} | change]}
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(node))
    with pytest.raises(ConfigError) if said else nullcontext() as error:
        read_claims(tmp_path / "claims.yaml", {"s": study})
    assert said is None or said in str(error.value)


@pytest.mark.parametrize("key", ["studies", "settings", "order"])
def test_a_reading_is_chosen_from_something(tmp_path, key):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({"reading": READING | {key: []}, "claims": [CLAIM]}))
    with pytest.raises(ConfigError, match=rf"reading\.{key} must be left out or name one"):
        read_claims(path)


def test_numbers_at_the_bound_are_beyond_it_by_no_rounding():
    """.3 - .2, .5 - .4 and .7 - .6 are .1 but for rounding."""
    found = difference({0: 0.3, 1: 0.5, 2: 0.7}, {0: 0.2, 1: 0.4, 2: 0.6})
    assert found.high < 0.1
    for is_lower in (True, False):
        assert Rule("a", "b", 0.1, is_lower).verdict(found) == "undecided"
