"""Whole runs on networks that start from a file, are frozen in part, or whose frozen part is passed once."""

import json
import shutil

import pytest
import torch
from cut_runs import lose_end, outcome
from safetensors.torch import save_file

import fedfeat
from fedfeat.commands import inspect_features
from fedfeat.commands.calibrate import main as calibrate
from fedfeat.data.digits import digits
from fedfeat.models.cnn import digits_cnn
from fedfeat.models.freezing import still_keys

SMALL = (
    "data=digits", "data.loader.num_train=120", "data.loader.num_test=40", "partition=iid", "model=digits_cnn",
    "model.width=4", "model.norm=bn", "algorithm=fedavg", "federation.num_clients=4", "federation.num_rounds=3",
    "federation.batch_size=8", "federation.local_epochs=1", "trainer=cpu",
)  # fmt: skip
CACHED = (*SMALL, "model.freeze=[body]", "model.cached=true")


def start(path, seed=0):
    torch.manual_seed(seed)
    save_file(digits_cnn((1, 8, 8), 10, width=4, norm="bn").state_dict(), path)
    return f"model.weights={path}"


def read_summary(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def test_a_stored_model_of_a_cached_run_reads_images(cli, tmp_path):
    assert cli(*CACHED, start(tmp_path / "start.safetensors")).code == 0
    found = fedfeat.load(tmp_path / "run")
    model, test = found.model(), digits(num_train=120, num_test=40).test
    assert len(still_keys(model.module.model)) == 16
    acc = (model.predict(test.inputs) == test.labels).float().mean()
    assert float(acc) == pytest.approx(found.summary["final"]["global/acc"], abs=1e-6)
    assert 0 < found.summary["final"]["compute/flops"] < 3 * 120 * 3 * 2 * 32 * 10


def test_what_is_looked_at_is_the_whole_network(cli, console, tmp_path):
    assert cli(*CACHED).code == 0
    out = str(tmp_path / "out")
    code, _, err = console(inspect_features.main, tmp_path / "run", "--out", out)
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "out" / "features.json").read_text())
    code, text, err = console(calibrate, tmp_path / "run", "--epochs", "1", "--per-class", "4", "--out", out)
    assert (code, err) == (0, "")
    assert "accuracy" in text


def test_a_cached_run_of_a_server_that_builds_networks_can_be_opened(cli, console, tmp_path):
    """Its students are what is behind the features; looked at is the whole network."""
    words = ("algorithm=feddf", "algorithm.server.source=train_pool", "algorithm.server.steps=4")
    assert cli(*CACHED, *words).code == 0
    code, _, err = console(inspect_features.main, tmp_path / "run", "--out", str(tmp_path / "out"))
    assert (code, err) == (0, "")
    assert len(still_keys(fedfeat.load(tmp_path / "run").model().module.model)) == 16


@pytest.mark.parametrize("algorithm", ["moon", "fedproto"])
def test_a_cached_run_goes_on_from_its_middle_to_the_same_weights(algorithm, cli, tmp_path):
    """Clients have memories; the features are read again, or made again where they are gone."""
    command = [*CACHED, f"algorithm={algorithm}", "federation.cohort_size=3"]
    assert cli(*command).code == 0
    path = tmp_path / "run" / "summary.json"
    expected = json.loads(path.read_text())
    for gone in (False, True):
        path.unlink()
        for checkpoint in sorted((tmp_path / "run" / "checkpoints").glob("*.json"))[1:]:
            checkpoint.unlink()
        if gone:
            shutil.rmtree(tmp_path / "logs" / "cache" / "features")
        assert cli(*command).code == 0
        assert json.loads(path.read_text())["weights_sha256"] == expected["weights_sha256"]


def test_a_run_goes_on_with_its_file_of_weights_at_another_place(cli, tmp_path):
    command = [*SMALL, "federation.checkpoint_every=1"]
    assert cli(*command, start(tmp_path / "start.safetensors")).code == 0
    expected = outcome(tmp_path / "run")
    lose_end(tmp_path / "run", 3)
    (tmp_path / "start.safetensors").unlink()
    other = cli(*command, start(tmp_path / "other.safetensors", seed=1))
    assert other.code == 2
    assert "began with, but its digest is " in other.stderr
    assert cli(*command, start(tmp_path / "moved.safetensors")).code == 0
    assert outcome(tmp_path / "run") == expected


def test_a_run_whose_file_of_weights_has_changed_is_refused(cli, tmp_path, caplog):
    given = start(tmp_path / "start.safetensors")
    command = [*SMALL, given, "model.freeze=[encoder]"]
    assert cli(*command).code == 0
    start(tmp_path / "start.safetensors", seed=1)
    finished = cli(*command)
    assert finished.code == 2
    assert "model.weights must be the file that the run in " in finished.stderr
    (tmp_path / "start.safetensors").unlink()
    assert cli(*command).code == 0
    assert "had these weights is unknown: model.weights must name a file that can be read" in caplog.text
    (tmp_path / "run" / "summary.json").unlink()
    start(tmp_path / "start.safetensors", seed=1)
    again = cli(*command)
    assert again.code == 2
    assert "model.weights must be the file that the run in " in again.stderr
    assert "began with, but its digest is " in again.stderr
    with pytest.raises(
        fedfeat.errors.CheckpointError, match=r"model\.weights must be the file that the run in "
    ):
        fedfeat.load(tmp_path / "run").model()
    start(tmp_path / "start.safetensors")
    assert cli(*command).code == 0
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "start.safetensors").unlink()
    gone = cli(*command)
    assert "model.weights must name a file that can be read (No such file" in gone.stderr


def test_digests_are_those_of_before_there_were_these_keys(cli, tmp_path):
    from fedfeat.runs.directory import config_sha256, experiment_config

    assert cli(*SMALL, "federation.num_rounds=0").code == 0
    config = fedfeat.load(tmp_path / "run").config
    assert {"weights", "fresh", "freeze", "cached"} <= config["model"].keys()
    old = {**config, "model": {key: value for key, value in config["model"].items() if value}}
    assert not {"weights", "fresh", "freeze", "cached"} & experiment_config(config)["model"].keys()
    assert config_sha256(old) == config_sha256(config)
    assert config_sha256({**config, "model": {**config["model"], "freeze": ["encoder"]}}) != config_sha256(
        config
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("model.freeze=encoder",), "model.freeze must be a list in which each must be a non-empty text"),
        (("model.cached=yes please",), "model.cached must be true or false, but it is 'yes please'."),
        (("model.cached=true",), "model.cached must be false where model.freeze is empty, but it is True."),
        (("model.cached=true", "model.freeze=[body]", "pool=small4"),
         "model.cached must be false for a pool, whose networks see other features each, but it is True."),
        (("model.freeze=[body]", "algorithm=fed2"),
         "model.freeze must be left out of networks with groups or levels (structure), but it is ['body']."),
        (("model.freeze=[head.fc3]",), "but it is 'head.fc3'; did you mean head.fc"),
        (("model.fresh=[last]",), "model.fresh must be empty without model.weights, but it is ['last']."),
        (("model.weights=nowhere.safetensors",), "model.weights must name a file that can be read (No such file"),
        (("model.wieghts=a",), "did you mean weights"),
        (("pool=small4", "pool.weights={cnn: nowhere}"), "pool.weights.cnn must name a file that can be read (No such"),
        (("pool=small4", "pool.freeze={cnn: [encoder.conv3]}"), "pool.freeze.cnn must name parts of the network by "),
    ],
)  # fmt: skip
def test_refusals_are_one_sentence_and_leave_no_run(words, sentence, cli, tmp_path):
    found = cli(*SMALL, *words)
    assert found.code == 2
    assert sentence in found.stderr
    assert found.stderr.count("\n") == 1
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("algorithm=fedrep", "algorithm.client.head_epochs=1"),
        ("algorithm=fedpac", "algorithm.client.head_epochs=1"),
    ],
    ids=["fedrep", "fedpac"],
)
def test_heads_train_on_a_body_that_is_frozen_as_a_whole(cli, tmp_path, words):
    """A step of theirs costs what one costs whose body waits for its own epochs."""
    *rest, body = (*SMALL, *words, "federation.local_epochs=1", "model.freeze=[body]")
    assert cli(*rest, body).code == 0
    frozen = read_summary(tmp_path / "run")
    assert cli(*rest, f"hydra.run.dir={tmp_path / 'whole'}").code == 0
    assert frozen["final"]["compute/flops"] == read_summary(tmp_path / "whole")["final"]["compute/flops"] > 0
