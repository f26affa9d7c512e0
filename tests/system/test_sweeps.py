"""Multiruns: their directories, what a failing or locked run does to the others, starting again, signals."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from cut_runs import lose_end

from fedfeat.config.choices import check_choices
from fedfeat.errors import ConfigError
from fedfeat.runs import directory as rundir

pytestmark = pytest.mark.slow

RUN = (
    "data=digits", "model=mlp", "model.hidden=[8]", "algorithm=fedavg", "partition=iid", "trainer=cpu",
    "federation.num_clients=4", "federation.num_rounds=3",
)  # fmt: skip


@pytest.fixture
def sweep(cli, tmp_path):
    """Run a multirun of ``RUN`` with some more arguments."""

    def call(*arguments):
        return cli("--multirun", *RUN, f"hydra.sweep.dir={tmp_path / 'sweep'}", *arguments)

    return call


def names(tmp_path):
    return sorted(path.parent.name for path in (tmp_path / "sweep").glob("*/summary.json"))


def of(tmp_path, part):
    (found,) = [path for path in (tmp_path / "sweep").iterdir() if part in path.name]
    return found


def test_a_failing_run_leaves_the_others_alone_and_is_said_at_the_end(sweep, tmp_path, caplog):
    done = sweep("federation.cohort_size=2,9,3")
    assert [name.split("cohort_size=")[1][0] for name in names(tmp_path)] == ["2", "3"]
    assert done.code == 2
    assert "fedfeat: 1 of 3 runs failed: federation.cohort_size must" in done.stderr
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "cohort_size=9" in record.getMessage()


def test_of_several_failures_the_end_has_their_number_and_the_first(sweep, tmp_path):
    done = sweep("federation.cohort_size=9,2", "optimizer.lr=0.1,-1")
    assert len(names(tmp_path)) == 1
    assert "fedfeat: 3 of 4 runs failed, the first: federation.cohort_size must" in done.stderr
    # The next call begins to count anew.
    assert "fedfeat: optimizer.lr must" in sweep("optimizer.lr=-1").stderr


def test_a_run_in_another_process_s_hands_is_left_to_it(sweep, tmp_path):
    assert sweep("seed=0,1").code == 0
    taken = of(tmp_path, "seed=0")
    (taken / "summary.json").unlink()
    with rundir.locked(taken):
        done = sweep("seed=0,1,2")
    assert done.code == 2
    assert "hydra.run.dir must be free, but another process is running in" in done.stderr
    assert not (taken / "summary.json").exists()
    assert (of(tmp_path, "seed=2") / "summary.json").exists()
    assert sweep("seed=0,1,2").code == 0
    assert len(names(tmp_path)) == 3


def test_started_again_it_skips_what_is_finished_and_resumes_what_was_cut(sweep, tmp_path, caplog):
    assert sweep("seed=0,1").code == 0
    finished, cut = of(tmp_path, "seed=0"), of(tmp_path, "seed=1")
    stamps = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    expected = json.loads((cut / "summary.json").read_text())["weights_sha256"]
    lose_end(cut, 3)
    caplog.set_level("INFO", logger="fedfeat")
    assert sweep("seed=0,1").code == 0
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == stamps
    assert "Resuming after round 2 of 3" in caplog.text
    assert json.loads((cut / "summary.json").read_text())["weights_sha256"] == expected


def test_two_sweeps_of_one_group_share_no_run(sweep, tmp_path):
    assert sweep("seed=0,1").code == 0
    assert sweep("seed=0,1", "optimizer.lr=0.5").code == 0
    assert len(names(tmp_path)) == 4
    found = [json.loads(path.read_text()) for path in (tmp_path / "sweep").glob("*/summary.json")]
    assert len({summary["config_sha256"] for summary in found}) == 4


def test_names_too_long_for_a_file_system_are_cut_and_stay_apart(sweep, tmp_path):
    sizes = ",".join(["8"] * 150)  # a network of 150 layers: over 300 bytes
    assert sweep(f"model.hidden=[{sizes}]", "seed=0,1", "federation.num_rounds=1").code == 0
    assert len(names(tmp_path)) == 2
    assert all(len(name.encode()) <= 255 for name in names(tmp_path))


def test_directories_begin_with_what_was_swept_and_lack_what_fixes_no_number(sweep, tmp_path):
    added = ("+optimizer.dampening=0,0.1", "seed=0,1", "sweep=seeds", "logger=tensorboard", "executor=serial")
    assert sweep("federation.num_rounds=1", *added).code == 0
    constant = (
        "algorithm=fedavg,data=digits,federation.num_clients=4,federation.num_rounds=1,model.hidden=[8],"
    )
    expected = {
        f"optimizer.dampening={value},seed={seed},{constant}model=mlp,partition=iid,trainer=cpu"
        for value in ("0", "0.1")
        for seed in (0, 1)
    }
    assert set(names(tmp_path)) == expected


def test_an_axis_more_leaves_earlier_runs_as_they_are(sweep, tmp_path):
    assert sweep("federation.num_rounds=1", "seed=0,1", "optimizer.lr=0.1").code == 0
    before = names(tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep").glob("*/*")}
    assert sweep("federation.num_rounds=1", "seed=1,0", "optimizer.lr=0.1,0.2").code == 0
    assert len(names(tmp_path)) == 4
    assert set(before) < set(names(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


@pytest.fixture
def unhandled():
    """SIGTERM as a process of its own has it; libraries that earlier tests have used may have left a handler."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("unhandled")
def test_a_stopped_run_saves_its_round_and_goes_on_to_the_same_weights(
    cli, small, tmp_path, monkeypatch, caplog
):
    from fedfeat.loggers.csv_logger import CsvLogger

    log = CsvLogger.log

    def stopped(self, record):
        log(self, record)
        if record.round_idx == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    assert cli(*small, f"hydra.run.dir={tmp_path / 'whole'}").code == 0
    run = [*small, "federation.checkpoint_every=1000"]
    with monkeypatch.context() as patch:
        patch.setattr(CsvLogger, "log", stopped)
        assert cli(*run).code == 128 + signal.SIGTERM
    assert not (tmp_path / "run" / "summary.json").exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    caplog.set_level("INFO", logger="fedfeat")
    assert cli(*run).code == 0
    assert "Resuming after round 2 of 3" in caplog.text
    weights = [
        json.loads((tmp_path / name / "summary.json").read_text())["weights_sha256"]
        for name in ("run", "whole")
    ]
    assert weights[0] == weights[1]


def test_runs_beside_each_other_are_those_of_direct_runs_and_are_not_run_again(cli, tmp_path):
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    command = [sys.executable, "-m", "fedfeat", "--multirun", *RUN, "seed=0,1"]
    command += ["hydra/launcher=submitit_local", "group=local"]
    variables = {**os.environ, "FEDFEAT_ROOT": str(tmp_path)}
    folder = tmp_path / "logs" / "sweeps" / "local"

    def logs():
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return {path: path.read_text() for path in (folder / ".submitit").glob("*/*_log.out")}

    def stamps():
        return {path: path.stat().st_mtime_ns for run in runs for path in run.rglob("*")}

    first = logs()
    assert len(first) == 2  # a process each
    runs = [next(folder.glob(f"*seed={seed}*")) for seed in (0, 1)]
    for seed, run in enumerate(runs):
        direct = tmp_path / f"direct-{seed}"
        assert cli(*RUN, f"seed={seed}", f"hydra.run.dir={direct}").code == 0
        here, there = (json.loads((one / "summary.json").read_text()) for one in (run, direct))
        assert here["seed"] == seed
        assert here["weights_sha256"] == there["weights_sha256"]
    before = stamps()
    second = [text for path, text in logs().items() if path not in first]
    assert stamps() == before
    said = [re.findall("^The run in (.*) is finished; nothing to do", text, re.MULTILINE) for text in second]
    assert sorted(said) == [[str(run)] for run in runs]


@pytest.mark.parametrize("name", ["submitit_slurm", "submitit_local"])
def test_a_launcher_that_is_not_installed_is_refused_in_one_sentence(name, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match=r"hydra/launcher must be basic .*uv sync --extra slurm.*, but it is"
    ):
        check_choices(["--multirun", f"hydra/launcher={name}"])
    check_choices(["--multirun", "hydra/launcher=basic"])


def test_every_run_says_what_it_gives_to_an_optimizer(sweep, caplog):
    """Hydra's own sweeper throws it away; another one is given the number that is said."""
    caplog.set_level("INFO", logger="fedfeat")
    assert sweep("partition.val_fraction=0,0.2", "federation.num_rounds=1").code == 0
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("objective: ")]
    assert [re.sub(r"\d\.\d+", "N", one) for one in said] == [
        "objective: global/acc is N after the last round",
        "objective: val/acc is N after the last round",
    ]


def test_an_objective_that_is_not_measured_is_refused_with_what_is(sweep, tmp_path):
    done = sweep("objective=mine/own", "federation.num_rounds=1", "seed=0")
    assert done.code == 2
    assert (
        "fedfeat: objective must be auto or a metric of the last round (clients/failed, comm/down_bytes, "
        in done.stderr
    )
    assert len(names(tmp_path)) == 1  # nothing of the run is lost: another objective reads its summary
