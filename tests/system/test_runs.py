"""Whole runs through the command line."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from cut_runs import lose_end

from fedfeat.loggers.console import ConsoleLogger
from fedfeat.rounds import history
from fedfeat.runs.machine import machine

ROOT = Path(__file__).parents[2]


def summary(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_run_leaves_what_the_contract_names(cli, small, tmp_path, monkeypatch):
    said = {}
    monkeypatch.setattr(ConsoleLogger, "picture", lambda self, name, path: said.update({name: path}))
    assert cli(*small).code == 0
    run = tmp_path / "run"
    assert said == {name: run / "figures" / f"{name}.png" for name in ("overview", "convergence", "split")}
    for name in (
        ".hydra/config.yaml",
        "config.yaml",
        "metrics.csv",
        "clients.csv",
        "summary.json",
        "figures/overview.png",
        "figures/convergence.png",
        "figures/split.png",
    ):
        assert (run / name).stat().st_size > 0, name
    found = summary(run)
    assert set(found) >= {
        "seed", "algorithm", "num_rounds", "final", "best_val", "to_target", "weights_sha256", "config_sha256",
        "versions", "git_commit", "git_commits", "machines", "seconds",
    }  # fmt: skip
    assert found["machines"] == [machine(torch.device("cpu"))]
    metrics = rows(run / "metrics.csv")
    assert [int(row["round"]) for row in metrics] == [0, 1, 2, 3]
    assert len(rows(run / "clients.csv")) == 4 * 4
    assert yaml.safe_load((run / "config.yaml").read_text())["federation"]["num_clients"] == 4


def test_a_run_names_every_commit_under_which_it_went_on(cli, small, tmp_path, monkeypatch):
    found = []
    for commit in "abb":
        monkeypatch.setattr(history, "git_commit", lambda commit=commit: commit)
        assert cli(*small).code == 0
        found.append([summary(tmp_path / "run")[name] for name in ("git_commit", "git_commits")])
        lose_end(tmp_path / "run", 3)
    assert found == [["a", ["a"]], ["b", ["a", "b"]], ["b", ["a", "b"]]]


def test_bytes_examples_and_flops_are_counted(cli, small, tmp_path):
    """MLP 16-8-3: 16 * 8 + 8 + 8 * 3 + 3 = 163 weights of 4 bytes, to and from 2 clients of 15 examples, 3 rounds."""
    assert cli(*small, "federation.cohort_size=2", "federation.local_epochs=2").code == 0
    last = rows(tmp_path / "run" / "metrics.csv")[-1]
    assert float(last["comm/up_bytes"]) == 163 * 4 * 2 * 3
    assert float(last["comm/down_bytes"]) == 163 * 4 * 2 * 3
    assert float(last["comm/total_bytes"]) == 163 * 4 * 2 * 3 * 2
    assert float(last["compute/examples"]) == 15 * 2 * 2 * 3
    # Forward 2 * (16 * 8 + 8 * 3); backward to the weights the same, to the hidden layer 2 * 8 * 3.
    assert float(last["compute/flops"]) == (2 * 152 + 2 * 152 + 2 * 24) * 15 * 2 * 2 * 3


def test_the_same_configuration_gives_the_same_weights(cli, small, tmp_path):
    digests = []
    for name in ("a", "b"):
        assert cli(*small, f"hydra.run.dir={tmp_path / name}").code == 0
        digests.append(summary(tmp_path / name)["weights_sha256"])
    assert cli(*small, "seed=1", f"hydra.run.dir={tmp_path / 'c'}").code == 0
    assert digests[0] == digests[1] != summary(tmp_path / "c")["weights_sha256"]


def test_a_finished_run_started_again_does_nothing(cli, small, tmp_path):
    assert cli(*small).code == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file()}
    again = cli(*small)
    assert again.code == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_fedprox_without_its_term_is_fedavg_bit_for_bit(cli, small, tmp_path):
    digests = []
    for arguments in (("algorithm=fedavg",), ("algorithm=fedprox", "algorithm.client.mu=0")):
        assert cli(*small, *arguments, f"hydra.run.dir={tmp_path / arguments[0].split('=')[1]}").code == 0
        digests.append(summary(tmp_path / arguments[0].split("=")[1])["weights_sha256"])
    assert digests[0] == digests[1]


def test_local_clients_send_nothing_and_keep_their_models(cli, small, tmp_path):
    assert cli(*small, "algorithm=local").code == 0
    last = rows(tmp_path / "run" / "metrics.csv")[-1]
    assert float(last["comm/total_bytes"]) == 0
    assert "global/acc" not in last
    assert 0 <= float(last["personal/acc_worst"]) <= float(last["personal/acc_mean"]) <= 1


def test_centralized_training_sees_all_data_in_one_client(cli, small, tmp_path):
    assert cli(*small, "algorithm=centralized").code == 0
    last = rows(tmp_path / "run" / "metrics.csv")[-1]
    assert float(last["compute/examples"]) == 60 * 3
    assert {int(row["client_id"]) for row in rows(tmp_path / "run" / "clients.csv")} == {0, 1, 2, 3}


def test_kept_momentum_changes_the_run(cli, small, tmp_path):
    keep = [*small, "federation.opt_state=keep"]
    assert cli(*keep, f"hydra.run.dir={tmp_path / 'keep'}").code == 0
    assert cli(*small, f"hydra.run.dir={tmp_path / 'reset'}").code == 0
    kept, reset = (summary(tmp_path / name)["final"] for name in ("keep", "reset"))
    assert kept["global/loss"] != reset["global/loss"]


@pytest.mark.parametrize(
    ("epochs", "examples"),
    # Clients of 15 examples make 2 batches of 8 and 7; half an epoch is 1 step, one and a half are 3.
    [("0.5", 8), ("1.5", 15 + 8), ("2", 30)],
)
def test_local_epochs_may_be_fractions(cli, small, tmp_path, epochs, examples):
    assert cli(*small, f"federation.local_epochs={epochs}", "federation.num_rounds=1").code == 0
    assert float(rows(tmp_path / "run" / "metrics.csv")[-1]["compute/examples"]) == 4 * examples


def test_local_steps_cross_epochs(cli, small, tmp_path):
    steps = ["federation.local_epochs=null", "federation.local_steps=5", "federation.num_rounds=1"]
    assert cli(*small, *steps).code == 0
    assert float(rows(tmp_path / "run" / "metrics.csv")[-1]["compute/examples"]) == 4 * (15 + 15 + 8)


def test_validation_is_reported_under_its_own_name(cli, small, tmp_path):
    assert cli(*small, "partition.val_fraction=0.2").code == 0
    found = summary(tmp_path / "run")
    metrics = rows(tmp_path / "run" / "metrics.csv")
    best = max(float(row["val/acc"]) for row in metrics)
    assert found["best_val"]["val/acc"] == best
    # The last round's test accuracy is reported, never the best one.
    assert found["final"]["global/acc"] == float(metrics[-1]["global/acc"])


def test_clients_own_models_have_a_validation_accuracy_too(cli, small, tmp_path):
    words = ("partition.val_fraction=0.2", "federation.evaluate_local=true", "federation.final_epochs=1")
    own = ("algorithm=ditto", "federation.target_metric=personal/acc_weighted")
    assert cli(*small, *own, *words).code == 0
    metrics = rows(tmp_path / "run" / "metrics.csv")
    values = [float(row["personal/val_acc_weighted"]) for row in metrics]
    best = summary(tmp_path / "run")["best_val"]
    assert (best["round"], best["personal/val_acc_weighted"]) == (values.index(max(values)), max(values))
    for name in ("val/acc", "local_pre_agg/val_acc_mean", "final_all/val_acc_mean"):
        assert metrics[-1][name], name


def test_bf16_channels_last_trains(cli, small, tmp_path):
    assert (
        cli(
            *small, "trainer=cpu_bf16", "model=digits_cnn", "model.hidden=16", "data.loader.shape=[1,8,8]"
        ).code
        == 0
    )
    assert summary(tmp_path / "run")["final"]["train/loss"] > 0


def test_a_multirun_skips_what_is_finished(cli, small, tmp_path):
    sweep = [
        "--multirun",
        *small,
        "seed=0,1",
        f"hydra.sweep.dir={tmp_path / 'sweep'}",
        "hydra.sweep.subdir=${seed}",
    ]
    assert cli(*sweep).code == 0
    stamps = [(tmp_path / "sweep" / seed / "summary.json").stat().st_mtime_ns for seed in "01"]
    assert cli(*sweep).code == 0
    assert [(tmp_path / "sweep" / seed / "summary.json").stat().st_mtime_ns for seed in "01"] == stamps


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--cfg", "job"], ["federation.fraction=0"], ["model=nothing"]]
)
def test_answers_without_torch_come_at_once(arguments, tmp_path):
    """Asserted by what is imported, not by the clock: torch is what takes seconds."""
    code = (
        "import sys, fedfeat.train as t\n"
        "try: t.main()\n"
        "except SystemExit: pass\n"
        "sys.exit(3 if 'torch' in sys.modules or 'pytorch_lightning' in sys.modules else 0)"
    )
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "FEDFEAT_ROOT": str(tmp_path)}
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - start < 15


@pytest.mark.parametrize("where", ["write_config", "_experiment"])
def test_a_disk_that_is_full_before_the_first_round_leaves_no_process_and_no_lock(
    cli, small, tmp_path, monkeypatch, where
):
    from fedfeat.commands import assembly
    from fedfeat.executors.forked.processes import ProcessExecutor
    from fedfeat.runs import directory

    seen, start = [], ProcessExecutor.start

    def noted(executor):
        start(executor)
        seen.extend(child.pid for child in executor._children)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    words = [*small, "executor=processes", "executor.num_processes=3"]
    monkeypatch.setattr(ProcessExecutor, "start", noted)
    with monkeypatch.context() as patched:
        patched.setattr(directory if where == "write_config" else assembly, where, full)
        outcome = cli(*words)
    assert outcome.code != 0
    assert "No space left" in outcome.stderr
    assert len(seen) == 2
    for pid in seen:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert cli(*words).code == 0
