"""Runs of the command line in float64: resumed, on texts, read back, looked into; and presets of permuted images."""

import json

import numpy as np
import pytest
import torch
from tweets import tiny_tweets

from fedfeat.commands import inspect_features
from fedfeat.commands.loading import load
from fedfeat.commands.reopen import reopen
from fedfeat.rounds.loop import _Loop
from fedfeat.tree import tensors

DOUBLE = "trainer.precision=64-true"


def final(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def dtypes(run_dir):
    return {tensor.dtype for tensor in tensors(reopen(run_dir)[1].server_state) if tensor.is_floating_point()}


@pytest.mark.parametrize("method", ["fedavg", "fedhenn_hetero"])
def test_a_run_that_goes_on_is_the_same_to_the_last_bit(method, cli, small, tmp_path, monkeypatch):
    options = (*small, DOUBLE, f"algorithm={method}", "trainer.num_threads=1", "federation.fraction=0.5")
    if method == "fedhenn_hetero":
        options += ("algorithm.server.rad_size=20", "algorithm.server.kbar_over=last_participants")
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert cli(*options, f"hydra.run.dir={whole}").code == 0
    one_round = _Loop.one_round

    def cut(self, progress):
        if progress.round_idx == 2:
            raise RuntimeError("cut")
        return one_round(self, progress)

    with monkeypatch.context() as patched:
        patched.setattr(_Loop, "one_round", cut)
        assert cli(*options, f"hydra.run.dir={halves}").code != 0
    assert cli(*options, f"hydra.run.dir={halves}").code == 0
    assert final(whole)["weights_sha256"] == final(halves)["weights_sha256"]
    assert final(whole)["final"]["train/loss"] == final(halves)["final"]["train/loss"]
    assert dtypes(whole) <= {torch.float64}


def test_a_model_is_read_back_and_looked_into(cli, small, tmp_path):
    assert cli(*small, DOUBLE).code == 0
    run = tmp_path / "run"
    model = load(run).model()
    inputs = np.zeros((2, 1, 4, 4), dtype=np.uint8)
    assert model(inputs).dtype == torch.float64
    data = reopen(run)[0].data
    logits = model(data.dataset.test.inputs)
    right = (logits.argmax(1) == data.dataset.test.labels).double().mean().item()
    assert right == pytest.approx(final(run)["final"]["global/acc"], abs=1e-12)
    inspect_features.main([str(run)])


def test_tweets_under_three_executors(cli, tmp_path):
    found = []
    for executor in ("serial", "processes", "vectorized"):
        run = tmp_path / executor
        outcome = cli(
            "data=sent140", "model=sent140_lstm", "model.hidden=6", "partition=natural", "partition.column=user",
            *tiny_tweets(tmp_path / "tweets"), "data.loader.num_tokens=4", "federation.num_clients=4",
            "federation.num_rounds=2", "federation.local_epochs=1", "algorithm=fedavg", f"executor={executor}",
            "trainer=cpu", "trainer.num_threads=1", DOUBLE, f"hydra.run.dir={run}",
        )  # fmt: skip
        assert outcome.code == 0, outcome.stderr
        assert dtypes(run) == {torch.float64}
        found.append(tensors(reopen(run)[1].server_state))
    for serial, processes, vectorized in zip(*found, strict=True):
        assert torch.equal(serial, processes)
        torch.testing.assert_close(vectorized, serial, rtol=0, atol=1e-12)


TINY = (
    "data=synthetic", "data.loader.shape=[1,28,28]", "data.loader.num_train=40", "data.loader.num_test=20",
    "federation.num_rounds=1", "federation.local_epochs=1", "federation.batch_size=10", "trainer=cpu",
    "trainer.num_threads=1",
)  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "algorithm", "examples"),
    [("ff_c_copies", "fedfusion_conv", 80), ("ff_c_released", "fedfusion_conv_code", 40)],
)
def test_readings_of_permuted_mnist_run(preset, algorithm, examples, cli, tmp_path):
    arms = (f"experiment=fedfusion/{preset}", f"algorithm={algorithm}", "federation.num_clients=2")
    outcome = cli(*arms, *TINY, "executor=processes", "executor.num_processes=2")
    assert outcome.code == 0, outcome.stderr
    data = reopen(tmp_path / "run")[0].data
    assert (data.permuted, len(data.split.train.indices)) == (True, examples)
    found = final(tmp_path / "run")["final"]
    assert {"global/acc", "local_pre_agg/acc_mean", "global/client_acc_mean"} <= set(found)
    if preset == "ff_c_released":
        assert data.class_counts[0, 1::2].sum() == data.class_counts[1, ::2].sum() == 0
