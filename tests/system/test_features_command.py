"""`fedfeat-features` on finished runs, and what runs with ``diagnostics=alignment`` measure themselves."""

import csv
import json
import re
import shutil
from functools import partial

import numpy as np
import pytest
import yaml
from cut_runs import lose_end
from refusals import digest

from fedfeat.clients.worker import Worker
from fedfeat.commands import inspect_features as command
from fedfeat.commands.inspection import inspect
from fedfeat.loggers.csv_logger import CsvLogger

METHODS = ("fedavg", "fed2", "psi_net")
# Clients of two classes, so that psi_net's lack one of the three groups.
SKEWED = ("partition=n_classes", "partition.classes_per_client=2", "model.hidden=[9,6]")
MEASURED = ("diagnostics=alignment", "diagnostics.every=1", "diagnostics.images_per_class=10")
LAYERS = ["fc1", "fc2", "fc3"]
FILES = {"encoding_map.npz", "encoding_map.png", "features.csv", "features.json", "server_total_variance.png"}
PNG = b"\x89PNG"


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def summary(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def measured(run_dir):
    """What a run has measured: round to ``align/*``, without rounds where all of it is empty."""
    table = {int(row["round"]): row for row in rows(run_dir / "metrics.csv")}
    found = {r: {k: v for k, v in row.items() if k.startswith("align/") and v} for r, row in table.items()}
    return {r: {k: float(v) for k, v in row.items()} for r, row in found.items() if row}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("finished")


@pytest.fixture
def finished(cli, small, kept, tmp_path):
    """Copies of one finished run of each method, which measured its alignment in every round."""
    for method in METHODS:
        if not (kept / method).exists():
            arguments = (*SKEWED, *MEASURED, f"algorithm={method}", f"hydra.run.dir={kept / method}")
            assert cli(*small, *arguments).code == 0
    return {method: shutil.copytree(kept / method, tmp_path / method) for method in METHODS}


@pytest.fixture
def features(console):
    """Run ``fedfeat-features``; give exit code, stdout and stderr."""
    return partial(console, command.main)


@pytest.fixture
def untrained(monkeypatch):
    """Have every fit fail the test."""

    def fit(self, task):
        raise AssertionError("a client was trained")

    monkeypatch.setattr(Worker, "fit", fit)


def test_runs_are_compared_without_training_and_stay_as_they_are(finished, features, tmp_path, untrained):
    before = {method: digest(run) for method, run in finished.items()}
    code, out, err = features(*finished.values(), "--images", 10, "--out", tmp_path / "out")
    assert code == 0, err
    assert {method: digest(run) for method, run in finished.items()} == before
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert all(path.read_bytes().startswith(PNG) for path in (tmp_path / "out").glob("*.png"))
    table = rows(tmp_path / "out" / "features.csv")
    assert [(row["run"], row["layer"]) for row in table] == [
        (f"synthetic-{method}", layer) for method in METHODS for layer in LAYERS
    ]
    assert {row["round"] for row in table} == {"3"}
    for row in table:
        hidden = row["layer"] != "fc3"
        assert all((row[name] != "") == hidden for name in ("agreement", "distance", "clients_tv"))
        assert 0 <= float(row["server_tv"]) <= 1
    for method in METHODS:
        line = rf"synthetic-{method}, round 3: agreement [01]\.\d{{3}} \(clients as the run measured them after .*\)"
        assert re.search(f"^{line}$", out, re.MULTILINE)
    record = json.loads((tmp_path / "out" / "features.json").read_text())
    assert [run["preferences"]["images_per_class"] for run in record["runs"].values()] == [10] * 3
    assert record["maximisation"] is None


def test_of_a_folder_runs_without_a_checkpoint_are_skipped_and_named(finished, features, tmp_path):
    for name, method in {"a": "fedavg", "b": "fed2"}.items():
        shutil.copytree(finished[method], tmp_path / "all" / name)
    shutil.rmtree(tmp_path / "all" / "a" / "checkpoints")
    code, _, err = features(tmp_path / "all", "--images", 10, "--out", tmp_path / "out")
    assert code == 0
    assert err == f"{tmp_path}/all/a: skipped, DIR must hold a checkpoint, but {tmp_path}/all/a has none.\n"
    assert {row["run"] for row in rows(tmp_path / "out" / "features.csv")} == {"synthetic-fed2"}
    code, _, err = features(tmp_path / "all", tmp_path / "all" / "a")
    assert (code, err) == (
        2,
        f"fedfeat-features: DIR must hold a checkpoint, but {tmp_path}/all/a has none.\n",
    )
    code, _, err = features(tmp_path / "all", "--round", 9)
    assert (code, err.count("skipped"), err.count("fedfeat-features: round must be one of")) == (2, 0, 1)


def test_without_out_the_first_runs_figures_get_the_files(finished, features):
    before = digest(finished["fed2"])
    assert features(finished["fed2"], "--images", 10)[0] == 0
    after = digest(finished["fed2"])
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {f"figures/{name}" for name in FILES}


@pytest.mark.parametrize("method", METHODS)
def test_what_the_run_measured_is_read_from_its_folder(method, finished, untrained):
    found = inspect(finished[method], images_per_class=10)
    assert found.alignment.metrics == measured(finished[method])[3]
    assert list(found.models) == ["server"]
    assert found.note == ""
    other = inspect(finished[method], images_per_class=9)
    assert other.alignment is None
    assert other.note == (
        "its checkpoint holds no models of clients, so the server's alone is drawn; "
        "--refit trains each of its 4 clients once more and adds theirs."
    )


@pytest.mark.parametrize("method", METHODS)
def test_it_measures_what_the_next_round_measured(method, finished):
    """The checkpoint of round 2 stands where the third round began, and all clients took part in that."""
    found = inspect(finished[method], 2, refit=True, images_per_class=10)
    assert found.round_idx == 2
    assert found.alignment.metrics == measured(finished[method])[3]
    newest = inspect(finished[method], refit=True, images_per_class=10)
    assert newest.round_idx == 3
    assert newest.alignment.metrics != found.alignment.metrics


def test_groups_of_one_class_agree_and_trimmed_clients_count_for_theirs_alone(finished):
    """fc2 is grouped: what a neuron of it works for is its group's class, or nothing."""
    found = {method: inspect(finished[method], images_per_class=10) for method in METHODS}
    assert [one.layers for one in found.values()] == [LAYERS] * 3
    for method in ("fed2", "psi_net"):
        assert found[method].alignment.metrics["align/agreement_fc2"] == 1.0
        for client in found[method].alignment.primaries[1]:
            assert all(c in (-1, i // 2) for i, c in enumerate(client.tolist()))
    # Every client of psi_net lacks a group, two of the six neurons.
    assert all((c.view(3, 2) == -1).all(1).any() for c in found["psi_net"].alignment.primaries[1])


def test_runs_of_one_name_are_told_apart(finished, features, tmp_path):
    run = finished["fedavg"]
    again = shutil.copytree(run, tmp_path / "again")
    assert features(run, again, run, "--images", 10, "--out", tmp_path)[0] == 0
    table = rows(tmp_path / "features.csv")
    assert [row["run"] for row in table] == ["synthetic-fedavg 1"] * 3 + ["synthetic-fedavg 2"] * 3
    assert [dict(row, run="") for row in table[:3]] == [dict(row, run="") for row in table[3:]]


def test_the_markdown_table_has_a_row_per_layer_and_a_column_per_run(finished):
    found = [inspect(finished[method], images_per_class=10) for method in METHODS[:2]]
    head, line, *body = command.markdown(found, "agreement").splitlines()
    assert (head, line) == ("| layer | synthetic-fedavg | synthetic-fed2 |", "| --- | --- | --- |")
    values = [one.alignment.metrics for one in found]
    assert body == [
        "| {} | {:.3f} | {:.3f} |".format(layer, *(m[f"align/agreement_{layer}"] for m in values))
        for layer in LAYERS[:2]
    ]
    assert len(command.markdown(found, "server_tv").splitlines()) == 2 + 3


def test_personal_state_and_kept_momentum_stay_as_they_are(cli, small, features, tmp_path):
    """The store holds more than fits into its RAM. The server has no model, so there is no TV of one."""
    personal = ("algorithm.client.personal=[head]", "federation.opt_state=keep")
    assert cli(*small, *personal, "federation.ram_budget_mb=0.001").code == 0
    before = digest(tmp_path / "run")
    assert any(name.startswith("clients/") for name in before)
    said = {"own": "clients' own models in the checkpoint", "refit": "clients after one more local training"}
    agreements = set()
    for name, words in (("refit", ["--refit"]), ("own", [])):
        code, out, err = features(tmp_path / "run", "--images", 10, "--out", tmp_path / "out", *words)
        assert code == 0, err
        assert said[name] in out
        assert digest(tmp_path / "run") == before
        (row,) = rows(tmp_path / "out" / "features.csv")
        assert (row["layer"], row["server_tv"]) == ("fc1", "")
        agreements.add(row["distance"])
    assert len(agreements) == 2
    assert not (tmp_path / "out" / "server_total_variance.png").exists()


def test_kept_models_are_read_without_training(cli, small, features, tmp_path, monkeypatch):
    """Of clients that share nothing: as they were after their last fit, which the run has measured."""
    assert cli(*small, *MEASURED, "algorithm=local").code == 0
    monkeypatch.setattr(Worker, "fit", None)
    found = inspect(tmp_path / "run")
    assert found.clients == "clients' own models in the checkpoint"
    assert list(found.models) == [f"client {k}" for k in range(4)]
    assert found.alignment.metrics == measured(tmp_path / "run")[3]


@pytest.mark.parametrize("words", [(), ("--refit",)])
def test_a_single_client_has_the_servers_variance_alone(words, cli, small, features, tmp_path, monkeypatch):
    assert cli(*small, "algorithm=centralized").code == 0
    monkeypatch.setattr(Worker, "fit", None)
    code, out, _ = features(tmp_path / "run", "--images", 10, "--out", tmp_path / "out", *words)
    assert code == 0
    refused = ", so --refit trains nothing" if words else ""
    assert f"round 3: it has one client, and nobody to compare it with{refused}.\n" in out
    assert [row["agreement"] for row in rows(tmp_path / "out" / "features.csv")] == ["", ""]
    with np.load(tmp_path / "out" / "encoding_map.npz") as file:
        assert [key for key in file.files if "primary" in key] == ["synthetic-centralized/primary/fc1"]
        assert file["synthetic-centralized/primary/fc1"].shape == (1, 8)


def test_clients_without_a_common_neuron_have_none_to_compare(cli, small, features, tmp_path):
    alone = ("algorithm=psi_net", "structure.boundary=dense", "structure.depth=0", "federation.num_clients=2")
    classes = ("partition=n_classes", "partition.classes_per_client=1", "diagnostics=alignment")
    assert cli(*small, *alone, *classes, "data.loader.num_classes=2").code == 0
    code, out, err = features(tmp_path / "run", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert ": no neuron of two clients to compare (" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("{root}/nothing", "DIR must be a folder, but it is '{root}/nothing'."),
        ("{root}/empty", "DIR must be a run directory, but {root}/empty has no config.yaml."),
        ("{root}/bare", "DIR must hold a checkpoint, but {root}/bare has none."),
        ("{root}/fedavg --round 1", "round must be one of the checkpoints in {root}/fedavg (2, 3), but it is 1."),
        ("{root}/fedavg --images 0", "diagnostics.images_per_class must be an integer of at least 1, but it is 0."),
        ("{root}/fedavg --neurons fc9:0", "--neurons must name a layer of synthetic-fedavg (fc1, fc2, fc3), but "),
        ("{root}/fedavg --maximise fc1:9", "--maximise must have neurons from 0 to 8 for fc1 of synthetic-fedavg, "),
        ("{root}/fedavg --clients 1,4", "--clients must be from 0 to 3 for synthetic-fedavg, but it is 4."),
        ("{root}/fedavg --maximise fc1:0 --steps 0", "--steps must be an integer of at least 1, but it is 0."),
        ("{root}/lost", "{root}/images/train must be a readable folder, but it is not "),
    ],
)  # fmt: skip
def test_what_cannot_be_inspected_is_refused_in_one_sentence(
    arguments, sentence, finished, features, tmp_path
):
    shutil.copytree(finished["fedavg"], tmp_path / "bare", ignore=shutil.ignore_patterns("checkpoints"))
    config = yaml.safe_load(
        (shutil.copytree(finished["fedavg"], tmp_path / "lost") / "config.yaml").read_text()
    )
    config["data"]["loader"] = {"_target_": "fedfeat.data.folder.image_folder", "root": f"{tmp_path}/images"}
    (tmp_path / "lost" / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "empty").mkdir()
    before = digest(tmp_path)
    code, out, err = features(*arguments.format(root=tmp_path).split())
    assert (code, out) == (2, "")
    assert err.startswith(f"fedfeat-features: {sentence.format(root=tmp_path)}")
    assert err.count("\n") == 1
    assert digest(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["diagnostics.every=2", "federation.num_rounds=5"], [2, 4, 5]),
        (["federation.eval_every=2"], [2, 3]),  # only evaluated rounds are
    ],
)
def test_only_measured_rounds_have_alignment(arguments, expected, cli, small, tmp_path):
    assert cli(*small, *MEASURED, *arguments).code == 0
    found = measured(tmp_path / "run")
    assert list(found) == expected
    columns = {
        "align/agreement",
        "align/distance",
        *(f"align/{w}_fc1" for w in ("agreement", "distance", "tv")),
    }
    assert all(row.keys() == columns and 0 <= row["align/agreement"] <= 1 for row in found.values())
    pictures = sorted(path.name for path in (tmp_path / "run" / "figures").glob("encoding_*.png"))
    assert pictures == [f"encoding_round_000{r}.png" for r in expected]
    final = summary(tmp_path / "run")["final"]
    assert final["align/agreement"] == found[expected[-1]]["align/agreement"]


def test_measuring_changes_no_weights(cli, small, tmp_path):
    """Dropout would show it, were the generators of the fits touched."""
    for name, more in (("plain", ()), ("measured", MEASURED)):
        assert cli(*small, "model.dropout=0.2", *more, f"hydra.run.dir={tmp_path / name}").code == 0
    assert len({summary(tmp_path / name)["weights_sha256"] for name in ("plain", "measured")}) == 1
    assert not any(key.startswith("align/") for key in rows(tmp_path / "plain" / "metrics.csv")[0])


def test_loggers_get_the_pictures(cli, small, tmp_path, monkeypatch):
    given = []

    def picture(self, name, path):
        assert path.read_bytes().startswith(PNG)
        given.append((name, path))

    monkeypatch.setattr(CsvLogger, "picture", picture)
    assert cli(*small, *MEASURED, "federation.num_rounds=2").code == 0
    files = ["encoding_round_0001", "encoding_round_0002", "overview", "convergence", "split"]
    assert [path for _, path in given] == [tmp_path / "run" / "figures" / f"{name}.png" for name in files]
    assert [name for name, _ in given] == ["encoding", "encoding", "overview", "convergence", "split"]


@pytest.mark.parametrize("method", ["fed2", "psi_net"])
def test_a_broken_run_measures_what_an_unbroken_one_does(method, finished, cli, small):
    """The last round is lost with its checkpoint, and comes again."""
    run = finished[method]
    expected = measured(run)
    weights = summary(run)["weights_sha256"]
    lose_end(run, 3)
    (run / "figures" / "encoding_round_0003.png").unlink()
    assert cli(*small, *SKEWED, *MEASURED, f"algorithm={method}", f"hydra.run.dir={run}").code == 0
    assert measured(run) == expected
    assert list(expected) == [1, 2, 3]
    assert summary(run)["weights_sha256"] == weights
    assert (run / "figures" / "encoding_round_0003.png").read_bytes().startswith(PNG)
