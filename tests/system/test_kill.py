"""A run that is killed with SIGKILL at any moment and started again ends as if nothing had happened.

Importing takes longer than such a run, so this file is also a program: it imports once what the first of its runs
has imported, and forks a process for every start of a run, see `campaign`.
"""

import csv
import functools
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

RUN = (
    "data=synthetic",
    "data.loader.shape=[1,4,4]",
    "data.loader.num_classes=3",
    "data.loader.num_train=60",
    "data.loader.num_test=24",
    "partition=quantity_skew",
    "partition.min_size=5",
    "model=mlp",
    "model.hidden=[8]",
    "model.dropout=0.2",
    "federation.num_clients=4",
    "federation.cohort_size=2",
    "federation.num_rounds=6",
    "federation.batch_size=8",
    "trainer=cpu",
)
METHODS = {
    "fedavg": ("scenario.straggler_fraction=0.5", "federation.local_epochs=2"),
    "personal-head-kept-momentum": (
        "algorithm.client.personal=[head]",
        "federation.opt_state=keep",
        "federation.ram_budget_mb=0.001",  # less than two clients' memories, so that the store spills
    ),
    "fed2": ("algorithm=fed2", "model.hidden=[8,6]", "algorithm.server.group_weighting=class_count"),
    "psi_net": ("algorithm=psi_net", "model.hidden=[8,6]", "partition=dirichlet", "partition.alpha=0.1"),
    "local": ("algorithm=local", "federation.opt_state=keep", "federation.checkpoint_every=2"),
    "scaffold": ("algorithm=scaffold", "federation.ram_budget_mb=0.001"),
}
KILLS = 3  # per method
# Where a process is killed just before the n-th call: name -> largest n, above the number of calls that a run makes
# at the first four, so that some of the runs end by themselves.
MOMENTS = {"step": 60, "add": 14, "fsync": 80, "rename": 40, "prune": 6, "clock": 0}


def _owner(moment):
    from fedfeat.client import ClientModule
    from fedfeat.params import WeightedMean
    from fedfeat.runs.checkpoint import CheckpointFolder

    return {
        "step": (ClientModule, "training_step"),
        "add": (WeightedMean, "add"),
        "fsync": (os, "fsync"),
        "rename": (os, "replace"),
        "prune": (CheckpointFolder, "_prune"),
    }[moment]


def _arm(moment, number):
    """Kill this process without any notice just before the ``number``-th call."""
    owner, name = _owner(moment)
    original, calls = getattr(owner, name), []

    @functools.wraps(original)
    def deadly(*args, **kwargs):
        calls.append(None)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, name, deadly)


def _start(run_dir, overrides, moment=None, number=0, delay=None):
    """Fork a process that runs ``fedfeat`` in a directory; give its wait status and its seconds.

    The names of what it has imported are left beside the directory.
    """
    began = time.perf_counter()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            from fedfeat import train

            sys.argv = ["fedfeat", *overrides, f"hydra.run.dir={run_dir}"]
            if moment is not None:
                _arm(moment, number)
            train.main()
            code = 0
            run_dir.with_suffix(".imported").write_text("\n".join(sys.modules))
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)  # a child that has ended is still there until it is waited for
    return os.waitpid(child, 0)[1], time.perf_counter() - began


def _import_as(run_dir):
    """Import what a run has imported, for the processes that are forked from now on."""
    for name in run_dir.with_suffix(".imported").read_text().splitlines():
        if name.startswith(
            ("fedfeat.", "hydra.", "lightning_", "pytorch_lightning.", "torch", "matplotlib.")
        ):
            importlib.import_module(name)


def campaign(root, overrides, seed):
    """Run once unbroken and then, killed ``KILLS`` times, in as many directories as that takes."""
    draw = random.Random(seed)
    status, seconds = _start(root / "unbroken", overrides)
    if status:
        return {"failed": status}
    found = {"seconds": seconds, "kills": [], "folders": 0}
    while len(found["kills"]) < KILLS:
        run_dir = root / f"killed-{found['folders']}"
        found["folders"] += 1
        while not (run_dir / "summary.json").exists():
            if len(found["kills"]) == KILLS:
                arguments = {}
            else:
                moment = draw.choice(list(MOMENTS))
                arguments = {"moment": moment, "number": draw.randint(1, max(MOMENTS[moment], 1))}
                if moment == "clock":
                    arguments = {"delay": draw.uniform(0.3, 1.0) * seconds}
            status, _ = _start(run_dir, overrides, **arguments)
            if os.WIFSIGNALED(status):
                saved = len(list((run_dir / "checkpoints").glob("*.json")))
                found["kills"].append([arguments.get("moment", "clock"), saved])
            elif status:
                return {"failed": status}
    return found


def main(root):
    """Program: the campaigns of all methods; prints what happened as JSON on the last line."""
    import torch

    torch.set_num_threads(1)
    root = Path(root)
    _start(root / "first", RUN)
    _import_as(root / "first")

    found = {}
    for seed, (name, overrides) in enumerate(METHODS.items()):
        found[name] = campaign(root / name, [*RUN, *overrides], seed)
    print(json.dumps(found))


def outcome(run_dir):
    """What must not depend on kills: the final weights, the metrics and rows of all rounds, the summary's numbers."""

    def table(name):
        with (run_dir / name).open() as file:
            rows = list(csv.DictReader(file))
        return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]

    summary = json.loads((run_dir / "summary.json").read_text())
    final = {key: value for key, value in summary["final"].items() if not key.startswith("time/")}
    return summary["weights_sha256"], final, table("metrics.csv"), table("clients.csv")


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory):
    """Folder and findings of the campaigns of all methods."""
    root = tmp_path_factory.mktemp("campaigns")
    environment = {**os.environ, "FEDFEAT_ROOT": str(root), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(root)]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return root, json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("name", METHODS)
def test_a_killed_run_ends_like_an_unbroken_one(name, campaigns):
    root, findings, stderr = campaigns
    root, found = root / name, findings[name]
    assert "failed" not in found, stderr
    assert len(found["kills"]) == KILLS
    assert any(saved for _, saved in found["kills"]), "no kill came after a checkpoint"
    expected = outcome(root / "unbroken")
    assert [int(row["round"]) for row in expected[2]] == list(range(7))
    for folder in range(found["folders"]):
        assert outcome(root / f"killed-{folder}") == expected, found
        leftovers = [
            path for path in (root / f"killed-{folder}" / "checkpoints").iterdir() if ".tmp" in path.name
        ]
        assert leftovers == []


@pytest.mark.parametrize(
    "damage", ["tensors cut short", "json cut short", "tensors missing", "json never written"]
)
def test_a_torn_checkpoint_falls_back_to_the_one_before_and_says_so(damage, cli, small, tmp_path, caplog):
    personal = [*small, "algorithm.client.personal=[head]", "federation.opt_state=keep"]
    assert cli(*personal).code == 0
    run = tmp_path / "run"
    expected = outcome(run)
    (run / "summary.json").unlink()
    kind, how = damage.split(maxsplit=1)
    newest = run / "checkpoints" / f"000003.{'safetensors' if kind == 'tensors' else 'json'}"
    if how == "cut short":
        newest.write_bytes(newest.read_bytes()[:-20])
    else:
        newest.unlink()
    caplog.set_level("INFO", logger="fedfeat")
    assert cli(*personal).code == 0
    assert "The checkpoint of round 3 is ignored" in caplog.text
    assert "Resuming after round 2 of 3" in caplog.text
    assert outcome(run) == expected


def test_no_readable_checkpoint_is_refused_and_nothing_is_lost(cli, small, tmp_path):
    assert cli(*small).code == 0
    run = tmp_path / "run"
    (run / "summary.json").unlink()
    for path in (run / "checkpoints").glob("*.json"):
        path.write_text("{")
    before = sorted(path.name for path in (run / "checkpoints").iterdir())
    again = cli(*small)
    assert again.code == 2
    assert "No checkpoint in" in again.stderr
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == before


if __name__ == "__main__":
    main(*sys.argv[1:])
