"""`trainer.precision=64-true`: nothing of a run is narrower, and what is equal by definition is equal to 1e-12."""

from functools import partial

import fusion_rounds
import grouped_rounds
import henn_rounds
import pytest
import torch
from float64_runs import assert_same, assert_stacks, floats, run
from harness import LR, assert_close, averaged, params_of, parties, zeros
from stacked_rounds import CASES, assert_agree
from stacked_rounds import run as run_case

from fedfeat.algorithms.fedhenn_hetero import FedHeNNHeteroServer
from fedfeat.algorithms.fedprox import FedProxClient
from fedfeat.executors.serial import SerialExecutor
from fedfeat.executors.stacked.vectorized import VectorizedExecutor

DOUBLE = {"precision": "64-true"}
TIGHT = 1e-12

METHODS = {
    "centralized": (),
    "apfl": ("algorithm.client.adaptive=true",),
    "ditto": (),
    "fed2": (),
    "psi_net": (),
    "fedala": (),
    "fedavg": ("diagnostics=alignment", "partition.val_fraction=0.2"),
    "fedfusion_conv": ("federation.evaluate_local=true",),
    "fedhenn": ("algorithm.server.rad_size=40",),
    "fedhenn_hetero": ("algorithm.server.rad_size=40", "algorithm.client.kernel=rbf"),
    "fedma": ("federation.num_rounds=4",),
    "fedprox": ("optimizer.momentum=0.9", "federation.opt_state=keep"),
    "fedrep": ("algorithm.client.head_epochs=1", "federation.local_epochs=2"),
    "local": (),
    "ot_fusion": ("partition=iid",),
    "per_fedavg": (),
    "pfedme": (),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_and_sends_float64_alone(name, tmp_path):
    tensors, records = run(tmp_path, f"algorithm={name}", *METHODS[name])
    assert {tensor.dtype for tensor in floats(tensors)} == {torch.float64}
    assert records[-1].evaluated


def test_fedavg_and_fedprox_by_hand(tmp_path):
    """Full-batch steps of a softmax regression in NumPy."""
    for mu, client in ((0.0, {}), (0.7, {"client": partial(FedProxClient, mu=0.7)})):
        federation = parties(tmp_path / str(mu), local_epochs=4, num_rounds=1, **client, **DOUBLE)
        found = params_of(federation.run()[0][-1])
        expected = averaged(zeros(), federation.data, range(3), (3, 5, 8), num_steps=4, mu=mu, lr=LR)
        assert_close(found, expected, TIGHT)


@pytest.mark.parametrize("name", ["multi with moving average", "single", "conv, own E_g, stale"])
def test_rounds_of_fedfusion_by_hand(name, tmp_path):
    fusion_rounds.check(fusion_rounds.SETTINGS[name], tmp_path, TIGHT, **DOUBLE)


@pytest.mark.parametrize("name", ["fed2", "psi_net of unequal groups", "batch norm in groups, trimmed"])
def test_rounds_of_fed2_by_hand(name, tmp_path):
    grouped_rounds.check(grouped_rounds.SETTINGS[name], tmp_path, TIGHT, **DOUBLE)


HENN = (
    "homogeneous, some inputs",
    "homogeneous, rbf of 0.8",
    "heterogeneous, fro",
    "heterogeneous, wider than X, rbf",
)


@pytest.mark.parametrize("name", HENN)
def test_rounds_of_fedhenn_by_hand(name, tmp_path):
    henn_rounds.check(henn_rounds.SETTINGS[name], tmp_path, TIGHT, **DOUBLE)


def test_targets_of_kernels_are_float64(tmp_path, monkeypatch):
    found, hear = set(), FedHeNNHeteroServer.hear

    def note(self, state, inputs, answers):
        heard = hear(self, state, inputs, answers)
        found.add(heard.target.values.dtype)
        return heard

    monkeypatch.setattr(FedHeNNHeteroServer, "hear", note)
    run(tmp_path, "algorithm=fedhenn_hetero", "algorithm.server.rad_size=40")
    assert found == {torch.float64}


ALL_CLASSES = ("partition=n_classes", "partition.classes_per_client=10")
IDENTITIES = {
    "fedprox without a term": (("algorithm=fedprox", "algorithm.client.mu=0"), ("algorithm=fedavg",)),
    "fedhenn without a term": (("algorithm=fedhenn", "algorithm.server.eta0=0"), ("algorithm=fedavg",)),
    "all personal": (("algorithm=fedavg", "algorithm.client.personal=[all]"), ("algorithm=local",)),
    "fed2 where everyone has all classes": (
        ("algorithm=fed2", *ALL_CLASSES),
        ("algorithm=fed2", "algorithm.server.pairing=all", *ALL_CLASSES),
    ),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_methods_are_others_where_they_should_be(name, tmp_path):
    left, right = IDENTITIES[name]
    (found, records), (expected, others) = run(tmp_path / "a", *left), run(tmp_path / "b", *right)
    if name == "fedhenn without a term":  # whose clients keep what they have trained
        found = found[: len(expected)]
        records = [record for record in records if record.metrics.pop("personal/acc_mean", True)]
    assert_same((found, records), (expected, others))


@pytest.mark.parametrize("case", CASES)
def test_whole_runs_of_stacked_clients_are_those_of_serial(case, tmp_path):
    arguments = {"num_rounds": 6} | CASES[case] | DOUBLE
    expected = run_case(tmp_path / "serial", SerialExecutor, **arguments)
    found = run_case(tmp_path / "stacked", VectorizedExecutor, **arguments)
    assert {tensor.dtype for tensor in floats(found[0])} == {torch.float64}
    assert_agree(found, expected, TIGHT)


STACKABLE = {
    "fedavg": (
        "algorithm=fedavg",
        "optimizer.lr=0.02",
        "optimizer.weight_decay=0.01",
        "partition=quantity_skew",
    ),
    "fedprox": ("algorithm=fedprox", "algorithm.client.mu=0.1"),
    "fedfusion": ("algorithm=fedfusion_multi",),
    "fed2": ("algorithm=fed2", "structure.norm_shared=gn1"),
}


@pytest.mark.parametrize("name", STACKABLE)
def test_whole_runs_of_methods_are_those_of_serial(name, tmp_path):
    """Where float32 leaves runs apart as soon as an activation flips."""
    assert_stacks(tmp_path, *STACKABLE[name], "federation.num_rounds=6")


def test_forked_processes_give_the_same_to_the_last_bit(tmp_path):
    options = ("algorithm=fedfusion_conv",)
    expected = run(tmp_path / "serial", *options)
    assert_same(run(tmp_path / "forked", *options, "executor=processes"), expected, tolerance=0)
