"""``structure.depth=auto``: a warm-up before the first round says how many layers the groups leave shared."""

import json
import shutil
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from cut_runs import lose_end

import fedfeat.commands.auto_depth
from fedfeat.commands import inspect_features as inspection
from fedfeat.features.capture import layer_points
from fedfeat.features.preference import Preferences, total_variance
from fedfeat.models.mlp import mlp
from fedfeat.runs.checkpoint import CheckpointFolder

AUTO = (
    "algorithm=fed2",
    "structure.depth=auto",
    "structure.warmup_epochs=3",
    "partition=n_classes",
    "partition.classes_per_client=2",
    "model.hidden=[12,9,6]",
)
LAYERS = ["fc1", "fc2", "fc3"]


def chosen(run_dir):
    return json.loads((run_dir / "structure.json").read_text())


def summary(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def grouped_layers(run_dir):
    """Layers of which the server's state knows the groups."""
    state = CheckpointFolder(run_dir / "checkpoints").load_latest().server_state
    return sorted({key.split(".")[1] for key in state.group_of_row})


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("finished") / "run"


@pytest.fixture
def finished(cli, small, kept, tmp_path):
    if not kept.exists():
        assert cli(*small, *AUTO, f"hydra.run.dir={kept}").code == 0
    return shutil.copytree(kept, tmp_path / "run")


def test_what_was_found_is_written_down_and_said(cli, small, tmp_path, caplog):
    with caplog.at_level("INFO", "fedfeat"):
        assert cli(*small, *AUTO, "federation.num_rounds=1").code == 0
    found = chosen(tmp_path / "run")
    assert found["layers"] == LAYERS
    tv, depth = found["total_variance"], found["depth"]
    assert len(tv) == 3
    assert found["threshold"] == pytest.approx((min(tv) + max(tv)) / 2)
    assert depth == max(next((i for i, value in enumerate(tv) if value > found["threshold"]), 3), 1)
    assert found["reason"] in caplog.messages
    assert found["reason"].startswith(f"structure.depth=auto: {depth} of 4 layers stay shared; ")
    assert f"(threshold {found['threshold']:.3f}) after 3 epochs of warm-up" in found["reason"]
    if depth < 3:
        assert f"{LAYERS[depth]}, has total variance {tv[depth]:.3f}" in found["reason"]
    assert (tmp_path / "run" / "figures" / "total_variance.png").read_bytes().startswith(b"\x89PNG")
    assert grouped_layers(tmp_path / "run") == [*LAYERS, "fc4"][depth:]


def test_the_counters_begin_with_the_warm_up(finished):
    """Three epochs of everyone's examples through the dense network, which has most of the FLOPs."""
    rows, clients = (pd.read_csv(finished / f"{name}.csv") for name in ("metrics", "clients"))
    first, last = rows.iloc[0], rows.iloc[-1]
    pooled = clients[clients["round"] == 0]["num_examples"].sum()
    assert first["round"] == 0
    assert first["compute/examples"] == chosen(finished)["examples"] == 3 * pooled
    assert first["compute/flops"] == chosen(finished)["flops"]
    trained = {name: last[f"compute/{name}"] - first[f"compute/{name}"] for name in ("examples", "flops")}
    assert 0 < trained["flops"] / trained["examples"] < first["compute/flops"] / first["compute/examples"]


def test_a_second_start_reads_what_the_first_found(finished, cli, small, monkeypatch):
    """No second warm-up, and the same weights as the unbroken run."""
    expected, stamp = summary(finished), (finished / "structure.json").stat().st_mtime_ns
    lose_end(finished, 3)
    monkeypatch.setattr(fedfeat.commands.auto_depth, "Worker", None)
    assert cli(*small, *AUTO).code == 0
    assert summary(finished)["weights_sha256"] == expected["weights_sha256"]
    assert (finished / "structure.json").stat().st_mtime_ns == stamp


def test_what_it_found_is_read_or_refused(finished, cli, small):
    """A torn file is one that somebody has written into: ours are written whole."""
    (finished / "structure.json").write_text('{"depth": ')
    lose_end(finished, 3)
    found = cli(*small, *AUTO)
    assert found.code == 2
    assert "structure.json must say which depth the run has chosen, but it does not: " in found.stderr
    assert "Traceback" not in found.stderr


def test_the_warm_up_is_the_same_every_time_and_leaves_no_trace_in_the_weights(
    finished, cli, small, tmp_path
):
    """A run that is given the chosen depth begins and ends where this one does."""
    depth = chosen(finished)["depth"]
    assert cli(*small, *AUTO, f"hydra.run.dir={tmp_path / 'again'}").code == 0
    assert chosen(tmp_path / "again") == chosen(finished)
    assert cli(*small, *AUTO, f"structure.depth={depth}", f"hydra.run.dir={tmp_path / 'given'}").code == 0
    assert not (tmp_path / "given" / "structure.json").exists()
    found = [summary(tmp_path / name)["weights_sha256"] for name in ("run", "again", "given")]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("tau", [0, 1])
def test_the_extremes_of_tau_split_the_most_and_the_least(tau, cli, small, tmp_path):
    """Nothing exceeds the largest variance, so the last layer alone is split; every layer but one exceeds the least."""
    assert cli(*small, *AUTO, f"structure.tau={tau}").code == 0
    run = tmp_path / "run"
    found = chosen(run)
    tv = found["total_variance"]
    assert found["threshold"] == pytest.approx(max(tv) if tau else min(tv))
    if tau:
        assert found["depth"] == 3
        assert "no hidden layer exceeds the threshold, so only the last layer is split" in found["reason"]
    else:
        # The first layer stays shared in any case: the groups read slices of it.
        assert found["depth"] == (2 if tv.index(min(tv)) == 1 and tv[0] <= tv[1] else 1)
    assert grouped_layers(run) == [*LAYERS, "fc4"][found["depth"] :]
    final = summary(run)["final"]
    assert final["train/loss"] > 0
    assert 0 <= final["global/acc"] <= 1


def test_digits_are_learnt_with_the_depth_that_was_chosen(cli, tmp_path):
    auto = (
        "algorithm=fed2",
        "structure.depth=auto",
        "structure.warmup_epochs=1",
        "partition=iid",
        "trainer=cpu",
    )
    work = (
        "federation.num_clients=4",
        "federation.num_rounds=2",
        "federation.batch_size=16",
        "optimizer.lr=0.05",
    )
    assert cli(*auto, *work, "federation.local_epochs=2").code == 0
    assert chosen(tmp_path / "run")["layers"] == ["conv1", "conv2", "fc1"]
    assert summary(tmp_path / "run")["final"]["global/acc"] > 0.5


def test_its_features_can_be_inspected_and_its_own_figure_stays(finished, capsys):
    figure = finished / "figures" / "total_variance.png"
    before = figure.read_bytes(), (finished / "structure.json").read_bytes()
    inspection.main([str(finished), "--images", "10", "--refit"])
    assert "round 3: agreement" in capsys.readouterr().out
    assert (finished / "figures" / "encoding_map.png").exists()
    assert (figure.read_bytes(), (finished / "structure.json").read_bytes()) == before


@pytest.mark.parametrize("pref_neg", ["clamp", "abs", "keep"])
def test_the_variance_is_that_of_the_runs_diagnostics(pref_neg):
    network = mlp((4,), 3, hidden=[5, 6])
    vectors = tuple(torch.randn(n, 3, generator=torch.Generator().manual_seed(n)) for n in (5, 6, 3))
    points = tuple(layer_points(network))
    worker = SimpleNamespace(
        module=SimpleNamespace(model=network),
        probe=SimpleNamespace(pref_neg=pref_neg),
        preferences=lambda _: Preferences(points, vectors, tuple(torch.ones(len(v)) for v in vectors)),
    )
    expected = [total_variance(one, pref_neg) for one in vectors[:2]]
    assert fedfeat.commands.auto_depth._tv_of_layers(worker, "block") == (["fc1", "fc2"], expected)
