"""Options of the groups `debug`, `callbacks` and `scenario` in use."""

import json

import pytest
from presets import composed

from fedfeat.config.choices import options
from fedfeat.runs.directory import config_sha256, experiment_config

pytestmark = pytest.mark.slow

RUN = ("algorithm=fedavg", "model=mlp", "trainer.num_threads=1", "federation.num_rounds=1")


def summary(folder):
    (path,) = folder.rglob("summary.json")
    return json.loads(path.read_text()), path.parent


def test_a_fast_run_is_one_round_of_one_step_in_a_place_of_its_own(cli, tmp_path):
    outcome = cli("--multirun", "debug=fdr", "algorithm=fedavg,fedhenn", "logger=tensorboard", "trainer=gpu",
                  "trainer.accelerator=cpu", "federation.num_clients=4", "partition=iid")  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    found = [
        json.loads(path.read_text())
        for path in (tmp_path / "logs" / "debug" / "sweeps").rglob("summary.json")
    ]
    assert {one["algorithm"] for one in found} == {"fedavg", "fedhenn"}
    for one in found:
        assert one["num_rounds"] == 1
        assert one["final"]["compute/examples"] == 4 * 16
    assert not (tmp_path / "logs" / "sweeps").exists()


def test_limited_clients_have_a_twentieth_of_their_examples(cli, tmp_path):
    outcome = cli("debug=limit", *RUN, "federation.local_epochs=1")
    assert outcome.code == 0, outcome.stderr
    found, _ = summary(tmp_path / "run")
    assert 50 < found["final"]["compute/examples"] < 1438 / 10


def test_few_examples_are_learnt_by_heart(cli, tmp_path):
    few = ("federation.num_rounds=2", "federation.num_clients=3", "partition=iid")
    outcome = cli("debug=overfit", *RUN[:-1], *few, "optimizer.lr=0.1")
    assert outcome.code == 0, outcome.stderr
    found, _ = summary(tmp_path / "run")
    assert found["final"]["train/loss"] < 0.1


def test_a_profile_lies_in_the_run_directory(cli, tmp_path):
    outcome = cli(
        "debug=profiler", *RUN, "federation.local_epochs=1", "federation.num_clients=4", "partition=iid"
    )
    assert outcome.code == 0, outcome.stderr
    text = (tmp_path / "run" / "fit-profile.txt").read_text()
    assert "ClientModule.optimizer_step" in text
    assert text.count("FIT Profiler Report") == 4


def test_every_callback_runs(cli, tmp_path):
    """Numbers change where a callback has a say in training, and nowhere else."""
    run = (*RUN, "federation.num_clients=2", "partition=iid", "trainer=cpu", "federation.local_epochs=4")
    stopping = ("callbacks.early_stopping.patience=1", "callbacks.early_stopping.min_delta=10.0")
    digests = {}
    for option in options("callbacks"):
        more = stopping if option == "early_stopping" else ()
        outcome = cli(*run, f"callbacks={option}", *more, f"hydra.run.dir={tmp_path / option}")
        assert outcome.code == 0, outcome.stderr
        digests[option] = summary(tmp_path / option)[0]["weights_sha256"]
    others = {option for option, digest in digests.items() if digest != digests["none"]}
    assert others == {"early_stopping", "weight_averaging"}


def test_what_helps_to_look_does_not_tell_experiments_apart():
    plain = composed()
    for more in (["trace=true"], ["+trainer.detect_anomaly=true"], ["trainer.profiler=simple"]):
        assert config_sha256(composed(*more)) == config_sha256(plain)
    for more in (["trainer.limit_train_batches=2"], ["callbacks=early_stopping"], ["scenario=stragglers"]):
        assert config_sha256(composed(*more)) != config_sha256(plain)
    assert "scenario" in experiment_config(plain)
    public = [composed("data@public=mnist", f"public.root=/{place}", f"data.root=/{place}") for place in "ab"]
    assert config_sha256(public[0]) == config_sha256(public[1]) != config_sha256(plain)


def test_scenarios_are_each_about_one_thing():
    none = composed("scenario=none")["scenario"]
    changes = {
        option: {
            key: value
            for key, value in composed(f"scenario={option}")["scenario"].items()
            if none[key] != value
        }
        for option in options("scenario")
    }
    assert changes == {
        "none": {}, "stragglers": {"straggler_fraction": 0.5}, "weak": {"weak_fraction": 0.4},
        "reduced": {"reduced_fraction": 0.5},
        "random_epochs": {"straggler_fraction": 1.0, "straggler_least": 2},
    }  # fmt: skip
