"""Quantities of a run by the names that a report takes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedfeat.errors import ConfigError
from fedfeat.runs.finished import Run
from fedfeat.runs.metrics_table import read_metrics
from fedfeat.runs.quantities import Metric, is_target, meant, measured_numbers, share_of_best


def make(metrics, final=None, published=None, setting=None, **summary):
    table = metrics if isinstance(metrics, pd.DataFrame) else pd.DataFrame(metrics)
    return Run(Path("r"), {"final": final or {}, **summary}, setting or {}, published or {}, table)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([0.0, 9.0, *range(10)], 4.5),
        (range(9), None),
        (range(10), 4.5),
        ([np.nan, *range(9)], None),
        ([np.nan, *range(10)], 4.5),
        (None, None),
    ],
)
def test_accuracy_at_convergence_is_the_mean_of_the_last_ten_rounds(column, expected):
    metrics = {} if column is None else {"local/acc": np.array(column, dtype=np.float64)}
    costs = {"0.9": None, "0.3": {"rounds": 4}}
    published = {"last10/local/acc": 0.7, "local/acc": 0.7}
    measured = measured_numbers(make(metrics, {"local/acc": 0.5}, published, to_target=costs))
    assert measured.pop("last10/local/acc", None) == expected
    assert measured == {"local/acc": 0.5, "to_target/0.3/rounds": 4}


def test_any_number_of_last_rounds_may_be_asked_for():
    run = make({"a": [1.0, 2.0, 4.0]})
    assert measured_numbers(run, ["last2/a", "last4/a", "last1/b"]) == {"a": 4, "last2/a": 3}


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        ("4", None),
        ("5", 0.1),
        ("19.5", 0.1),
        ("2e1", 0.2),
        ("2.0e+1", 0.2),
        ("99", 0.3),
        ("1e6.5", None),
        ("1.2.3", None),
        ("2e", None),
    ],
)
def test_what_a_budget_buys(amount, expected):
    run = make({"round": [0, 1, 2], "comm/total_bytes": [5.0, 20.0, 35.0], "global/acc": [0.1, 0.2, 0.3]})
    name = f"within/bytes/{amount}/global/acc"
    assert measured_numbers(run, [name]).get(name) == expected
    assert measured_numbers(run, ["within/bytes/9/none"]).get("within/bytes/9/none") is None


def test_what_was_not_measured_within_a_budget_is_not_there_and_later_divergence_does_not_count(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("round,comm/total_bytes,align/agreement,final\n0,1,0.2,\n1,2,,\n2,3,nan,0.9\n")
    run = make(read_metrics(path))

    def within(amount, metric):
        return measured_numbers(run, [f"within/bytes/{amount}/{metric}"]).get(
            f"within/bytes/{amount}/{metric}"
        )

    assert within(1, "align/agreement") == within(2, "align/agreement") == 0.2
    assert np.isnan(within(3, "align/agreement"))
    assert (within(2, "final"), within(3, "final")) == (None, 0.9)


def test_a_metric_that_the_last_round_lacks_is_that_of_the_last_which_has_it():
    """Alignment is measured every few rounds."""
    run = make({"round": [0, 1, 2], "align/agreement": [0.2, 0.4, np.nan]}, {"global/acc": 0.5})
    assert measured_numbers(run) == {"global/acc": 0.5, "align/agreement": 0.4}


def test_best_on_validation_has_a_name():
    run = make({}, {"global/acc": 0.5}, best_val={"round": 3, "global/acc": 0.6})
    assert measured_numbers(run) == {"global/acc": 0.5, "best_val/round": 3, "best_val/global/acc": 0.6}


@pytest.mark.parametrize("final", [{}, {"global/loss": float("nan")}, {"global/loss": "nan"}])
def test_a_run_that_has_diverged_is_nan(tmp_path, final):
    """Also one whose summary leaves it out, as those of before did."""
    (tmp_path / "m.csv").write_text("round,global/loss\n0,2.5\n1,3\n2,nan\n")
    found = measured_numbers(make(read_metrics(tmp_path / "m.csv"), final), ["last2/global/loss"])
    assert found == pytest.approx({"global/loss": np.nan, "last2/global/loss": np.nan}, nan_ok=True)


CURVE = {
    "round": [0, 2, 4, 6],
    "global/acc": [0.1, 0.5, 0.77, 0.7],
    "comm/total_bytes": [0, 20, 40, 60],
    "compute/examples": [0, 7, 14, 21],
    "time/total_s": [0.0, 1.0, 2.0, 3.0],
}


@pytest.mark.parametrize(("share", "rounds"), [(0.1, 0), (0.5, 2), (0.64, 2), (0.66, 4), (0.9, 4), (1.0, 4)])
def test_a_share_of_the_own_best_is_reached_in_the_first_round_that_has_it(share, rounds):
    """The best is .77, in round 4; half of it, .385, is there in round 2."""
    expected = {"rounds": rounds, "bytes": rounds * 10, "examples": rounds * 3.5, "seconds": rounds / 2}
    assert share_of_best(make(CURVE), share) == expected
    name = f"to_own_best/{share}/bytes"
    assert measured_numbers(make(CURVE), [name])[name] == rounds * 10


@pytest.mark.parametrize(
    ("target", "rounds"), [("0.1", 0), ("0.101", 2), (".5", 2), ("0.77", 4), ("0.78", None)]
)
def test_what_any_accuracy_took_is_that_of_the_first_round_at_it(target, rounds):
    name = f"to_target/{target}/bytes"
    assert measured_numbers(make(CURVE), [name]).get(name) == (None if rounds is None else rounds * 10)
    assert is_target(name, make(CURVE))


def test_a_target_is_one_of_the_targets_metric_and_of_a_cost_that_was_measured():
    curve, name = CURVE | {"own": [np.inf, 0.2, np.nan, 0.6]}, "to_target/0.6/rounds"
    assert measured_numbers(make(curve, setting={"federation.target_metric": "own"}), [name])[name] == 6
    assert not is_target(name, make(CURVE, setting={"federation.target_metric": "own"}))
    assert not is_target("to_target/0.6/up_bytes", make(CURVE))
    assert not is_target("to_target/6/rounds", make(CURVE))


def test_what_a_run_wrote_of_a_target_comes_before_what_its_table_says():
    run, names = (
        make(CURVE, to_target={"0.5": {"rounds": 3}, "0.7": None}),
        [f"to_target/{target}/rounds" for target in (0.5, 0.7, 0.6)],
    )
    measured = measured_numbers(run, names)
    assert [measured.get(name) for name in names] == [3, None, 4]


def test_the_best_is_that_of_the_targets_metric():
    curve = CURVE | {"personal/acc_weighted": [0.9, 0.1, 0.1, 0.1], "own": [0.0, 0.0, 0.0, 1.0]}
    setting = {"federation.target_metric": "own"}
    assert share_of_best(make(curve, setting=setting), 0.9)["rounds"] == 6
    assert share_of_best(make(curve), 0.9)["rounds"] == 4
    del curve["global/acc"]
    assert share_of_best(make(curve), 0.9)["rounds"] == 0
    assert share_of_best(make({"round": [0.0]}), 0.9) == {}


def test_what_is_not_finite_is_no_best_and_reaches_nothing():
    """The best is 0.8; half of it is there in round 2."""
    curve = CURVE | {"global/acc": [np.inf, 0.5, np.nan, 0.8]}
    assert share_of_best(make(curve), 0.5)["rounds"] == 2
    assert share_of_best(make(curve), 1.0)["rounds"] == 6


def test_what_never_was_a_number_came_nowhere(tmp_path):
    (tmp_path / "m.csv").write_text("round,global/acc,compute/examples\n0,nan,0\n1,nan,7\n")
    found = share_of_best(make(read_metrics(tmp_path / "m.csv")), 0.9)
    assert found == pytest.approx({"rounds": np.nan, "examples": np.nan}, nan_ok=True)


def test_a_metric_is_the_first_that_there_is():
    metric = Metric.parse("personal/acc_mean, global/acc")
    assert metric == Metric("personal/acc_mean or global/acc", ("personal/acc_mean", "global/acc"))
    assert not metric.has_own_name
    assert metric.chosen({"global/acc", "x"}) == "global/acc"
    assert metric.chosen({"global/acc", "personal/acc_mean"}) == "personal/acc_mean"
    assert metric.chosen({}) is None
    named = Metric.parse("best=a,b")
    assert (named.name, named.quantities, named.has_own_name) == ("best", ("a", "b"), True)
    with pytest.raises(ConfigError, match=r"--metric must be names of quantities .* but it is 'a,'"):
        Metric.parse("a,")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("global/ac", "did you mean global/acc?"),
        ("depth", "did you mean structure.depth?"),
        ("zzz", "there are global/acc, structure.depth"),
    ],
)
def test_what_was_meant(name, sentence):
    assert meant(name, ["structure.depth", "global/acc"]) == sentence
