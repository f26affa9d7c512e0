"""A whole run with ``trainer.compile=true``."""

import csv
import os
import shutil

import pytest
import torch

pytestmark = pytest.mark.slow

RUN = (
    "partition=iid",
    "model=mlp",
    "federation.num_clients=2",
    "federation.num_rounds=2",
    "federation.batch_size=null",
    "federation.local_epochs=null",
    "federation.local_steps=1",
    "optimizer.lr=0.1",
    "trainer=cpu",
)


def has_compiler():
    """Whether inductor finds the C++ compiler that it needs on CPUs."""
    return any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name)


@pytest.fixture
def compiled_frames():
    """Count the functions that dynamo has compiled since the test began."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["frames"]["ok"]
    torch._dynamo.reset()


def last(run_dir):
    with (run_dir / "metrics.csv").open() as file:
        row = list(csv.DictReader(file))[-1]
    return {key: float(row[key]) for key in ("round", "train/loss", "global/loss", "global/acc")}


@pytest.mark.skipif(
    not has_compiler(), reason="torch.compile needs a C++ compiler on CPUs, and there is none"
)
def test_a_compiled_network_learns_what_it_learns_uncompiled(cli, tmp_path, compiled_frames):
    """Up to rounding: kernels sum float32 in another order. The first compilation on a machine takes half a minute."""
    found = {}
    for value in ("false", "true"):
        run_dir = tmp_path / value
        outcome = cli(*RUN, f"trainer.compile={value}", f"hydra.run.dir={run_dir}")
        assert outcome.code == 0, outcome.stderr
        found[value] = last(run_dir)
        assert (compiled_frames() > 0) == (value == "true")
    assert found["true"] == pytest.approx(found["false"], rel=1e-4)


@pytest.mark.skipif(
    not has_compiler(), reason="torch.compile needs a C++ compiler on CPUs, and there is none"
)
def test_a_compiled_step_of_stacked_clients(cli, tmp_path, compiled_frames, caplog):
    """Clients of 5 to 30 examples with batches of 4, hence other clients and rows at every step: one shape for all."""
    overrides = (
        *RUN[1:4], "partition=quantity_skew", "partition.min_size=5", "model.dropout=0.3", "data=synthetic",
        "data.loader.num_train=60", "data.loader.shape=[1,4,4]", "federation.num_clients=4", "federation.batch_size=4",
        "federation.local_epochs=1", "optimizer.lr=0.1", "trainer=cpu", "executor=vectorized",
    )  # fmt: skip
    found = {}
    for value in ("false", "true"):
        run_dir = tmp_path / value
        outcome = cli(*overrides, f"trainer.compile={value}", f"hydra.run.dir={run_dir}")
        assert outcome.code == 0, outcome.stderr
        assert "one after the other" not in caplog.text + outcome.stderr
        found[value] = last(run_dir)
        # The step, and the network as it is evaluated, for the test set and its rest.
        assert compiled_frames() == {"false": 0, "true": 2}[value]
    assert found["true"] == pytest.approx(found["false"], rel=1e-4)
