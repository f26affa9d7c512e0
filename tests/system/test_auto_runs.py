"""Runs under `executor=auto`, the default: what fixed their numbers at the first start does so at every later one."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from fedfeat.executors import auto, choice
from fedfeat.rounds.experiment import Experiment

# Twenty clients of a tiny network: a cohort that is stacked.
LARGE = ("federation.num_clients=20", "data.loader.num_train=320", "federation.num_rounds=4")
KILLED = """
import os, signal, sys
from fedfeat import train
from fedfeat.{module} import {owner}
original, calls = {owner}.{name}, []
def deadly(*arguments):
    calls.append(None)
    if len(calls) == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments)
{owner}.{name} = deadly
train.main()
"""
# Just before: what fixes the numbers is kept, the first round begins, the second checkpoint is written.
MOMENTS = {
    "before the record": ("executors.choice", "Choice", "write", 1),
    "before the first round": ("rounds.experiment", "Experiment", "begin", 1),
    "after the first round": ("runs.checkpoint", "CheckpointFolder", "save", 2),
}


def weights(run):
    return json.loads((run / "summary.json").read_text())["weights_sha256"]


def record(run):
    return json.loads((run / "executor.json").read_text())


@pytest.fixture
def ends(cli, small, tmp_path):
    """Run to the end in a directory and give the weights' digest."""

    def call(name, *words):
        outcome = cli(*small, *LARGE, f"hydra.run.dir={tmp_path / name}", *words)
        assert outcome.code == 0, outcome.stderr
        return weights(tmp_path / name)

    return call


@pytest.fixture
def cut(cli, small, tmp_path, monkeypatch):
    """Run until the second round is saved."""

    def call(name, *words):
        save, rounds = Experiment._save, []

        def stops(self, *arguments):
            save(self, *arguments)
            rounds.append(None)
            if len(rounds) == 2:
                raise RuntimeError("cut")

        with monkeypatch.context() as patch:
            patch.setattr(Experiment, "_save", stops)
            outcome = cli(*small, *LARGE, f"hydra.run.dir={tmp_path / name}", *words)
        assert "cut" in outcome.stderr
        assert not (tmp_path / name / "summary.json").exists()

    return call


@pytest.mark.slow
def test_the_record_outlives_another_rule_and_decides_the_numbers(ends, cut, tmp_path, monkeypatch):
    stacked, one_by_one = ends("stacked", "executor=vectorized"), ends("serial", "executor=serial")
    assert stacked != one_by_one  # else nothing here would tell them apart
    assert not (tmp_path / "stacked" / "executor.json").exists()
    assert ends("whole") == ends("again") == stacked
    cut("cut")
    monkeypatch.setattr(choice, "STACKED_CLIENTS", 10**9)
    assert ends("cut") == stacked
    assert record(tmp_path / "cut") == record(tmp_path / "whole")
    assert ends("new") == one_by_one
    assert record(tmp_path / "new")["stacked"] is False


@pytest.mark.parametrize("executor", ["serial", "vectorized"])
def test_a_run_that_began_under_another_executor_ends_with_its_weights(executor, ends, cut, tmp_path):
    expected = ends("whole", f"executor={executor}")
    cut("cut", f"executor={executor}")
    assert ends("cut") == expected
    assert record(tmp_path / "cut")["why"] == f"the run began with executor={executor}"


@pytest.mark.slow
def test_other_cores_and_another_executor_change_no_bit_of_what_runs_one_by_one(
    ends, cut, tmp_path, monkeypatch
):
    words = ("executor.among=[processes]",)
    expected = ends("whole", *words)
    assert expected == ends("serial", "executor=serial")
    monkeypatch.setattr(auto, "_WORTH_FORKING", 0.0)
    monkeypatch.setattr(auto, "num_cores", lambda: 1)
    cut("cut", *words)
    monkeypatch.setattr(auto, "num_cores", lambda: 3)
    assert ends("cut", *words) == expected
    cut("other", *words)
    kept = record(tmp_path / "other")
    assert ends("other", "executor=serial") == expected
    assert record(tmp_path / "other") == kept


def test_threads_are_those_of_the_first_start(ends, cut, tmp_path, monkeypatch):
    """As of a network whose steps are worth threads, on a machine with three cores and then on another."""
    before, seen = torch.get_num_threads(), []
    monkeypatch.setattr("fedfeat.clients.host._FLOPS_WORTH_THREADS", 0.0)
    monkeypatch.setattr("fedfeat.clients.host._AT_START", (3, None))
    one = ("federation.cohort_size=1",)
    cut("cut", *one)
    assert record(tmp_path / "cut")["num_threads"] == 3
    monkeypatch.setattr("fedfeat.clients.host._AT_START", (2, None))
    begin = Experiment.begin
    monkeypatch.setattr(
        Experiment, "begin", lambda self: (seen.append(torch.get_num_threads()), begin(self))[1]
    )
    ends("cut", *one)
    ends("several", "federation.cohort_size=2")
    torch.set_num_threads(before)
    assert seen == [3, 1]


def test_a_damaged_record_is_refused_in_a_sentence(ends, cut, cli, small, tmp_path):
    cut("cut")
    (tmp_path / "cut" / "executor.json").write_text('{"stacked": tr')
    outcome = cli(*small, *LARGE, f"hydra.run.dir={tmp_path / 'cut'}")
    assert outcome.code == 2
    assert "executor.json must say how the run's turns are computed" in outcome.stderr
    assert "\n" not in outcome.stderr.strip()


def test_clients_that_cannot_be_stacked_run_one_by_one_and_the_record_says_why(ends, tmp_path):
    words = ("algorithm=fedhenn", "algorithm.server.rad_size=12")
    assert ends("auto", *words) == ends("serial", "executor=serial", *words)
    found = record(tmp_path / "auto")
    assert found["stacked"] is False
    assert found["why"].startswith("executor must be another than vectorized here, for")


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_killed_around_its_record_ends_as_an_unbroken_one(moment, ends, small, tmp_path):
    module, owner, name, number = MOMENTS[moment]
    program = KILLED.format(module=module, owner=owner, name=name, number=number)
    words = [*small, *LARGE, f"hydra.run.dir={tmp_path / 'killed'}"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "FEDFEAT_ROOT": str(tmp_path)},
        cwd=tmp_path,
    )
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "killed" / "executor.json").exists() == (moment != "before the record")
    assert [path.name for path in (tmp_path / "killed").glob("*.tmp*")] == []
    assert ends("killed") == ends("whole")
    assert record(tmp_path / "killed") == record(tmp_path / "whole")
