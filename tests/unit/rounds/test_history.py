"""What is kept of rounds: where the run stops, and what its targets cost."""

import pytest

from fedfeat.rounds import history
from fedfeat.rounds.history import first_history, note
from fedfeat.runs.records import RoundRecord

# Prices of a round, so that no two costs are alike.
COSTS = {"comm/total_bytes": 100.0, "comm/up_bytes": 30.0, "compute/examples": 7.0, "time/total_s": 2.5}


def kept_of(*accuracies, metric="global/acc", target_metric=None, evaluated=True):
    """What is kept of rounds from the initial model's on, with a target of .5 that ends the run."""
    kept = first_history()
    for round_idx, value in enumerate(accuracies):
        metrics = {name: round_idx * price for name, price in COSTS.items()} | {metric: value}
        note(kept, RoundRecord(round_idx, (), metrics, evaluated), [0.5], target_metric, 0.5)
    return kept


@pytest.mark.parametrize(
    ("accuracies", "options", "stopped"),
    [
        ((0.1, 0.4, 0.5), {}, 2),
        ((0.9, 0.4, 0.3), {}, None),  # of the initial model alone
        ((0.1, 0.6), {"evaluated": False}, None),
        ((0.1, 0.6), {"metric": "personal/acc_weighted"}, 1),
        ((0.1, 0.6), {"metric": "val/acc"}, None),
        ((0.1, 0.6), {"metric": "val/acc", "target_metric": "val/acc"}, 1),
        ((0.1, 0.6), {"target_metric": "val/acc"}, None),
    ],
)
def test_a_run_stops_after_the_first_round_that_has_trained_and_is_there(accuracies, options, stopped):
    assert kept_of(*accuracies, **options).get("stopped") == stopped


def test_a_target_costs_what_was_spent_when_it_was_first_met():
    kept = kept_of(0.1, 0.4, 0.6, 0.7)
    costs = {"rounds": 2, "bytes": 200, "up_bytes": 60, "examples": 14, "seconds": 5}
    assert kept["to_target"]["0.5"] == costs
    assert kept["final"]["global/acc"] == 0.7
    assert kept_of(0.9, 0.1)["to_target"]["0.5"]["rounds"] == 0
    assert kept_of(0.1, 0.4)["to_target"] == {}


@pytest.mark.parametrize(
    ("metric", "target_metric"),
    [("val/acc", None), ("personal/val_acc_weighted", "personal/acc_weighted")],
)
def test_the_best_round_on_validation_data_is_the_first_of_equals(metric, target_metric):
    best = kept_of(0.1, 0.6, 0.6, 0.4, metric=metric, target_metric=target_metric)["best_val"]
    assert (best["round"], best[metric], best["comm/total_bytes"]) == (1, 0.6, 100)
    assert kept_of(0.1, 0.6, 0.7, metric=metric, target_metric=target_metric)["best_val"]["round"] == 2


def test_commit_and_machine_that_a_run_goes_on_with_are_the_last_of_its_own(monkeypatch):
    """Also where they are ones that it had before."""
    kept = {"rows": {}}
    for name, expected in (("a", ["a"]), ("b", ["a", "b"]), ("b", ["a", "b"]), ("a", ["b", "a"])):
        monkeypatch.setattr(history, "git_commit", lambda name=name: name)
        kept = history.made_by(kept, {"cpu": name})
        machines = [{"cpu": one} for one in expected]
        assert kept == {"rows": {}, "git_commits": expected, "machines": machines}
