"""`fedfeat-features` on chosen neurons: bars and pictures, for the server and every client."""

import csv
import json
import shutil
from functools import partial

import numpy as np
import pytest
from tweets import tiny_tweets

from fedfeat.clients.worker import Worker
from fedfeat.commands import inspect_features as command

MODELS = ["server", *(f"client {k}" for k in range(4))]


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("finished") / "run"


@pytest.fixture
def trimmed(cli, small, kept, tmp_path):
    """Clients of two classes lack one of three groups."""
    skewed = (
        "algorithm=psi_net",
        "partition=n_classes",
        "partition.classes_per_client=2",
        "model.hidden=[9,6]",
    )
    if not kept.exists():
        assert cli(*small, *skewed, f"hydra.run.dir={kept}").code == 0
    return shutil.copytree(kept, tmp_path / "run")


@pytest.fixture
def features(console, tmp_path):
    """Run ``fedfeat-features`` into a folder."""
    return partial(console, command.main, "--images", 10, "--out", tmp_path / "out")


def test_bars_of_the_server_and_every_client(trimmed, features, tmp_path):
    code, _, err = features(trimmed, "--refit", "--neurons", "fc1:0,fc2:0-5")
    assert code == 0, err
    table = rows(tmp_path / "out" / "preferences_fc2.csv")
    assert list(dict.fromkeys(row["model"] for row in table)) == MODELS
    assert len([row for row in table if row["model"] == "server"]) == 6 * 3
    for model in MODELS[1:]:
        # Two neurons of its six are of the group that it lacks.
        assert len([row for row in table if row["model"] == model]) == 4 * 3
    by_neuron = {}
    for row in table:
        by_neuron.setdefault((row["model"], row["neuron"]), []).append(row)
    for found in by_neuron.values():
        raw, shares = ([float(row[key] or "nan") for row in found] for key in ("preference", "share"))
        clipped = np.clip(raw, 0, None)
        expected = clipped / clipped.sum() if clipped.any() else [np.nan] * 3
        np.testing.assert_allclose(shares, expected, atol=1e-5)
    for layer in ("fc1", "fc2"):
        assert (tmp_path / "out" / f"preferences_{layer}.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_raise_activations_in_the_order_of_the_servers_neurons(trimmed, features, tmp_path):
    words = ("--refit", "--maximise", "fc2:5,0", "--maximise", "fc3:2", "--clients", "1,3", "--steps", 64)
    code, _, err = features(trimmed, *words)
    assert code == 0, err
    table = rows(tmp_path / "out" / "maximised_fc2.csv")
    assert [(row["model"], row["neuron"]) for row in table] == [
        (model, neuron) for model in ("server", "client 1", "client 3") for neuron in "50"
    ]
    with np.load(tmp_path / "out" / "maximised_fc2.npz") as file:
        pixels = {key: file[key] for key in file.files}
    assert pixels.pop("neurons").tolist() == [5, 0]
    for row in table:
        picture = pixels[row["model"]]["50".index(row["neuron"])]
        assert picture.shape == (1, 4, 4)
        if row["activation"] == "":
            assert np.isnan(picture).all()
        else:
            assert 0 <= picture.min() <= picture.max() <= 1
            assert float(row["activation"]) >= float(row["activation_at_start"])
    assert any(
        float(row["activation"]) > float(row["largest_of_images"]) for row in table if row["activation"]
    )
    record = json.loads((tmp_path / "out" / "features.json").read_text())["maximisation"]
    assert record == {
        "steps": 64, "lr": 0.1, "decay": 0.05, "blur": 0.5, "blur_every": 4, "jitter": 1, "seed": 0
    }  # fmt: skip


def test_a_classs_logit_is_lacking_where_the_class_is(trimmed, features, tmp_path):
    assert features(trimmed, "--refit", "--maximise", "fc3:0-2", "--steps", 2)[0] == 0
    table = rows(tmp_path / "out" / "maximised_fc3.csv")
    assert [sum(row["activation"] != "" for row in table if row["model"] == m) for m in MODELS] == [
        3,
        2,
        2,
        2,
        2,
    ]


def test_the_servers_pictures_need_no_training_and_are_the_same_twice(
    trimmed, features, tmp_path, monkeypatch
):
    monkeypatch.setattr(Worker, "fit", None)
    found = []
    for seed in (0, 0, 1):
        code, out, _ = features(
            trimmed, "--maximise", "fc1:0-3", "--neurons", "fc1:0", "--steps", 8, "--seed", seed
        )
        assert code == 0
        assert "so the server's alone is drawn; --refit trains each of its 4 clients once more" in out
        found.append((tmp_path / "out" / "maximised_fc1.npz").read_bytes())
    assert found[0] == found[1]
    assert found[0] != found[2]
    assert {row["model"] for row in rows(tmp_path / "out" / "preferences_fc1.csv")} == {"server"}


def test_files_of_several_runs_have_their_names(trimmed, features, tmp_path):
    other = shutil.copytree(trimmed, tmp_path / "other")
    assert features(trimmed, other, "--maximise", "fc1:0", "--steps", 2)[0] == 0
    names = sorted(path.name for path in (tmp_path / "out").glob("maximised_*.png"))
    assert names == ["maximised_synthetic-psi_net-1_fc1.png", "maximised_synthetic-psi_net-2_fc1.png"]


def test_inputs_that_are_no_images_are_refused(cli, features, tmp_path):
    outcome = cli(
        "data=sent140", "model=sent140_lstm", "model.hidden=6", "partition=natural", "partition.column=user",
        *tiny_tweets(tmp_path / "tweets"), "data.loader.num_tokens=4", "federation.num_clients=4",
        "federation.num_rounds=1", "algorithm=fedavg", "trainer=cpu", f"hydra.run.dir={tmp_path / 'run'}",
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    code, _, err = features(tmp_path / "run", "--maximise", "fc1:0")
    assert code == 2
    assert err == (
        "fedfeat-features: --maximise must be left out for sent140-fedavg, because it draws images, but inputs of "
        "sent140 are (4,) of int32.\n"
    )
