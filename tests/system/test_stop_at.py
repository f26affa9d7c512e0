"""A run ends at its target: after the first evaluated round that is there, once, also after a kill."""

import json

import pandas as pd
import pytest

WORDS = (
    "data=digits", "algorithm=fedavg", "model=mlp", "model.hidden=[8]", "partition=iid", "trainer=cpu",
    "federation.num_clients=2", "federation.num_rounds=12", "federation.eval_every=2", "optimizer.lr=0.1",
)  # fmt: skip


@pytest.fixture
def whole(cli, tmp_path):
    """Metrics of the run that goes on to its end."""
    assert cli(*WORDS, f"hydra.run.dir={tmp_path / 'whole'}").code == 0
    return pd.read_csv(tmp_path / "whole" / "metrics.csv").set_index("round")


def summary(tmp_path):
    return json.loads((tmp_path / "run" / "summary.json").read_text())


def test_it_ends_after_the_first_evaluated_round_that_is_there_with_the_same_numbers(cli, whole, tmp_path):
    target = round(float(whole["global/acc"].iloc[2]) - 1e-4, 5)
    first = int(whole.index[whole["global/acc"] >= target][0])
    assert 0 < first < 12
    assert cli(*WORDS, f"federation.stop_at={target}").code == 0
    stopped = pd.read_csv(tmp_path / "run" / "metrics.csv").set_index("round")
    assert list(stopped.index) == [r for r in whole.index if r <= first]
    columns = [name for name in whole if not name.startswith("time/")]
    pd.testing.assert_frame_equal(stopped[columns], whole.loc[stopped.index, columns])
    assert summary(tmp_path)["stopped"] == first
    assert summary(tmp_path)["final"]["global/acc"] == whole["global/acc"][first]


def test_a_run_that_was_cut_before_its_summary_makes_no_further_round(cli, tmp_path):
    words = (*WORDS, "federation.stop_at=0.3", "federation.checkpoint_every=100")
    assert cli(*words).code == 0
    before, table = summary(tmp_path), (tmp_path / "run" / "metrics.csv").read_text()
    assert before["stopped"] < 12
    (tmp_path / "run" / "summary.json").unlink()
    assert cli(*words).code == 0
    assert summary(tmp_path)["weights_sha256"] == before["weights_sha256"]
    assert summary(tmp_path)["stopped"] == before["stopped"]
    assert (tmp_path / "run" / "metrics.csv").read_text() == table


def test_a_target_that_is_never_met_changes_nothing(cli, whole, tmp_path):
    assert cli(*WORDS, "federation.stop_at=1.0").code == 0
    assert "stopped" not in summary(tmp_path)
    assert len(pd.read_csv(tmp_path / "run" / "metrics.csv")) == len(whole)


def test_the_first_weights_alone_never_end_a_run(cli, tmp_path):
    assert cli(*WORDS, "federation.stop_at=0.001", "federation.eval_every=1").code == 0
    assert summary(tmp_path)["stopped"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["federation.stop_at=1.2"], "be in (0, 1], but it is 1.2"),
        (["federation.stop_at=.5", "federation.final_epochs=1"], "be null beside federation.final_epochs"),
    ],
)
def test_what_cannot_be_is_refused(cli, words, said):
    found = cli(*WORDS, *words)
    assert found.code == 2
    assert f"federation.stop_at must {said}" in found.stderr


def test_clocks_go_on_after_a_cut_and_what_a_target_cost_stands_in_the_table(cli, tmp_path):
    words = (*WORDS, "federation.targets=[0.3]")
    assert cli(*words).code == 0
    table = pd.read_csv(tmp_path / "run" / "metrics.csv")
    parts = table[["time/fit_s", "time/aggregate_s", "time/evaluate_s"]]
    for name in (*parts, "time/total_s"):
        assert table[name].is_monotonic_increasing, name
        assert table[name].iloc[-1] > table[name].iloc[0], name
    assert (table["time/total_s"] >= parts.sum(axis=1) - 1e-6).all()
    there = table[table["global/acc"] >= 0.3].iloc[0]
    columns = {
        "rounds": "round", "bytes": "comm/total_bytes", "up_bytes": "comm/up_bytes", "examples": "compute/examples",
        "seconds": "time/total_s",
    }  # fmt: skip
    found = summary(tmp_path)["to_target"]["0.3"]
    assert found == pytest.approx({cost: there[column] for cost, column in columns.items()})
    assert summary(tmp_path)["seconds"] >= table["time/total_s"].iloc[-1]
    # The rounds are all made: what is started again takes no time of its own.
    (tmp_path / "run" / "summary.json").unlink()
    assert cli(*words).code == 0
    assert summary(tmp_path)["seconds"] >= table["time/total_s"].iloc[-1]
