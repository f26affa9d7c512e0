"""A run that diverges says so, and no number of it looks as if it had not."""

import csv
import json
import math

import pytest


@pytest.mark.parametrize("executor", ["serial", "vectorized"])
def test_what_is_written_of_a_run_that_has_diverged(cli, small, tmp_path, caplog, executor):
    """A step of 1e20 leaves weights whose logits overflow, and no update fails."""
    outcome = cli(*small, "optimizer.lr=1e20", "model.hidden=[8,8]", "federation.num_rounds=2",
                  "federation.batch_size=64",
                  "federation.evaluate_local=true", "partition.val_fraction=0.2",
                  "federation.on_client_error=skip", f"executor={executor}")  # fmt: skip
    assert outcome.code == 0
    said = [message for message in caplog.messages if "not finite, so training has diverged" in message]
    assert len(said) == 1
    assert "global/loss" in said[0]
    with open(tmp_path / "run/metrics.csv", newline="") as file:
        last = list(csv.DictReader(file))[-1]
    final = json.loads((tmp_path / "run/summary.json").read_text())["final"]
    for name in ("global/loss", "val/loss"):
        assert last[name] == "nan"
        assert math.isnan(final[name])
    assert final["global/acc"] == final["val/acc"] == final["global/client_acc_mean"] == 0
    with open(tmp_path / "run/clients.csv", newline="") as file:
        assert {row["global_loss"] for row in csv.DictReader(file) if row["round"] == "2"} == {"nan"}


def test_validation_takes_no_class_from_a_client(cli, tmp_path):
    """Psi-Net trims to the classes of the training part, and a client is tested on all classes that it was given."""
    outcome = cli("data=digits", "algorithm=psi_net", "federation.num_clients=100", "federation.num_rounds=1",
                  "partition.val_fraction=0.6", "federation.evaluate_local=true", "trainer=cpu",
                  "data.loader.num_train=600", "federation.cohort_size=20")  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    with open(tmp_path / "run/clients.csv", newline="") as file:
        losses = [row["local_loss"] for row in csv.DictReader(file) if row["local_loss"]]
    assert len(losses) == 20
    assert all(math.isfinite(float(loss)) for loss in losses)
