"""Runs in which nothing is learnt do not end as if something had been."""

import pytest


@pytest.mark.parametrize("executor", ["serial", "vectorized"])
def test_one_example_for_every_client_under_batch_norm_is_refused(cli, tmp_path, executor):
    outcome = cli("data=digits", "data.loader.num_train=4", "data.loader.num_test=40", "partition=iid",
                  "model=digits_cnn", "model.norm=bn", "algorithm=fedavg", "federation.num_clients=4",
                  "federation.num_rounds=1", "trainer=cpu", f"executor={executor}")  # fmt: skip
    assert outcome.code == 2
    assert "partition must give some client at least 2 training examples" in outcome.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_in_which_every_turn_has_failed_is_an_error(cli, small, tmp_path):
    outcome = cli(*small, "optimizer.lr=1e38", "federation.on_client_error=skip", "federation.num_rounds=2")
    assert outcome.code == 2
    assert "At least one client must train a step, but in 2 rounds none has" in outcome.stderr
    assert not (tmp_path / "run/summary.json").exists()


def test_refused_configurations_leave_no_directory(cli, small, tmp_path):
    assert cli(*small, "partition=n_classes", "partition.classes_per_client=30").code == 2
    assert cli(*small, "federation.num_rounds=-1").code == 2
    assert not (tmp_path / "run").exists()
