"""FedFusion through the command line: with groups, resumed, and what it leaves in the run directory."""

import csv
import json

import numpy as np
import pytest

from fedfeat.client import ClientModule
from fedfeat.runs.checkpoint import CheckpointFolder
from fedfeat.runs.observed import read_table

FUSION = ("algorithm=fedfusion", "model.hidden=[8,6]")
GROUPED = (
    *FUSION,
    "algorithm/server@algorithm.server.average=fed2",
    "partition=n_classes",
    "partition.classes_per_client=2",
    "structure.depth=1",
)


def summary(run):
    return json.loads((run / "summary.json").read_text())


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("op", ["conv", "multi", "single"])
def test_a_run_shows_how_features_are_fused(cli, small, tmp_path, op):
    local = ("federation.evaluate_local=true", "federation.target_metric=local_pre_agg/acc_mean")
    targets = "federation.targets=[0.01,1.0]"
    assert cli(*small, *FUSION, *local, targets, f"algorithm.client.op={op}").code == 0
    run = tmp_path / "run"
    name = "global_share" if op == "conv" else "lambda"
    rounds, values = read_table(run / "observed" / f"fusion_{name}.csv")
    assert rounds.tolist() == [0, 1, 2, 3]
    assert values.shape == (4, 1 if op == "single" else 6)
    assert (run / "figures" / f"fusion_{name}.png").stat().st_size > 1000
    metrics = rows(run / "metrics.csv")
    for row, found in zip(metrics, values, strict=True):
        for statistic in ("mean", "std", "min", "max"):
            assert float(row[f"fusion/{name}_{statistic}"]) == pytest.approx(getattr(np, statistic)(found))
    if op != "conv":
        assert (values[0] == 0).all()
        assert (values[3] != 0).any()
    # The metric does not exist before the first round.
    assert metrics[0]["local_pre_agg/acc_mean"] == ""
    clients = [float(row["local_acc"]) for row in rows(run / "clients.csv") if row["round"] == "3"]
    assert float(metrics[3]["local_pre_agg/acc_mean"]) == pytest.approx(np.mean(clients))
    assert "personal/acc_mean" not in metrics[3]
    assert summary(run)["to_target"]["0.01"]["rounds"] == 1
    best = max(float(row["local_pre_agg/acc_mean"]) for row in metrics[1:])
    assert (summary(run)["to_target"]["1.0"] is None) == (best < 1)


COMPOSED = {
    "grouped": (*GROUPED, "structure=grouped", "algorithm.client.op=conv"),
    "trimmed": (*GROUPED, "structure=trimmed", "algorithm.client.op=multi"),
    "stale, with FedProx's term": (
        *FUSION,
        "algorithm/client=fedfusion_fedprox",
        "algorithm.client.mu=0.1",
        "algorithm.server.stale_clients=true",
        "federation.cohort_size=2",
    ),
    "personal head, momentum kept": (
        *FUSION,
        "algorithm.client.personal=[head]",
        "federation.opt_state=keep",
    ),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_an_interrupted_run_ends_as_if_nothing_had_happened(cli, small, tmp_path, monkeypatch, name):
    arguments = (*small, *COMPOSED[name])
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert cli(*arguments, f"hydra.run.dir={whole}").code == 0
    step = ClientModule.training_step

    def failing(self, batch, batch_idx):
        if (broken / "checkpoints" / "000001.json").exists():
            raise RuntimeError("power failure")
        return step(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(ClientModule, "training_step", failing)
        assert cli(*arguments, f"hydra.run.dir={broken}").code != 0
    assert CheckpointFolder(broken / "checkpoints").load_latest().round_idx == 1
    assert cli(*arguments, f"hydra.run.dir={broken}").code == 0
    assert summary(broken)["weights_sha256"] == summary(whole)["weights_sha256"]
    tables = sorted(whole.glob("observed/*.csv"))
    assert bool(tables) == ("personal" not in name)
    for table in (*tables, whole / "clients.csv"):
        assert (broken / table.relative_to(whole)).read_bytes() == table.read_bytes()
    state = CheckpointFolder(whole / "checkpoints").load_latest().server_state
    params = getattr(state.average, "params", {})
    assert params
    assert not any(key.startswith("fusion.frozen") for key in params)


@pytest.mark.parametrize("structure", ["none", "grouped", "trimmed"])
def test_alignment_is_measured_of_fused_features(cli, small, tmp_path, structure):
    groups = (*GROUPED, f"structure={structure}") if structure != "none" else FUSION
    probe = ("diagnostics=alignment", "diagnostics.images_per_class=4", "algorithm.client.op=conv")
    assert cli(*small, *groups, *probe, "federation.num_rounds=1").code == 0
    last = rows(tmp_path / "run" / "metrics.csv")[-1]
    layers = {key.removeprefix("align/tv_") for key in last if key.startswith("align/tv_")}
    # The frozen extractor is another model: its layers are not among them.
    assert not any("frozen" in layer for layer in layers)
    assert {"fc1", "fc2"} <= layers
    assert len(layers) == 3
    assert all(np.isfinite(float(last[f"align/tv_{layer}"])) for layer in layers)


def test_fedavgs_server_averages_fused_networks(cli, small, tmp_path):
    assert cli(*small, "algorithm=fedavg", "algorithm/client=fedfusion", "model.hidden=[8,6]").code == 0
    assert float(rows(tmp_path / "run" / "metrics.csv")[-1]["fusion/lambda_max"]) > 0
