"""Sweeps and single runs as jobs of a real SLURM, which is started for these tests."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_cluster import Cluster, missing, task_of

from fedfeat.config.choices import options

ROOT = Path(__file__).parents[2]
FEDFEAT = Path(sys.executable).with_name("fedfeat")
PATIENCE = 240
RUN = (
    "data=digits", "model=mlp", "model.hidden=[8]", "partition=iid", "federation.num_clients=4",
    "federation.local_epochs=null", "federation.local_steps=2", "trainer=cpu",
    "executor=serial",  # one after the other: some of the clients here take a time of their own
)  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"SLURM is not installed: no {', '.join(missing())}"),
]


@pytest.fixture(scope="module")
def cluster():
    cluster = Cluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("slurm")


def environment(root):
    return {"FEDFEAT_ROOT": str(root), "FEDFEAT": str(FEDFEAT), "OMP_NUM_THREADS": "1"}


def start(cluster, root, *arguments, **variables):
    """Start ``fedfeat`` beside the test, with its output in a file."""
    with (root / "out.txt").open("a") as out:
        return subprocess.Popen(
            [FEDFEAT, *arguments],
            env={**cluster.environment, **environment(root), **variables}, cwd=root, stdout=out, stderr=out,
        )  # fmt: skip


def sweep(*arguments, timeout_min=60):
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    job = ("cpus_per_task=1", "mem_gb=1", f"timeout_min={timeout_min}")
    return [
        "--multirun",
        "hydra/launcher=submitit_slurm",
        *(f"hydra.launcher.{word}" for word in job),
        *arguments,
    ]


def wait_for(condition, process=None):
    """Wait until a condition gives something true, and give that."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert process is None or process.poll() is None, f"it ended with {process.returncode}"
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)
    return found


def summary(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def outcome(run_dir):
    found = summary(run_dir)
    return found["weights_sha256"], found["final"]["global/loss"], found["final"]["comm/total_bytes"]


def rounds_seen(run_dir):
    path = run_dir / "metrics.csv"
    return len(path.read_text().splitlines()) - 1 if path.exists() else 0


def test_a_sweep_is_an_array_and_a_killed_run_goes_on_when_it_is_started_again(cluster, root, cli, tmp_path):
    grid = sweep(*RUN, "algorithm=fedavg,fedprox", "seed=0,1,2", "federation.num_rounds=60", "group=grid")
    folder = root / "logs" / "sweeps" / "grid"
    first = start(cluster, root, *grid)
    try:
        (victim,) = wait_for(lambda: list(folder.glob("algorithm=fedprox,*seed=2*")), first)
        wait_for(lambda: list((victim / "checkpoints").glob("*.json")), first)
        os.kill(task_of(5), signal.SIGKILL)
        finished = wait_for(lambda: len(found := list(folder.glob("*/summary.json"))) == 5 and found, first)
    finally:
        first.terminate()
        first.wait(30)
    assert victim not in [path.parent for path in finished]
    tasks = sorted(path.name for path in (folder / ".submitit").glob("*_[0-9]"))
    job = tasks[0].removesuffix("_0")
    assert tasks == [f"{job}_{i}" for i in range(6)]
    weights = {summary(path.parent)["weights_sha256"] for path in finished}
    assert len(weights) == 5
    stamps = {path: path.stat().st_mtime_ns for path in finished}
    assert start(cluster, root, *grid).wait(PATIENCE) == 0, (root / "out.txt").read_text()
    assert {path: path.stat().st_mtime_ns for path in finished} == stamps
    (log,) = [path for path in (folder / ".submitit").glob("*_5/*_log.out") if path.parent.name != f"{job}_5"]
    assert re.search(r"Resuming after round [1-9]\d* of 60", log.read_text())
    assert cli(*RUN, "algorithm=fedprox", "seed=2", "federation.num_rounds=60").code == 0
    assert outcome(victim) == outcome(tmp_path / "run")


@pytest.fixture(scope="module")
def preempted(cluster, root):
    """The same run three times: undisturbed, and preempted by a job in ``urgent`` under submitit and under sbatch.

    They would save a checkpoint only after the last round, if it were not for the signal, which under submitit reaches
    the processes of the executor too.
    """
    run = [*RUN, "algorithm=fedavg", "federation.num_rounds=400", "federation.checkpoint_every=1000"]
    several = [word for word in run if not word.startswith("executor=")]
    several += ["executor=processes", "executor.num_processes=2"]
    launched = start(cluster, root, *sweep(*several, "group=preempted", "hydra.sweep.subdir=run"))
    script = ["--cpus-per-task=1", "--mem=1G", f"--chdir={ROOT}", f"--output={root}/batch.out"]
    job = cluster.submit(*script, ROOT / "scripts/slurm/run.sbatch", *run, **environment(root))
    runs = {"submitit": root / "logs/sweeps/preempted/run", "sbatch": root / "logs/slurm" / job}
    for run_dir in runs.values():
        wait_for(lambda run_dir=run_dir: rounds_seen(run_dir) > 3, launched)
    cluster.submit("--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    assert start(cluster, root, *run, f"hydra.run.dir={root}/undisturbed").wait(PATIENCE) == 0
    assert launched.wait(PATIENCE) == 0, (root / "out.txt").read_text()
    wait_for((runs["sbatch"] / "summary.json").exists)
    logs = {
        "submitit": "".join(path.read_text() for path in (root / "logs/sweeps/preempted").rglob("*_log.out")),
        "sbatch": (root / "batch.out").read_text(),
    }
    return runs, logs, root / "undisturbed"


@pytest.mark.parametrize(("how", "name"), [("submitit", "SIGUSR2"), ("sbatch", "SIGUSR1")])
def test_a_preempted_job_is_requeued_and_ends_with_the_same_weights(how, name, preempted):
    runs, logs, undisturbed = preempted
    assert f"{name}: the same command" in logs[how]
    assert len(re.findall(r"Resuming after round [1-9]\d* of 400", logs[how])) == 1
    assert outcome(runs[how]) == outcome(undisturbed)
    assert rounds_seen(runs[how]) == 401


@pytest.fixture(scope="module")
def timed_out(cluster, root):
    """The same run four times: with a limit of a minute, SLURM's smallest, under submitit, the same but never requeued
    ("once"), and under sbatch, with their logs; and undisturbed.

    Its rounds take a second each until the run has been cut, so that 90 of them do not fit. SLURM looks at limits every
    30 s and sends a signal up to 30 s too early: asked for a second before the end, it comes after 29 to 59 s.
    """
    run = [*RUN, "algorithm=fedavg", "federation.num_rounds=90", "federation.checkpoint_every=1000"]
    runs = {how: root / "logs/sweeps" / how / "run" for how in ("submitit", "once", "sbatch")}
    path = {"PYTHONPATH": str(ROOT / "tests")}

    def slow(how):
        return [*run, "algorithm.client._target_=ray_clients.Slow", f"+algorithm.client.folder={runs[how]}"]

    def launch(how, *more):
        limited = ("hydra.launcher.signal_delay_s=1", "hydra.sweep.subdir=run", f"group={how}", *more)
        return start(cluster, root, *sweep(*slow(how), *limited, timeout_min=1), **path)

    launched = launch("submitit"), launch("once", "hydra.launcher.max_num_timeout=0")
    cluster.submit(
        *("--time=1", "--signal=B:USR1@1", "--cpus-per-task=1", "--mem=1G", f"--chdir={ROOT}"),
        *(f"--output={root}/limited.out", ROOT / "scripts/slurm/run.sbatch", *slow("sbatch")),
        f"hydra.run.dir={runs['sbatch']}", **environment(root), **path,
    )  # fmt: skip
    assert start(cluster, root, *run, f"hydra.run.dir={root}/unlimited").wait(PATIENCE) == 0
    assert [process.wait(PATIENCE) for process in launched] == [0, 2], (root / "out.txt").read_text()
    wait_for((runs["sbatch"] / "summary.json").exists)
    logs = {
        how: "".join(path.read_text() for path in runs[how].parent.rglob("*_log.out")) for how in runs
    } | {"sbatch": (root / "limited.out").read_text()}
    return runs, logs, root / "unlimited"


@pytest.mark.parametrize(("how", "name"), [("submitit", "SIGUSR2"), ("sbatch", "SIGUSR1")])
def test_a_job_whose_time_is_up_is_requeued_and_ends_with_the_same_weights(how, name, timed_out):
    runs, logs, undisturbed = timed_out
    assert f"{name}: the same command" in logs[how]
    assert re.search(r"Resuming after round [1-9]\d* of 90", logs[how])
    assert outcome(runs[how]) == outcome(undisturbed)
    assert rounds_seen(runs[how]) == 91


def test_submitit_counts_the_requeues_after_time_limits_and_tells_the_waiting_command_of_the_last(
    root, timed_out
):
    runs, logs, _ = timed_out
    assert "(99 remaining timeouts)" in logs["submitit"]  # of the 100 of the launcher's options
    refusal = "Job not requeued because: timed-out too many times"
    assert refusal in logs["once"]
    assert f"fedfeat: SIGUSR2: {refusal}" in (root / "out.txt").read_text()
    assert not (runs["once"] / "summary.json").exists()
    (saved,) = (runs["once"] / "checkpoints").glob("*.json")
    assert int(saved.stem) == rounds_seen(runs["once"]) - 1


def test_the_script_runs_one_seed_per_task_of_an_array(cluster, root):
    options = [
        "--array=3,5",
        "--cpus-per-task=1",
        "--mem=1G",
        f"--chdir={ROOT}",
        f"--output={root}/%A_%a.out",
    ]
    script = ROOT / "scripts/slurm/run.sbatch"
    job = cluster.submit(*options, script, *RUN, "federation.num_rounds=2", **environment(root))
    wait_for(lambda: not cluster.call("squeue", "-h"))
    for seed in (3, 5):
        assert summary(root / "logs/slurm" / f"{job}_{seed}")["seed"] == seed


def test_a_refused_run_is_not_requeued(cluster, root):
    options = ["--cpus-per-task=1", "--mem=1G", f"--chdir={ROOT}", f"--output={root}/refused.out"]
    job = cluster.submit(*options, ROOT / "scripts/slurm/run.sbatch", "model=nothing", **environment(root))
    wait_for(lambda: "JobState=FAILED" in cluster.call("scontrol", "show", "job", job))
    assert "model must be one of" in (root / "refused.out").read_text()
    assert "Restarts=0" in cluster.call("scontrol", "show", "job", job)
    assert "ExitCode=2:0" in cluster.call("scontrol", "show", "job", job)


def test_one_run_over_two_nodes_with_ray(tmp_path):
    pytest.importorskip("ray", reason="the extra ray is not installed")
    if "ray" not in options("executor"):
        pytest.skip("there is no executor=ray")
    two = Cluster(nodes=2, cpus=2)
    try:
        two.start()
        out = tmp_path / "ray.out"
        job = two.submit(
            "--nodes=2", "--cpus-per-task=2", "--mem=1G", f"--chdir={ROOT}", f"--output={out}",
            ROOT / "scripts/slurm/ray_nodes.sbatch", *RUN[:-1], "federation.num_rounds=2",
            **environment(tmp_path), RAY=str(FEDFEAT.with_name("ray")), PYTHON=sys.executable,
        )  # fmt: skip
        wait_for(lambda: not two.call("squeue", "-h"))
    finally:
        two.stop()
    assert "Ray has 2 nodes." in out.read_text()
    assert summary(tmp_path / "logs/slurm" / job)["num_rounds"] == 2
