"""Whole runs with W&B offline: what their .wandb files hold, and a sweep's agent whose run is killed."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from wandb.sdk.launch.sweeps import utils as sweeps
from wandb_file import finished_wandb, history_of, items, read_wandb, summary_of

from fedfeat import load

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def test_a_run_as_its_dashboard_shows_it(cli, small, tmp_path):
    words = [*small, "algorithm=fed2", "model.hidden=[8,6]", "diagnostics=alignment", "diagnostics.every=1"]
    told = [
        "logger=wandb",
        "logger.wandb.final_model=true",
        "optimizer.lr=0.2",
        "experiment=mnist_iid",
        "federation.cohort_size=null",
    ]
    assert cli(*words, *told, "+published={global/acc: 0.9}").code == 0
    run_dir = tmp_path / "run"
    found, exit_code = finished_wandb(run_dir)
    assert exit_code == 0
    opened = next(entry.run for entry in found if entry.HasField("run"))
    assert opened.display_name.startswith("fed2, synthetic, iid, ")
    assert opened.display_name.endswith("seed=0")
    assert (opened.job_type, list(opened.tags)) == ("run", ["mnist_iid"])

    config = {}
    for entry in found:
        config.update(items(entry.config.update))
    facts = {
        "method": "fed2",
        "data": "synthetic",
        "partition": "iid",
        "model": "mlp",
        "depth": "last6",
        "lr": 0.2,
    }
    assert config.items() >= {**facts, "groups": "one per class", "num_rounds": 3}.items()
    assert config["published"] == {"global/acc": 0.9}
    assert config["config"]["partition"]["_target_"].startswith("fedfeat.data.partition.")
    stored = json.loads((run_dir / "summary.json").read_text())
    assert config["provenance"]["weights_sha256"] == stored["weights_sha256"]

    rows = history_of(found)
    assert [row["_step"] for row in rows] == [row["round"] for row in rows[:-1]] + [4] == [0, 1, 2, 3, 4]
    maps = [row["round"] for row in rows if "figures/encoding/_type" in row]
    assert maps == [1, 2, 3]
    assert {"figures/convergence/_type", "figures/split/_type", "clients/last_round/_type"} <= set(rows[-1])
    assert all(row["clients/global_acc/_type"] == "histogram" for row in rows[:-1])
    summary = summary_of(found)
    assert len(summary) == 10
    assert {key: summary[key] for key in ("global/acc", "comm/total_bytes")} == {
        key: stored["final"][key] for key in ("global/acc", "comm/total_bytes")
    }


def downloaded(run, tmp_path):
    """Put the files of a run's model where a download from W&B would; give the folder and the model."""
    (model,) = [entry.artifact for entry in finished_wandb(run)[0] if entry.artifact.type == "model"]
    for entry in model.manifest.contents:
        path = tmp_path / "downloaded" / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(Path(entry.local_path).read_bytes())
    return tmp_path / "downloaded", model


UPLOADED = ("logger=wandb", "logger.wandb.final_model=true")


def test_the_model_that_is_uploaded_can_be_loaded(cli, small, tmp_path):
    assert cli(*small, *UPLOADED, "algorithm.client.personal=[head]").code == 0
    folder, model = downloaded(tmp_path / "run", tmp_path)
    assert json.loads(model.metadata)["method"] == "fedavg"
    ours, theirs = load(tmp_path / "run"), load(folder)
    assert theirs.summary == ours.summary
    inputs = np.random.default_rng(0).normal(size=(5, 1, 4, 4)).astype(np.float32)
    left, right = (one.personal_model(2)(inputs).tolist() for one in (ours, theirs))
    assert left == right


def test_a_model_of_a_depth_that_the_run_has_chosen_can_be_loaded(cli, small, tmp_path):
    words = [word for word in small if not word.startswith(("algorithm=", "model"))]
    grouped = (
        "algorithm=fed2",
        "model=mlp",
        "model.hidden=[8,6]",
        "structure.depth=auto",
        "structure.warmup_epochs=1",
    )
    assert cli(*words, *UPLOADED, *grouped).code == 0
    folder, _ = downloaded(tmp_path / "run", tmp_path)
    inputs = np.random.default_rng(0).normal(size=(5, 1, 4, 4)).astype(np.float32)
    left, right = (load(run).model()(inputs).tolist() for run in (tmp_path / "run", folder))
    assert left == right


def test_a_run_of_a_multirun_is_named_by_what_is_swept(cli, small, tmp_path):
    swept = [f"hydra.sweep.dir={tmp_path}/sweep", "optimizer.lr=0.1", "algorithm=fedavg,fedprox"]
    words = [word for word in small if not word.startswith("algorithm=")]
    assert cli("--multirun", *words, *swept, "logger=wandb", "group=lr").code == 0
    names = []
    for folder in sorted(path for path in (tmp_path / "sweep").iterdir() if path.is_dir()):
        found, _ = finished_wandb(folder)
        opened = next(entry.run for entry in found if entry.HasField("run"))
        assert (opened.run_group, opened.job_type) == ("lr", "sweep")
        names.append(opened.display_name.split(", data.loader")[0])
    assert names == ["fedavg, synthetic, iid", "fedprox, synthetic, iid"]


class Agent:
    """What `wandb agent` does with a run that the server hands out, by its own functions, without the server."""

    def __init__(self, root, small):
        sweep = yaml.safe_load((ROOT / "scripts" / "wandb_sweep.yaml").read_text())
        chosen = {name: {"value": node["values"][0]} for name, node in sweep["parameters"].items()}
        parts = sweeps.create_sweep_command_args({"args": chosen})
        parts |= {"env": ["/usr/bin/env"], "interpreter": ["python"], "program": [sweep["program"]]}
        self.command = []
        for word in sweeps.create_sweep_command(sweep["command"]):
            macro = word.startswith("${") and word.endswith("}")
            self.command += parts[word[2:-1]] if macro else [word]
        # What makes the run small; parameters of the sweep win.
        self.command += [word for word in small if word.partition("=")[0] not in chosen]
        params = root / "wandb" / "sweep-swp1" / "config-run00001.yaml"
        params.parent.mkdir(parents=True)
        params.write_text(yaml.safe_dump({"wandb_version": 1, **chosen}))
        # Without the service of this process's own W&B, which a machine that was lost would not have left.
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "FEDFEAT_ROOT": str(root),
            "OMP_NUM_THREADS": "1",
            "WANDB_SWEEP_ID": "swp1",
            "WANDB_RUN_ID": "run00001",
            "WANDB_SWEEP_PARAM_PATH": str(params),
        }
        self.root = root
        self.run_dir = root / "logs" / "wandb" / "swp1" / "run00001"

    def start(self):
        with (self.root / "log").open("a") as log:
            return subprocess.Popen(self.command, env=self.environment, cwd=self.root, stdout=log, stderr=log)

    def wait_for_checkpoints(self, started):
        deadline = time.monotonic() + 400
        while not any(int(path.stem) >= 3 for path in (self.run_dir / "checkpoints").glob("0*.json")):
            assert started.poll() is None, (self.root / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_of_an_agent_that_is_ended_goes_on_in_its_directory(tmp_path, small, how):
    agent = Agent(tmp_path, [*small, "federation.num_rounds=40"])
    assert "sweep=agent" in agent.command
    assert "algorithm=fedavg" in agent.command
    first = agent.start()
    try:
        agent.wait_for_checkpoints(first)
    finally:
        first.send_signal(how)
        code = first.wait()
    assert code == (-how if how == signal.SIGKILL else 128 + how)
    assert not (agent.run_dir / "summary.json").exists()

    # The server hands the run out again, under its id.
    assert agent.start().wait() == 0, (tmp_path / "log").read_text()
    assert [path.name for path in (tmp_path / "logs" / "wandb" / "swp1").iterdir()] == ["run00001"]
    assert json.loads((agent.run_dir / "summary.json").read_text())["num_rounds"] == 40
    with (agent.run_dir / "metrics.csv").open() as file:
        assert [int(row["round"]) for row in csv.DictReader(file)] == list(range(41))
    one, two = sorted(
        agent.run_dir.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns
    )
    before, after = read_wandb(one), finished_wandb(agent.run_dir, 1)[0]
    opened = [next(entry.run for entry in found if entry.HasField("run")) for found in (before, after)]
    assert {(run.run_id, run.sweep_id) for run in opened} == {("run00001", "swp1")}
    rounds = [[row["round"] for row in history_of(found)] for found in (before, after)]
    assert two.parent != one.parent
    assert rounds[0] == list(range(len(rounds[0])))
    assert rounds[1] == [*range(rounds[1][0], 41), 40]
    # SIGKILL takes what W&B's process was told in the last moment, and SIGTERM nothing.
    assert rounds[0]
    assert rounds[1][0] == len(rounds[0]) or how == signal.SIGKILL
    assert any(entry.HasField("preempting") for entry in before) == (how == signal.SIGTERM)


def test_by_hand_an_agents_option_says_what_it_lacks(cli, small, monkeypatch):
    monkeypatch.delenv("WANDB_SWEEP_ID", raising=False)
    monkeypatch.setattr("sys.argv", [])
    outcome = cli(*small, "sweep=agent", "hydra.run.dir=${paths.logs}/wandb/${oc.env:WANDB_SWEEP_ID}")
    assert outcome.code == 2
    assert "WANDB_SWEEP_ID" in outcome.stderr
