"""`fedfeat-calibrate` on finished runs."""

import csv
import json
from functools import partial

import numpy as np
import pytest
import torch
from refusals import digest
from safetensors.torch import load_file

import fedfeat
from fedfeat.commands import calibrate as command
from fedfeat.commands.calibration import Calibrated, Settings, _moments
from fedfeat.commands.client_models import become_server
from fedfeat.commands.reopen import reopen

SKEWED = ("partition=n_classes", "partition.classes_per_client=2", "model.hidden=[9,6]")
PERMUTED = ("partition=permuted", "model.hidden=[9,6]")
FILES = {"calibration.csv", "calibration.json", "calibrated_last_layer.safetensors"}


@pytest.fixture
def calibrate(console):
    """Run ``fedfeat-calibrate``; give exit code, stdout and stderr."""
    return partial(console, command.main)


@pytest.fixture
def finished(cli, small, tmp_path):
    """Make a finished run."""

    def make(method, *more, split=SKEWED):
        run = tmp_path / method
        assert cli(*small, *split, f"algorithm={method}", f"hydra.run.dir={run}", *more).code == 0
        return run

    return make


def row_of(folder):
    with (folder / "calibration.csv").open() as file:
        (row,) = csv.DictReader(file)
    return row


@pytest.mark.parametrize(
    ("method", "split"),
    [
        *((method, SKEWED) for method in ("fedavg", "fed2", "moon", "fedrod")),
        ("fedavg", PERMUTED),
        ("fedavg", (*PERMUTED, "partition.global_order=server")),
    ],
)
def test_a_run_is_calibrated_and_stays_as_it_is(method, split, finished, calibrate, tmp_path):
    run = finished(method, split=split)
    before, out = digest(run), tmp_path / "out"
    code, printed, err = calibrate(run, "--out", out, "--covariance", "diagonal", "--lr", 0.1)
    assert code == 0, err
    assert digest(run) == before
    assert {path.name for path in out.iterdir()} == FILES
    row, summary = row_of(out), json.loads((run / "summary.json").read_text())
    assert float(row["acc"]) == pytest.approx(summary["final"]["global/acc"], abs=1e-9)
    assert float(row["loss"]) == pytest.approx(summary["final"]["global/loss"], rel=1e-5)
    assert float(row["loss_calibrated"]) != float(row["loss"])
    assert "virtual features; a client sends" in printed
    # What was scored are the tensors in the file.
    experiment, checkpoint = reopen(run)
    assert become_server(experiment, checkpoint)
    module = experiment.executor.worker.module.eval()
    tensors = load_file(out / "calibrated_last_layer.safetensors")
    module.model.load_state_dict(tensors, strict=False)
    test, data = experiment.data.dataset.test, experiment.data
    # Under permuted each client has its own order of the pixels, and here all have the whole test set.
    views = range(4) if split == PERMUTED else [None]
    with torch.no_grad():
        logits = torch.cat([module(data.plain(test.inputs, client_id)) for client_id in views])
    labels = test.labels.repeat(len(views))
    assert float(row["acc_calibrated"]) == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    loss = torch.nn.functional.cross_entropy(logits, labels)
    assert float(row["loss_calibrated"]) == pytest.approx(float(loss), rel=1e-5)


def test_moments_are_those_of_all_training_examples_together(finished):
    experiment, checkpoint = reopen(finished("fedavg"))
    become_server(experiment, checkpoint)
    from fedfeat.features.prototypes import covariances, pooled

    found = pooled(_moments(experiment))
    train, network = experiment.data.dataset.train, experiment.executor.worker.module.model.eval()
    with torch.no_grad():
        z = network.representation(experiment.data.plain(train.inputs)).double().numpy()
    for c in range(network.num_classes):
        own = z[train.labels.numpy() == c]
        assert int(found.counts[c]) == len(own) > 1
        np.testing.assert_allclose(found.means[c].numpy(), own.mean(0), rtol=0, atol=1e-5)
        np.testing.assert_allclose(covariances(found)[c].numpy(), np.cov(own.T), rtol=0, atol=1e-5)


def test_no_epoch_changes_nothing_and_equal_settings_give_equal_numbers(finished, calibrate, tmp_path):
    run = finished("fedavg")
    for name, words in {"none": ("--epochs", 0), "one": (), "two": ()}.items():
        assert calibrate(run, "--out", tmp_path / name, *words)[0] == 0
    none, one, two = (row_of(tmp_path / name) for name in ("none", "one", "two"))
    assert (none["acc"], none["loss"]) == (none["acc_calibrated"], none["loss_calibrated"])
    assert one == two
    assert one["loss_calibrated"] != one["loss"]
    model = fedfeat.load(run).model().module.model
    kept = load_file(tmp_path / "none" / "calibrated_last_layer.safetensors")
    assert all(torch.equal(tensor, model.state_dict()[key].cpu()) for key, tensor in kept.items())


def test_the_runs_of_a_folder_are_calibrated_beside_each_other(finished, calibrate, tmp_path):
    for method in ("fedavg", "fedprox"):
        finished(method)
    code, _, err = calibrate(tmp_path, "--epochs", 0)
    assert (code, err) == (0, "")
    with (tmp_path / "figures" / "calibration.csv").open() as file:
        assert [row["run"] for row in csv.DictReader(file)] == ["synthetic-fedavg", "synthetic-fedprox"]


def test_a_comma_in_a_runs_name_moves_no_column(tmp_path):
    one = Calibrated("fed,avg", 3, (0.5, 1.0), (0.6, 0.9), 10, 20, {"weight": torch.zeros(1)})
    table, *_ = command.write([one], Settings(), tmp_path)
    assert [*csv.reader(table.read_text().splitlines())] == command.rows([one])


def test_a_run_without_a_servers_model_and_wrong_numbers_are_refused(finished, calibrate, tmp_path):
    run = finished("local")
    code, _, err = calibrate(run)
    expected = (
        f"fedfeat-calibrate: DIR must be a run whose method has a server's model, but {run} has none.\n"
    )
    assert (code, err) == (2, expected)
    assert calibrate(run, "--lr", 0)[2] == "fedfeat-calibrate: --lr must be in (0, inf), but it is '0'.\n"
    code, _, err = calibrate(run, "--per-class", 0)
    assert err == "fedfeat-calibrate: --per-class must be an integer of at least 1, but it is '0'.\n"
    assert calibrate(tmp_path / "nothing")[0] == 2
