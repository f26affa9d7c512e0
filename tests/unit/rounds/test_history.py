"""What is kept of rounds: where the run stops, and what its targets cost."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from fedfeat.rounds import history
from fedfeat.rounds.history import History, settle_tables
from fedfeat.runs.records import RoundRecord

# Prices of a round, so that no two costs are alike.
COSTS = {"comm/total_bytes": 100.0, "comm/up_bytes": 30.0, "compute/examples": 7.0, "time/total_s": 2.5}


def kept_of(*accuracies, metric="global/acc", target_metric=None, evaluated=True):
    """What is kept of rounds from the initial model's on, with a target of .5 that ends the run."""
    kept = History()
    for round_idx, value in enumerate(accuracies):
        metrics = {name: round_idx * price for name, price in COSTS.items()} | {metric: value}
        kept.note(RoundRecord(round_idx, (), metrics, evaluated), [0.5], target_metric, 0.5)
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
    assert kept_of(*accuracies, **options).stopped == stopped


def test_a_target_costs_what_was_spent_when_it_was_first_met():
    kept = kept_of(0.1, 0.4, 0.6, 0.7)
    costs = {"rounds": 2, "bytes": 200, "up_bytes": 60, "examples": 14, "seconds": 5}
    assert kept.to_target["0.5"] == costs
    assert kept.final["global/acc"] == 0.7
    assert kept_of(0.9, 0.1).to_target["0.5"]["rounds"] == 0
    assert kept_of(0.1, 0.4).to_target == {}


@pytest.mark.parametrize(
    ("metric", "target_metric"),
    [("val/acc", None), ("personal/val_acc_weighted", "personal/acc_weighted")],
)
def test_the_best_round_on_validation_data_is_the_first_of_equals(metric, target_metric):
    best = kept_of(0.1, 0.6, 0.6, 0.4, metric=metric, target_metric=target_metric).best_val
    assert (best["round"], best[metric], best["comm/total_bytes"]) == (1, 0.6, 100)
    assert kept_of(0.1, 0.6, 0.7, metric=metric, target_metric=target_metric).best_val["round"] == 2


def test_commit_and_machine_that_a_run_goes_on_with_are_the_last_of_its_own(monkeypatch):
    """Also where they are ones that it had before."""
    kept = History(rows={"a": 1})
    for name, expected in (("a", ["a"]), ("b", ["a", "b"]), ("b", ["a", "b"]), ("a", ["b", "a"])):
        monkeypatch.setattr(history, "git_commit", lambda name=name: name)
        kept.goes_on({"cpu": name})
        machines = [{"cpu": one} for one in expected]
        assert kept == History(rows={"a": 1}, git_commits=expected, machines=machines)


def test_what_a_checkpoint_of_an_earlier_version_has_is_read():
    """One began without machines, and one had a part that is gone."""
    assert History.stored({"rows": {"a": 2}, "gone": 1, "seconds": 2.5}) == History({"a": 2}, seconds=2.5)
    kept = kept_of(0.1, 0.6, 0.7)
    assert History.stored(json.loads(json.dumps(asdict(kept)))) == kept


def test_a_round_without_what_the_best_was_chosen_by_is_none():
    """Its cohort had no validation examples: neither does it win by another number, nor is what comes after it new."""
    kept, name = History(), "local_pre_agg/val_acc_mean"
    for round_idx, found in enumerate(
        [{"val/acc": 0.1}, {"val/acc": 0.5, name: 0.4}, {"val/acc": 0.9}, {"val/acc": 0.6, name: 0.3}]
    ):
        record = RoundRecord(round_idx, (), {**dict.fromkeys(COSTS, 0.0), **found}, True)
        kept.note(record, [], "local_pre_agg/acc_mean", None)
    assert (kept.best_val["round"], kept.best_val[name]) == (1, 0.4)


class NoCheckpoints:
    def rounds(self):
        return []


def settled(run_dir, last, kept, repair=True):
    settle_tables(run_dir, last, kept, SimpleNamespace(evaluates=lambda _: True), NoCheckpoints(), repair)
    return kept.repaired


def test_of_several_repairs_all_are_said(tmp_path):
    metrics, clients = tmp_path / "metrics.csv", tmp_path / "clients.csv"
    metrics.write_text("round,x\n0,1\n3,1\n")
    clients.write_text("round,x\n0,1\n3,1\n")
    kept = History(rows={"metrics.csv": 4, "clients.csv": 4})
    assert settled(tmp_path, 3, kept) == {"metrics.csv": [1, 2], "clients.csv": 2}
    head, *rows = metrics.read_text().splitlines()
    fields = dict.fromkeys(head.split(","), "")
    metrics.write_text("\n".join([head, *rows, ",".join({**fields, "round": "5"}.values())]) + "\n")
    clients.write_text("round,x\n0,1\n3,1\n5,1\n")
    kept.rows = {"metrics.csv": 6, "clients.csv": 4}
    assert settled(tmp_path, 5, kept) == {"metrics.csv": [1, 2, 4], "clients.csv": 3}


def test_a_repair_whose_start_was_killed_is_known_from_the_table(tmp_path):
    (tmp_path / "metrics.csv").write_text("round,x\n0,1\n2,1\n")
    settled(tmp_path, 2, History(rows={"metrics.csv": 3}))
    assert settled(tmp_path, 2, History(rows={"metrics.csv": 3}), repair=False) == {"metrics.csv": [1]}
