"""Rounds under two executors, and whether they agree.

The tolerance is that of sums in another order: 1e-6 for weights of size 1 after some dozen steps in float32, as long as
no rounding decides whether an activation is 0. After that runs may part, by 7.5e-3 in one of digits; `test_float64` has
whole runs, which agree to 1e-12.
"""

from functools import partial

import pytest
import torch
from harness import network_of, parties
from scaled import ScalingServer, StackableScaledClient
from torch import nn

from fedfeat import tree
from fedfeat.algorithms.fedfusion import FedFusionClient
from fedfeat.algorithms.fedprox import FedProxClient
from fedfeat.client import ClientModule
from fedfeat.models.mlp import mlp

TOLERANCE = 1e-6


def two_layers(dropout=0.0):
    torch.manual_seed(1)
    return mlp((4,), 3, hidden=[5], dropout=dropout)


def of(kind, **fixed):
    return lambda **arguments: kind(**fixed, **arguments)


def normed():
    return network_of(nn.BatchNorm1d(4), nn.Linear(4, 3))


CASES = {
    "unequal batches": {"batch_size": 3, "local_epochs": 2.5},
    "full batches": {"local_epochs": 2},
    "momentum": {"batch_size": 2, "momentum": 0.9, "local_epochs": 3},
    "dropout": {"batch_size": 3, "local_epochs": 2, "build_model": partial(two_layers, 0.4)},
    "stragglers": {"batch_size": 2, "local_epochs": 3, "straggler_fraction": 0.6, "evaluate_local": True},
    "part of the clients": {"batch_size": 2, "cohort_size": 2, "num_rounds": 4},
    "learning rate": {"batch_size": 2, "lr_factor": lambda round_idx, _: 1 / (1 + round_idx)},
    "once more": {"batch_size": 2, "final_epochs": 1.5},
    "fedprox": {"batch_size": 2, "local_epochs": 3, "client": of(FedProxClient, mu=0.5)},
    "personal head": {"batch_size": 2, "local_epochs": 3, "client": of(ClientModule, personal=["head"])},
    "local": {"batch_size": 2, "local_epochs": 3, "client": of(FedProxClient, mu=0.5, personal=["all"])},
    "present classes": {"batch_size": 2, "client": of(ClientModule, softmax_scope="present_classes")},
    "balanced softmax": {"batch_size": 2, "client": of(ClientModule, softmax_scope="balanced")},
    "fusion": {
        "batch_size": 2,
        "local_epochs": 3,
        "client": of(FedFusionClient, op="multi", lambda_init=0.3),
    },
    "payloads that differ in a number": {
        "batch_size": 2,
        "client": StackableScaledClient,
        "server": ScalingServer(),
    },
    "fused by convolution": {"batch_size": 2, "client": of(FedFusionClient, op="conv")},
    "batch norm": {"batch_size": 3, "local_epochs": 2.5, "build_model": normed, "num_rounds": 3},
    "batch norm, last batches of one": {"batch_size": 4, "local_epochs": 2, "build_model": normed},
    "batch norm of its own": {
        "batch_size": 3,
        "build_model": normed,
        "client": of(ClientModule, personal=["norm"]),
        "num_rounds": 3,
    },
    "kept momentum": {
        "lr": 0.1,
        "batch_size": 3,
        "momentum": 0.9,
        "local_epochs": 2.5,
        "keep_optimizer": True,
        "num_rounds": 3,
    },
    "kept momentum of some": {
        "lr": 0.1,
        "batch_size": 3,
        "momentum": 0.9,
        "cohort_size": 2,
        "keep_optimizer": True,
        "num_rounds": 4,
        "straggler_fraction": 0.6,
        "local_epochs": 2,
    },
}


def run(folder, executor, **arguments):
    federation = parties(folder, build_executor=executor, **({"build_model": two_layers} | arguments))
    steps, records = federation.run()
    kept = [federation.store.get(k) for k in range(federation.plan.num_clients)]
    return tree.tensors([steps[-1].state, kept]), records


def assert_agree(left, right, tolerance=TOLERANCE):
    (tensors, records), (expected, expected_records) = left, right
    assert len(tensors) == len(expected) > 0
    for mine, its in zip(tensors, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=tolerance)
    for mine, its in zip(records, expected_records, strict=True):
        assert mine.cohort == its.cohort
        assert mine.metrics.keys() == its.metrics.keys()
        for name, value in its.metrics.items():
            if not name.startswith("time/"):
                assert mine.metrics[name] == pytest.approx(value, abs=tolerance, nan_ok=True), name
