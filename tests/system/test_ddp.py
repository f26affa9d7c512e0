"""One client's fit over two processes (``trainer=ddp``), as a user starts it; on CPUs the ranks talk over gloo."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedfeat.commands import assembly, running

pytestmark = pytest.mark.slow

ROUNDS = 15
# A batch of 63 falls into 32 and 31: the ranks' gradients are weighed by their examples. The momentum that clients keep
# makes the checkpoints hold personal state, which all ranks need on resume.
RUN = (
    "partition=iid",
    "model=mlp",
    "federation.num_clients=2",
    f"federation.num_rounds={ROUNDS}",
    "federation.batch_size=63",
    "federation.local_epochs=null",
    "federation.local_steps=2",
    "federation.opt_state=keep",
    "optimizer.lr=0.05",
)
DDP = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")
# Starting two processes one after the other takes 15 s on two free cores, nearly all of it imports.
PATIENCE = 240


class Process:
    """A ``fedfeat`` on the command line; its ranks inherit its output, which ends with the last of them."""

    def __init__(self, run_dir):
        self.run_dir, self.code, self.output = run_dir, None, ""
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
        self.leader = subprocess.Popen(
            [Path(sys.executable).with_name("fedfeat"), *RUN, *DDP, f"hydra.run.dir={run_dir}"],
            env={**environment, "FEDFEAT_ROOT": str(run_dir.parent), "OMP_NUM_THREADS": "1"},
            cwd=run_dir.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait(self):
        """Wait for the process that was started, and then, not for long, for every other rank."""
        self.code = self.leader.wait(PATIENCE)
        self.output = self.leader.communicate(timeout=30)[0]

    def wait_for(self, path):
        """Wait until the run has written a file."""
        end = time.monotonic() + PATIENCE
        while not path.exists():
            assert self.leader.poll() is None, self.leader.communicate()[0]
            assert time.monotonic() < end, f"{path} is missing"
            time.sleep(0.002)

    def clean_up(self):
        """Leave no process behind, whatever a test found."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.leader.pid, signal.SIGKILL)
        self.leader.communicate()


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Start a process in the folder of this module."""
    root = tmp_path_factory.mktemp("ddp")
    started = []

    def call(name):
        started.append(Process(root / name))
        return started[-1]

    yield call
    for process in started:
        process.clean_up()


@pytest.fixture(scope="module")
def runs(start):
    """Three ended processes: one killed after a few rounds, one that goes on in its directory, and an unbroken one."""
    killed = start("killed")
    killed.wait_for(killed.run_dir / "checkpoints" / "000002.json")
    killed.leader.kill()  # and not the rank that it has started itself
    killed.wait()
    assert not (killed.run_dir / "summary.json").exists(), "it ended before it was killed"
    resumed, unbroken = start("killed"), start("unbroken")
    resumed.wait()
    unbroken.wait()
    return {"killed": killed, "resumed": resumed, "unbroken": unbroken}


@pytest.fixture
def serial(cli, tmp_path):
    """Directory of the same run in one process."""
    assert cli(*RUN, "trainer=cpu").code == 0
    return tmp_path / "run"


def metrics(run_dir):
    with (run_dir / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def files(run_dir):
    # Of a run whose processes share their fits, executor=auto has nothing to keep.
    found = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*")} - {"executor.json"}
    return sorted(found)


def summary(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


@pytest.mark.parametrize(("name", "code"), [("unbroken", 0), ("killed", -signal.SIGKILL), ("resumed", 0)])
def test_all_processes_end(name, code, runs):
    assert "MEMBER: 1/2" in runs[name].output, runs[name].output
    assert runs[name].code == code, runs[name].output


def test_two_processes_learn_what_one_learns(runs, serial):
    """Up to the order of float32 sums: 1e-5 is some 100 roundings of 1e-7; differences near 1e-7 were seen."""
    rows, by_one = metrics(runs["unbroken"].run_dir), metrics(serial)
    assert float(by_one[-1]["global/acc"]) > 0.8, "little was learnt"
    for row, expected in zip(rows, by_one, strict=True):
        for key in ("train/loss", "global/loss", "global/acc", "compute/examples", "comm/total_bytes"):
            if expected[key]:
                # An example whose two best classes are almost equal may change sides: 1 of 359 is 0.003.
                tolerance = 0.003 if key == "global/acc" else 1e-5
                assert float(row[key]) == pytest.approx(float(expected[key]), rel=0, abs=tolerance), key


def test_only_the_first_process_writes(runs, serial):
    process = runs["unbroken"]
    assert [int(row["round"]) for row in metrics(process.run_dir)] == list(range(ROUNDS + 1))
    assert files(process.run_dir) == files(serial)
    assert process.output.count(f"round {ROUNDS}/{ROUNDS}") == 1


def test_a_killed_run_goes_on_and_ends_in_the_same_weights(runs):
    resumed, unbroken = (runs[name] for name in ("resumed", "unbroken"))
    assert resumed.output.count("Resuming after round") == 1
    assert [int(row["round"]) for row in metrics(resumed.run_dir)] == list(range(ROUNDS + 1))
    assert summary(resumed.run_dir)["weights_sha256"] == summary(unbroken.run_dir)["weights_sha256"]


def test_another_rank_writes_nothing_even_where_personal_state_exceeds_the_ram_budget(
    cli, small, tmp_path, monkeypatch
):
    overrides = [*small, "algorithm.client.personal=[head]", "federation.ram_budget_mb=0.0001"]
    with monkeypatch.context() as patched:
        for room in (assembly, running):  # whom it takes for one: below
            patched.setattr(room, "is_primary", lambda config: False)
        assert cli(*overrides).code == 0
    assert list((tmp_path / "run").rglob("*")) == []
    monkeypatch.setenv("LOCAL_RANK", "1")  # of a job around it: a run on one device has no ranks
    assert cli(*overrides).code == 0
    assert list((tmp_path / "run" / "clients").glob("*.safetensors"))


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "SLURM_PROCID"])
def test_ranks_count_where_a_fit_may_have_several_devices(name, monkeypatch):
    alone = {"devices": 1, "strategy": "auto"}
    several = [
        alone | {"devices": 2}, alone | {"devices": "auto"}, alone | {"strategy": "ddp"}, alone | {"num_nodes": 2}
    ]  # fmt: skip
    assert all(assembly.is_primary({"trainer": trainer}) for trainer in (alone, *several))
    monkeypatch.setenv(name, "1")
    assert assembly.is_primary({"trainer": alone})
    assert not any(assembly.is_primary({"trainer": trainer}) for trainer in several)
