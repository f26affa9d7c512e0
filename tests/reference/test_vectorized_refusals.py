"""What cannot be stacked into one fit, and how `executor=auto` chooses."""

import logging
from functools import partial

import pytest
import torch
from harness import make_data, network_of, parties
from pytorch_lightning.callbacks import Callback
from stacked_rounds import CASES, assert_agree, of, run, two_layers
from torch import nn

from fedfeat.algorithms.fedfusion import FedFusionClient
from fedfeat.algorithms.fedrep import FedRepClient
from fedfeat.client import ClientModule
from fedfeat.clients.local_trainer import LocalTrainer
from fedfeat.clients.networks import OneNetwork
from fedfeat.clients.turns import WorkerSettings
from fedfeat.clients.worker import Worker
from fedfeat.errors import ConfigError
from fedfeat.executors.auto import AutoExecutor, fastest
from fedfeat.executors.forked.processes import ProcessExecutor
from fedfeat.executors.serial import SerialExecutor
from fedfeat.executors.stacked.vectorized import VectorizedExecutor

NAMES = {SerialExecutor: "serial", VectorizedExecutor: "vectorized", ProcessExecutor: "processes"}


class Counting(ClientModule):
    def on_train_batch_end(self, *arguments):
        self.count = 1


class Hooked(Counting):
    apart = None


class Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


REFUSED = {
    "stacked fits with phases, of heads and bodies, begin their optimizers anew (federation.opt_state=keep)": {
        "client": of(FedRepClient, personal=["head"]),
        "build_model": two_layers,
        "keep_optimizer": True,
    },
    "Counting overrides on_train_batch_end": {"client": Counting},
    "Counting overrides on_train_batch_end and": {"client": Hooked},
    "it keeps the frozen features": {"client": of(FedFusionClient, cache_eg=True), "build_model": two_layers},
    "gradients are others than in a step of one": {
        "build_model": lambda: network_of(Mixing(), nn.Linear(4, 3))
    },
    "a step of two clients together fails (RuntimeError: vmap: called random operation": {
        "build_model": lambda: network_of(Noisy(), nn.Linear(4, 3))
    },
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_stacked_is_refused_at_the_start_in_one_sentence(reason, tmp_path):
    with pytest.raises(ConfigError) as caught:
        parties(tmp_path, build_executor=VectorizedExecutor, **REFUSED[reason])
    assert str(caught.value).startswith("executor must be another than vectorized here, for ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("trainer", "optimizer", "reason"),
    [
        ({"precision": "bf16-true"}, torch.optim.SGD, "trainer.precision=bf16-true"),
        ({"accumulate_grad_batches": 2}, torch.optim.SGD, "trainer.accumulate_grad_batches has no"),
        ({"limit_train_batches": 1.0}, torch.optim.SGD, "trainer.limit_train_batches has no"),
        ({"callbacks": (Callback(),)}, torch.optim.SGD, "callbacks are made for fits of one client"),
        ({}, torch.optim.LBFGS, "LBFGS"),
        ({}, torch.optim.Adagrad, "Adagrad"),
    ],
)
def test_trainers_and_optimizers_without_a_stacked_form_are_refused(trainer, optimizer, reason):
    def build():
        client = partial(ClientModule, optimizer=partial(optimizer, lr=0.1))
        local = LocalTrainer(accelerator="cpu", **trainer)
        return Worker(make_data(), OneNetwork(two_layers), client, local, WorkerSettings(0, 2, 100, False))

    with pytest.raises(ConfigError, match=reason):
        VectorizedExecutor(build)


def test_auto_measures_once_and_goes_on_as_the_fastest_does(tmp_path, caplog):
    case = CASES["dropout"]
    executors = []

    def build(build_worker):
        executors.append(AutoExecutor(build_worker, ["vectorized"]))
        return executors[-1]

    with caplog.at_level(logging.INFO, logger="fedfeat"):
        found = run(tmp_path / "a", build, **case)
    (auto,) = executors
    line = next(text for text in caplog.messages if text.startswith("executor: "))
    assert line.startswith(f"executor: {auto.chosen} (ms for each of ")
    assert "serial " in line
    assert "vectorized " in line
    chosen = {"serial": SerialExecutor, "vectorized": VectorizedExecutor}[auto.chosen]
    assert_agree(found, run(tmp_path / "b", chosen, **case), tolerance=0)


def test_auto_takes_serial_and_says_why_where_vectorized_refuses(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="fedfeat"):
        alone = partial(AutoExecutor, among=["vectorized"])
        found = run(tmp_path / "a", alone, **REFUSED["gradients are others than in a step of one"])
    expected = run(tmp_path / "b", SerialExecutor, **REFUSED["gradients are others than in a step of one"])
    assert_agree(found, expected, tolerance=0)
    (line,) = [text for text in caplog.messages if text.startswith("executor: ")]
    assert line.startswith(
        "executor: serial. executor must be another than vectorized here, for in a step of two clients"
    )


@pytest.mark.parametrize("faster", ["serial", "processes", "vectorized"])
def test_auto_goes_on_with_what_it_measured_as_fastest_and_ends_the_others(
    faster, tmp_path, monkeypatch, caplog
):
    """Clocks are replaced, so that each of the three wins once."""
    seconds = {"serial": 1.0, "vectorized": 1.0, "processes": 1.0} | {faster: 0.5}
    monkeypatch.setattr("fedfeat.executors.auto._seconds", lambda executor, _: seconds[NAMES[type(executor)]])
    executors = []

    def build(build_worker):
        executors.append(AutoExecutor(build_worker))
        executors[0].start()
        return executors[0]

    case = CASES["dropout"]
    with caplog.at_level(logging.INFO, logger="fedfeat"):
        found = run(tmp_path / "a", build, **case)
    auto = executors[0]
    children = auto.candidates["processes"]._children
    assert auto.chosen == faster
    assert bool(children) == (faster == "processes" and auto.candidates["processes"]._num_processes > 1)
    auto.close()
    assert auto.candidates["processes"]._children == []
    assert "processes 500" in caplog.text if faster == "processes" else "processes 1e+03" in caplog.text
    expected = run(tmp_path / "b", SerialExecutor, **case)
    assert_agree(found, expected, tolerance=1e-6 if faster == "vectorized" else 0)


def test_an_executor_must_save_a_tenth_to_replace_the_reference():
    assert fastest({"serial": 1.0, "vectorized": 0.91}) == "serial"
    assert fastest({"serial": 1.0, "vectorized": 0.89, "other": 0.5}) == "other"
    assert fastest({"serial": 1.0}) == "serial"
