"""fedfeat-tune as a program of its own: real runs, killed, gone on with, cut short; on SLURM too."""

import csv
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
import yaml
from slurm_cluster import Cluster, missing
from waiting import wait_for

from fedfeat.commands.python import accepted
from fedfeat.commands.tune import main
from fedfeat.evidence.processes import LOG, command_of
from fedfeat.runs.directory import experiment_config

TUNE = [sys.executable, "-m", "fedfeat.commands.tune"]
SMALL = [
    "data=digits", "partition=iid", "model=mlp", "model.hidden=[8]", "federation.num_clients=2",
    "federation.local_epochs=null", "federation.local_steps=1", "trainer=cpu", "algorithm=fedavg",
]  # fmt: skip
# By this seed the first two trials have the first rate, the next two the second, at which nothing is learnt.
RATES = ["optimizer.lr=0.1,1e-9", "optimizer.weight_decay=0", "seed=11"]
WORDS = [*SMALL, *RATES, "partition.val_fraction=0.3"]


def environment(root, **more):
    return os.environ | {"FEDFEAT_ROOT": str(root), "OMP_NUM_THREADS": "1", "COLUMNS": "80"} | more


def process_of(folder):
    """The process of the run in a folder."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"hydra.run.dir={folder}".encode() in words:
            return int(place.name)
    return None


def table(path):
    with path.open() as file:
        return [*csv.DictReader(file)]


def trials(folder):
    study = optuna.load_study(storage=f"sqlite:///{folder / 'study.sqlite3'}", study_name="fedfeat")
    return study.get_trials()


@pytest.mark.slow
def test_killed_it_goes_on_two_at_a_time_and_cuts_short_what_is_worse(tmp_path):
    folder = tmp_path / "study"
    # Eight clients, so that a round takes longer than its report does to the study's file.
    words = [word.replace("num_clients=2", "num_clients=8") for word in WORDS]
    command = [*TUNE, *words, "federation.num_rounds=150", "--trials", "4", "--startup", "1", "--warmup", "3",
               "--every", "0.2", "--out", str(folder)]  # fmt: skip
    places = [folder / "trials" / f"000{number}" for number in range(4)]
    first = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: all([*(place / "checkpoints").glob("*.json")] for place in places[:2]), seconds=240)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    os.kill(process_of(places[0]), signal.SIGKILL)  # the other run goes on without its starter
    assert [one.state.name for one in trials(folder)] == ["RUNNING"] * 2
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=900
    )
    assert (done.returncode, done.stderr) == (0, "")
    logs = [(place / LOG).read_text() for place in places]
    assert len(re.findall(r"Resuming after round \d+ of 150", logs[0])) == 1
    assert "Resuming" not in logs[1]
    assert [one.state.name for one in trials(folder)] == ["COMPLETE", "COMPLETE", "PRUNED", "PRUNED"]
    rows = [table(place / "metrics.csv") for place in places]
    assert [int(found[-1]["round"]) for found in rows[:2]] == [150, 150]
    assert all(3 <= int(found[-1]["round"]) < 150 for found in rows[2:])
    for one, found in zip(trials(folder), rows, strict=True):
        assert one.intermediate_values
        assert all(float(found[at]["val/acc"]) == value for at, value in one.intermediate_values.items())
        assert all((place / "checkpoints").is_dir() for place in places)
    check_results(folder, done.stdout)
    # Once more there is nothing to do, and the same is said.
    again = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert again.stdout.splitlines()[-3:] == done.stdout.splitlines()[-3:]


def check_results(folder, printed):
    assert "2 finished, 2 cut short of 4" in printed
    assert [row["optimizer.lr"] for row in table(folder / "trials.csv")] == ["0.1", "0.1", "1e-09", "1e-09"]
    assert (folder / "importance.png").stat().st_size > 10_000
    best = yaml.safe_load((folder / "conf/experiment/tuned.yaml").read_text())
    assert best["optimizer"]["lr"] == 0.1
    (pasted,) = re.findall(r"^  uv run fedfeat (data=.*)$", printed, re.MULTILINE)
    _, expected = accepted(pasted.replace("'", "").split())
    _, found = accepted(["experiment=tuned", f"hydra.searchpath=[file://{folder}/conf]"])
    assert experiment_config(found) == experiment_config(expected)


def test_a_dry_run_prints_the_space_and_the_first_commands_and_leaves_nothing(tmp_path, console, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = console(main, *WORDS, "--dry-run", "--trials", "3", "--jobs", "1")
    assert (code, err) == (0, "")
    assert "0.1 | 1e-09" in out
    commands = [line for line in out.splitlines() if line.startswith("fedfeat hydra.run.dir=")]
    assert [line.rpartition("optimizer.lr=")[2].split()[0] for line in commands] == ["0.1", "0.1", "1e-09"]
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("words", "judged"),
    [
        (["algorithm=ditto"], "personal/acc_weighted"),
        (["algorithm=fedbabu"], "final_all/acc_weighted"),
        (["algorithm=ditto", "federation.target_metric=global/acc"], "global/acc"),
        (["algorithm=ditto", "federation.target_metric=null"], "null"),
        (["algorithm=fedprox"], None),
    ],
)
def test_methods_of_own_models_are_judged_by_these(words, judged, tmp_path, console, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["experiment=digits_10x3", "partition.val_fraction=0.2", *words]
    code, out, _ = console(main, *words, "--dry-run", "--trials", "1")
    assert code == 0
    named = re.findall(r"(?<= federation\.target_metric=)\S+", out.splitlines()[-1])
    assert named == ([judged] if judged else [])


def test_without_validation_data_or_optuna_there_is_one_sentence(tmp_path, console, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = console(main, *SMALL, *RATES)
    assert code == 2
    assert re.fullmatch(r"fedfeat-tune: partition.val_fraction must be above 0 .*, but it is 0.0\.\n", err)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = console(main, *WORDS)
    assert code == 2
    assert (
        err == "fedfeat-tune: fedfeat-tune must have Optuna, which is not installed (uv sync --extra tune).\n"
    )


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("partition.val_fraction=2", "partition.val_fraction must be in [0, 1), but it is 2."),
        ("+optimizer.rho=1", "optimizer.rho must be a known key"),
        ("++seed=1,2", "seed must be one number, which all trials have, but it is '1,2'."),
    ],
)
def test_what_all_trials_would_be_refused_for_is_refused_by_a_dry_run(
    word, said, tmp_path, console, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, out, err = console(main, *WORDS, word, "--dry-run")
    assert (code, out) == (2, "")
    assert err.startswith(f"fedfeat-tune: {said}"), err


def test_by_a_launcher_a_preset_with_axes_of_its_own_is_one_run(cli, tmp_path):
    words = [
        "experiment=digits_10x3",
        "model=mlp",
        "federation.num_rounds=1",
        "federation.local_epochs=0.1",
        "arm=fedavg",
    ]
    command = command_of(tmp_path / "run", words, "basic")
    assert cli(*command[3:]).code == 0
    assert (tmp_path / "run" / "summary.json").exists()
    assert not [*(tmp_path / "run").glob("*/summary.json")]
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["algorithm"]["name"] == "fedavg"


@pytest.mark.slow
def test_failures_are_named_and_two_searches_never_share_a_folder(tmp_path):
    folder = tmp_path / "study"
    words = ["data=cifar10", "data.loader.download=false", f"data.root={tmp_path}/none", *WORDS[1:]]
    command = [*TUNE, *words, "--trials", "9", "--out", str(folder)]
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert re.search(r"trial 2: exit 2: fedfeat: .*cifar10", done.stdout)
    assert [one.state.name for one in trials(folder)][:3] == ["FAIL"] * 3
    assert len(trials(folder)) <= 4
    other = subprocess.run(
        [*TUNE, *WORDS, "--out", str(folder)],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert other.returncode == 2
    assert other.stderr.startswith("fedfeat-tune: --out must be a new folder, or one of the same words ")


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=f"SLURM is not installed: no {', '.join(missing())}")
def test_trials_are_jobs_of_slurm_and_what_is_worse_is_cancelled(tmp_path):
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    folder, cluster = tmp_path / "study", Cluster()
    job = [f"hydra.launcher.{word}" for word in ("cpus_per_task=1", "mem_gb=1", "timeout_min=60")]
    try:
        cluster.start()
        done = subprocess.run(
            [*TUNE, *WORDS, *job, "federation.num_rounds=1500", "--trials", "3", "--startup", "1", "--warmup", "3",
             "--launcher", "submitit_slurm", "--out", str(folder)],
            cwd=tmp_path, env={**environment(tmp_path), **cluster.environment, "FEDFEAT_ROOT": str(tmp_path),
                               "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        wait_for(lambda: not cluster.call("squeue", "-h"), seconds=240)
    finally:
        cluster.stop()
    assert done.returncode == 0, done.stderr
    assert [one.state.name for one in trials(folder)] == ["COMPLETE", "COMPLETE", "PRUNED"]
    assert 3 <= int(table(folder / "trials" / "0002" / "metrics.csv")[-1]["round"]) < 1500
