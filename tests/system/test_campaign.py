"""A campaign makes real runs, is interrupted, goes on, collects: as a program of its own."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from slurm_cluster import Cluster, missing
from waiting import wait_for

from fedfeat.commands.python import composed
from fedfeat.runs.directory import experiment_config, is_locked

SCRIPT = Path(__file__).parents[2] / "scripts" / "campaign.py"
SMALL = [
    "data=digits", "partition=iid", "model=mlp", "model.hidden=[8]", "federation.num_clients=2",
    "federation.batch_size=64", "federation.local_epochs=1", "trainer=cpu", "federation.checkpoint_every=1",
]  # fmt: skip
FILE = {
    "key": "tried",
    "words": [*SMALL, "federation.num_rounds=2"],
    "environment": {"OMP_NUM_THREADS": 1},
    "arms": {"average": ["algorithm=fedavg"], "near": ["algorithm=fedprox"]},
    "studies": {
        "tune": {
            "arms": ["average"], "seeds": [100], "words": ["partition.val_fraction=0.5"], "priority": 1,
            "grid": {"still": ["optimizer.lr=1e-9"], "fast": ["optimizer.lr=0.1"]},
        },
        "run": {
            "arms": ["average", "near"], "seeds": [0], "priority": 2, "keeps": ["clients.csv"],
            "then": {"near": ["fedfeat-calibrate", "--epochs", "1", "--out", "."]},
            "tuned": {"study": "tune", "alike": {"near": "average"}},
        },
    },
}  # fmt: skip


def altered(study, **changes):
    return {"studies": FILE["studies"] | {study: FILE["studies"][study] | changes}}


@pytest.fixture
def campaign(tmp_path):
    """Write the file of a campaign; give the command that works on it."""

    def make(file=FILE):
        (tmp_path / "file.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
        return [sys.executable, str(SCRIPT), "file.yaml", "--into", "kept"]

    return make


def rows(path):
    with path.open() as file:
        return [*csv.DictReader(file)]


def environment(tmp_path):
    return os.environ | {"FEDFEAT_CAMPAIGNS": str(tmp_path / "runs"), "COLUMNS": "80"}


def call(command, tmp_path, *more, env=None):
    done = subprocess.run(
        [*command, *more], cwd=tmp_path, env=env or environment(tmp_path), capture_output=True, text=True, timeout=600
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_runs_are_made_tuned_and_collected_and_a_second_start_has_nothing_to_do(campaign, tmp_path):
    command = campaign()
    code, out, err = call(command, tmp_path)
    assert (code, err) == (0, "")
    assert "tried: 4 of 4 runs" in out
    assert out.endswith("\n"), "the prompt of a shell would stand behind the table"
    kept = tmp_path / "kept"
    for arm in ("average", "near"):
        place = kept / "run" / arm / "seed_0"
        assert {path.name for path in place.iterdir()} == {
            "clients.csv", "config.yaml", "data.json", "metrics.csv", "overrides.yaml", "summary.json",
            *(["then"] if arm == "near" else []),
        }  # fmt: skip
        # Nothing moves at a rate of 1e-9, so the other point must have been chosen.
        assert "optimizer.lr=0.1" in yaml.safe_load((place / "overrides.yaml").read_text())
        assert yaml.safe_load((place / "config.yaml").read_text())["optimizer"]["lr"] == 0.1
    (calibrated,) = rows(kept / "run" / "near" / "seed_0" / "then" / "calibration.csv")
    assert calibrated["acc"] == rows(kept / "run" / "near" / "seed_0" / "metrics.csv")[-1]["global/acc"]
    texts = [path.read_text() for path in kept.rglob("*") if path.is_file()]
    assert not any(str(tmp_path) in text or str(Path.home()) in text for text in texts)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.csv")}
    assert call(command, tmp_path)[0] == 0
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.csv")}
    # A fresh checkout has what was kept, another machine has not the runs: nothing is made again.
    elsewhere = environment(tmp_path) | {"FEDFEAT_CAMPAIGNS": str(tmp_path / "elsewhere")}
    assert "4 of 4 runs" in call(command, tmp_path, "--status", env=elsewhere)[1]


@pytest.mark.slow
def test_what_is_kept_composes_again(campaign, tmp_path):
    campaign(FILE | {"studies": {"run": {"arms": ["near"], "seeds": [0]}}})
    code, _, err = call([sys.executable, str(SCRIPT), "file.yaml", "--into", "kept", "--jobs", "1"], tmp_path)
    assert (code, err) == (0, "")
    place = tmp_path / "kept/run/near/seed_0"
    stored = yaml.safe_load((place / "config.yaml").read_text())
    words = yaml.safe_load((place / "overrides.yaml").read_text())
    import omegaconf

    today = experiment_config(omegaconf.OmegaConf.to_container(composed(words), resolve=True))
    assert {key: stored[key] for key in today} == today


@pytest.mark.slow
def test_interrupted_it_goes_on_to_the_same_weights(campaign, tmp_path):
    alone = {"one": {"arms": ["average"], "seeds": [0]}}
    command = campaign(FILE | {"studies": alone, "words": [*SMALL, "federation.num_rounds=300"]})
    folder = tmp_path / "runs/tried/one/average/seed_0"
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: len([*(folder / "checkpoints").glob("*")]) > 1)
        assert "must be free" in call(command, tmp_path)[2]
        assert "average/seed_0 round" in call(command, tmp_path, "--status")[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    finally:
        process.kill()
    assert not (folder / "summary.json").exists()
    assert call(command, tmp_path)[0] == 0
    log = (folder / "campaign.log").read_text()
    assert "Resuming after round" in log
    undisturbed = environment(tmp_path) | {"FEDFEAT_CAMPAIGNS": str(tmp_path / "undisturbed")}
    assert call([*command[:-1], "other"], tmp_path, env=undisturbed)[0] == 0
    one, other = (
        json.loads((tmp_path / name / "one/average/seed_0/summary.json").read_text())
        for name in ("kept", "other")
    )
    assert one["weights_sha256"] == other["weights_sha256"]


@pytest.mark.slow
def test_it_ends_after_its_hours_and_begins_nothing_that_would_take_longer(campaign, tmp_path):
    long = {"arms": ["average"], "seeds": [0, 1], "words": ["federation.num_rounds=100000"]}
    short = {"arms": ["near"], "seeds": [0], "words": ["federation.num_rounds=1"], "priority": 9}
    command = [*campaign(FILE | {"studies": {"long": long, "short": short}, "words": SMALL}), "--jobs", "1"]
    # Nothing is known yet, so the first is begun, unless a slow machine has needed the time to compose them.
    code, said, _ = call(command, tmp_path, "--hours", "0.004")
    assert (code, "save their round" in said, "3 left for the next time" in said) == (0, True, True)
    begun = tmp_path / "runs/tried/long/average/seed_0"
    begun.mkdir(parents=True, exist_ok=True)
    words = [*SMALL, *long["words"], *FILE["arms"]["average"], "seed=0"]
    (begun / "overrides.yaml").write_text(yaml.safe_dump(words))
    (begun / "config.yaml").write_text(yaml.safe_dump({"federation": {"num_rounds": 100000}}))
    (begun / "metrics.csv").write_text("round,time/total_s\n2,10.0\n")
    code, said, _ = call(command, tmp_path, "--hours", "1")
    assert (code, "2 left for the next time" in said, "save their round" in said) == (0, True, False)
    assert (tmp_path / "kept/short/near/seed_0/summary.json").exists()
    assert not (tmp_path / "runs/tried/long/average/seed_1").exists()
    assert "must be in (0, inf), but it is '0'" in call(command, tmp_path, "--hours", "0")[2]


@pytest.mark.slow
def test_jobs_of_this_machine_end_with_it(campaign, tmp_path):
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    alone = {"one": {"arms": ["average"], "seeds": [0]}}
    command = campaign(FILE | {"studies": alone, "words": [*SMALL, "federation.num_rounds=100000"]})
    folder = tmp_path / "runs/tried/one/average/seed_0"
    with subprocess.Popen(
        [*command, "--launcher", "submitit_local"], cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL
    ) as process:  # fmt: skip
        wait_for(lambda: len([*(folder / "checkpoints").glob("*")]) > 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    wait_for(lambda: not is_locked(folder))


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_others_are_made(campaign, tmp_path):
    absent = ["data=mnist", "data.loader.download=false", f"data.root={tmp_path}"]
    bad = FILE | {"arms": FILE["arms"] | {"near": ["algorithm=fedprox", *absent]}}
    command = campaign(bad | {"studies": {"run": {"arms": ["near", "average"], "seeds": [0]}}})
    code, out, _ = call(command, tmp_path)
    assert code == 1
    assert "run/near/seed_0: exit 2: fedfeat: " in " ".join(out.split())
    assert out.rpartition("tried: ")[2].count("import MNIST") == 1
    # Later it is not told to be under way.
    assert "near/seed_0 failed" in call(command, tmp_path, "--status")[1]
    assert (tmp_path / "kept/run/average/seed_0/summary.json").exists()
    # Once its words are right, it is made.
    command = campaign(FILE | {"studies": {"run": {"arms": ["near", "average"], "seeds": [0]}}})
    assert call(command, tmp_path)[0] == 0


@pytest.mark.slow
def test_what_all_runs_lack_ends_the_campaign(campaign, tmp_path):
    lacking = FILE | {"words": [*SMALL, "data=mnist", "data.loader.download=false", f"data.root={tmp_path}"]}
    command = campaign(lacking | {"studies": {"run": {"arms": ["average"], "seeds": [*range(8)]}}})
    code, out, _ = call(command, tmp_path)
    assert code == 1
    assert "The last runs failed alike, so no other was started." in out
    assert not (tmp_path / "runs/tried/run/average/seed_7").exists()


@pytest.mark.slow
def test_a_point_that_diverged_is_kept_never_chosen_and_not_made_again(campaign, tmp_path):
    tune = FILE["studies"]["tune"] | {"grid": {"wild": ["optimizer.lr=1e30"], "fast": ["optimizer.lr=0.1"]}}
    run = FILE["studies"]["run"] | {"arms": ["average"], "then": {}, "tuned": {"study": "tune"}}
    command = campaign(FILE | {"studies": {"tune": tune, "run": run}})
    code, out, _ = call(command, tmp_path)
    assert (code, "tried: 3 of 3 runs" in out, "failed" in out) == (0, True, False)
    assert "tune 2/2, 1 diverged" in " ".join(out.split())
    wild, chosen = tmp_path / "kept/tune/average/wild/seed_100", tmp_path / "kept/run/average/seed_0"
    assert {path.name for path in wild.iterdir()} == {
        "config.yaml", "data.json", "failure.txt", "metrics.csv", "overrides.yaml"
    }  # fmt: skip
    assert "optimizer.lr=0.1" in yaml.safe_load((chosen / "overrides.yaml").read_text())
    elsewhere = environment(tmp_path) | {"FEDFEAT_CAMPAIGNS": str(tmp_path / "elsewhere")}
    assert call(command, tmp_path, env=elsewhere)[0] == 0
    assert not [*(tmp_path / "elsewhere").rglob("config.yaml")]


@pytest.mark.slow
def test_a_finished_run_of_other_words_is_refused(campaign, tmp_path):
    runs = {"studies": {"run": {"arms": ["average"], "seeds": [0]}}}
    assert call(campaign(FILE | runs), tmp_path)[0] == 0
    longer = campaign(FILE | runs | {"words": [*SMALL, "federation.num_rounds=3"]})
    code, _, err = call(longer, tmp_path)
    assert code == 2
    assert "made with federation.num_rounds=2, where the campaign has federation.num_rounds=3." in err
    assert call(longer, tmp_path, "--status")[::2] == (2, err), (
        "the status does not promise what a start refuses"
    )
    # One that has begun is refused as well, before another is made.
    (tmp_path / "runs" / "tried" / "run" / "average" / "seed_0" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "kept")
    code, _, begun = call(longer, tmp_path)
    assert (code, begun.count("made with federation.num_rounds=2")) == (2, 1)
    assert call(longer, tmp_path, "--status")[0] == 2
    # Where a run is made changes no number.
    same = campaign(FILE | runs | {"words": [*SMALL, "federation.num_rounds=2", "executor=processes"]})
    assert call(same, tmp_path)[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--with", "optimizer.lr=1", "--with", "executor=serial"],
            "--with must be an override that changes no number",
        ),
        (["--with", "hydra.run.dir=/tmp/x"], "--with must leave the folders of runs as they are"),
        (
            ["--with", "hydra.sweeper.params.seed=1"],
            "--with must leave out sweeps, for each run is one by itself",
        ),
        (["--with", "hydra.mode=MULTIRUN"], "--with must leave out sweeps, for each run is one by itself"),
        (["--with", "executor"], "--with must be an override that changes no number"),
        (["--with", "serial"], "--with must be an override that changes no number"),
    ],
)
def test_words_for_all_runs_change_no_number(campaign, tmp_path, words, said):
    code, _, err = call(campaign(), tmp_path, *words)
    assert code == 2
    assert said in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        (
            {"arms": FILE["arms"] | {"near": ["algorithm=fedproxx"]}},
            [],
            "run/near/seed_0: algorithm must be one of",
        ),
        (
            {"arms": FILE["arms"] | {"near": ["algorithm=fedprox", "optimizer.lr=-1"]}},
            [],
            "optimizer.lr must be in (0, inf)",
        ),
        ({"words": [*SMALL, "a=[1,"]}, [], "a=[1,"),
        ({}, ["--launcher", "nope"], "hydra/launcher must be one of"),
        ({}, ["--with", "executor=nope"], "executor must be one of"),
        (altered("tune", words=[]), [], "partition.val_fraction must be above 0"),
        (
            altered("run", then={"near": ["fedfeat-calibrat"]}),
            [],
            "studies.run.then.near must begin with a program, but it is 'fedfeat-calibrat'.",
        ),
    ],
)
def test_what_its_last_run_would_be_refused_for_is_said_before_the_first(
    campaign, tmp_path, change, more, said
):
    code, out, err = call(campaign(FILE | change), tmp_path, *more)
    assert (code, out) == (2, "")
    assert said in err
    assert not [*(tmp_path / "runs").rglob("config.yaml")]


@pytest.mark.parametrize("key", ["--into", "--runs"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_first_run(campaign, tmp_path, key):
    (tmp_path / "taken").write_text("")
    code, _, err = call(campaign(), tmp_path, key, "taken")
    assert code == 2
    assert err.startswith(f"{key} must be a folder that can be written, but taken")


@pytest.fixture
def cluster():
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    cluster = Cluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def on(cluster, tmp_path):
    return {**cluster.environment, **environment(tmp_path), "PATH": cluster.environment["PATH"]}


without_slurm = pytest.mark.skipif(
    bool(missing()), reason=f"SLURM is not installed: no {', '.join(missing())}"
)


@pytest.mark.slow
@without_slurm
def test_runs_are_jobs_of_slurm(campaign, cluster, tmp_path):
    # Hydra writes these in its own way for jobs.
    words = [
        "optimizer.lr=1e-2",
        "+optimizer.nesterov=true",
        "optimizer.momentum=0.50",
        "model.hidden=[8, 8]",
    ]
    study = {"arms": ["average", "near"], "seeds": [0], "words": words}
    command = [*campaign(FILE | {"studies": {"run": study}}), "--launcher", "submitit_slurm"]
    env = on(cluster, tmp_path)
    code, out, err = call(command, tmp_path, "--with", "hydra.launcher.timeout_min=7", env=env)
    assert code == 0, out + err
    assert call(command, tmp_path, env=env)[0] == 0
    scripts = [*(tmp_path / "runs/tried").rglob("*_submission.sh")]
    assert len(scripts) == 2
    assert all("--time=7" in script.read_text() for script in scripts)
    assert (tmp_path / "kept/run/near/seed_0/summary.json").exists()


@pytest.mark.slow
@without_slurm
def test_a_job_that_waits_on_slurm_is_not_submitted_again(campaign, cluster, tmp_path):
    study = {"arms": ["average"], "seeds": [0]}
    command = [*campaign(FILE | {"studies": {"run": study}}), "--launcher", "submitit_slurm"]
    env = on(cluster, tmp_path)
    cluster.call("scontrol", "update", "nodename=node1", "state=drain", "reason=test")
    code, said, _ = call(command, tmp_path, "--hours", "0.01", env=env)
    assert code == 0
    assert "The hours are over: jobs that are submitted go on by themselves." in said
    (job,) = cluster.call("squeue", "--noheader", "--array", "--format=%i").split()
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: is_locked(tmp_path / "runs/tried", ".campaign.lock"))
        cluster.call("scontrol", "update", "nodename=node1", "state=resume")
        assert process.wait(120) == 0
    assert (tmp_path / "kept/run/average/seed_0/summary.json").exists()
    jobs = [path.name for path in (tmp_path / "runs/tried/run/average/seed_0/.submitit").glob("[0-9]*")]
    assert jobs == [job]


@pytest.mark.slow
def test_what_follows_a_run_and_fails_is_named_and_the_run_is_not_kept(campaign, tmp_path):
    # It has brackets, which are markup to the library that draws.
    failing = ["python", "-c", "raise SystemExit('no [/x] and no [bold] table')"]
    study = {"arms": ["average"], "seeds": [0], "then": {"average": failing}}
    code, out, _ = call(campaign(FILE | {"studies": {"run": study}}), tmp_path)
    assert code == 1
    assert "run/average/seed_0: python after the run: no [/x] and no [bold] table" in " ".join(out.split())
    assert not (tmp_path / "kept" / "run").exists()
