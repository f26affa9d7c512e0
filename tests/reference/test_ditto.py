"""Ditto through the real loop: by hand, its global track, its own track alone, and planted bugs."""

from functools import partial

import pytest
import torch
from harness import SIZES, sample_cohort
from personal_rounds import (
    EPOCHS,
    NAMES,
    ROUNDS,
    ByHand,
    Sgd,
    assert_absent_keep_their_models,
    assert_global_track_is_fedavgs,
    assert_learns_alone,
    assert_resumes,
    assert_stacks,
    check,
    federation_of,
    initial,
    network,
    of,
    slopes,
)

from fedfeat import tree
from fedfeat.algorithms.ditto import DittoClient
from fedfeat.algorithms.own_models import OwnModel
from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.errors import ConfigError
from fedfeat.models.frozen import FrozenCopy
from fedfeat.models.twin import own_tensors
from fedfeat.params import WeightedMean
from fedfeat.types import Kept

LAM = 0.7


class Ditto(ByHand):
    """v is kept; an own optimizer each, with momentum and weight decay."""

    def __init__(self, lam=LAM):
        self.lam = lam

    def turn(self, w, memory, x, y, steps):
        v, (first, second) = memory or initial(), (Sgd(), Sgd())
        own = w
        for _ in range(steps):
            slope = slopes(v, x, y)
            v = first.step(v, {name: slope[name] + self.lam * (v[name] - w[name]) for name in NAMES})
            own = second.step(own, slopes(own, x, y))
        return own, v, v

    def own(self, w, memory, x, y):
        return memory or initial()


@pytest.mark.parametrize("lam", [0.0, LAM])
def test_rounds_by_hand(lam, tmp_path):
    check(tmp_path, Ditto(lam), of(DittoClient, lam=lam))


def test_kept_momentum_is_that_of_both_models(tmp_path):
    federation = federation_of(tmp_path, of(DittoClient), keep_optimizer=True)
    federation.run()
    assert sorted(federation.store.get(0).optimizer) == [f"{i}/momentum_buffer" for i in range(8)]


@pytest.mark.parametrize("lam", [0.0, 1.0, 3.0])
def test_the_global_track_is_fedavg_bit_for_bit(lam, tmp_path):
    assert_global_track_is_fedavgs(tmp_path, of(DittoClient, lam=lam))


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_so_is_it_where_gradients_are_clipped(algorithm, tmp_path, monkeypatch):
    from fedfeat.clients import local_trainer

    build = local_trainer.LocalTrainer.build

    def clipped(self):
        trainer = build(self)
        trainer.gradient_clip_val, trainer.gradient_clip_algorithm = 0.05, algorithm
        return trainer

    free = federation_of(tmp_path / "c", of(ClientModule)).run()[0][-1]
    monkeypatch.setattr(local_trainer.LocalTrainer, "build", clipped)
    ditto = federation_of(tmp_path / "a", of(DittoClient, lam=2.0)).run()[0][-1]
    fedavg = federation_of(tmp_path / "b", of(ClientModule)).run()[0][-1]
    assert tree.sha256(ditto.state) == tree.sha256(fedavg.state) != tree.sha256(free.state)


def test_without_weight_the_own_track_learns_alone_bit_for_bit(tmp_path):
    assert_learns_alone(tmp_path, of(DittoClient, lam=0.0))


def test_a_large_weight_brings_the_own_model_to_the_received_one(tmp_path):
    """With lam = 1 / lr a step ends at w - lr * (grad F(v) + decay v), however far v was."""
    federation = federation_of(tmp_path, of(DittoClient, lam=1e3), num_rounds=1, lr=1e-3, momentum=0.0)
    worker, start = federation.executor.worker, federation.start().state
    far = {name: tensor + 1.0 for name, tensor in initial().items()}
    memory = Kept(memory=OwnModel(far))
    update = worker.fit(Task(0, 0, federation.server.broadcast(start, 0), memory, 3))
    for name in NAMES:
        gap = (update.kept.memory.params[name] - start.params[name]).abs().max()
        assert gap < 5e-3


def test_who_is_absent_keeps_its_model(tmp_path):
    assert_absent_keep_their_models(tmp_path, of(DittoClient))


def test_messages_are_those_of_fedavg_and_the_work_is_twice_as_much(tmp_path):
    """43 numbers of 8 bytes each way; forward 2 (20 + 15) = 70, back 30 + 70, for both models."""
    federation = federation_of(tmp_path, of(DittoClient))
    records = federation.run()[1]
    seen = sum(SIZES[k] for t in range(ROUNDS) for k in sample_cohort(0, t, 3, 2))
    last = records[-1].metrics
    assert last["comm/down_bytes"] == last["comm/up_bytes"] == ROUNDS * 2 * 43 * 8
    assert last["compute/examples"] == EPOCHS * seen
    assert last["compute/flops"] == 2 * EPOCHS * seen * 170
    state = federation.start().state
    update = federation.executor.worker.fit(Task(0, 0, federation.server.broadcast(state, 0), None, 1))
    assert set(update.payload.params) == set(NAMES)
    assert not any(
        mine.data_ptr() == its.data_ptr()
        for mine in tree.tensors(update.payload)
        for its in tree.tensors(update.kept)
    )


def test_turns_are_stacked_as_they_are_alone(tmp_path):
    assert_stacks(tmp_path, of(DittoClient, lam=LAM))


def test_a_run_goes_on_from_its_middle_with_the_own_models(tmp_path):
    assert_resumes(tmp_path, of(DittoClient, lam=LAM))


def test_parts_of_the_network_cannot_be_personal():
    optimizer = partial(torch.optim.SGD, lr=0.1)
    with pytest.raises(
        ConfigError, match=r"^algorithm\.client\.personal must be empty for Ditto, .*\['head'\]"
    ):
        DittoClient(model=network(), optimizer=optimizer, personal=["head"])


ADD = WeightedMean.add
RECEIVE, UPLOAD, INIT = DittoClient.receive, DittoClient.upload, DittoClient.__init__


def forgetful(self, payload, memory):
    RECEIVE(self, payload, None)


def from_received(self, payload, memory):
    RECEIVE(self, payload, memory)
    if memory is None:
        self.own.fill({name: tensor * 0.5 for name, tensor in payload.params.items()})


def swapped(self, turn, tensors):
    return UPLOAD(self, turn, {"model": own_tensors(tensors["own"]), "own": tensors["model"]})


def negative(self, *, lam=LAM, **arguments):
    INIT(self, lam=lam, **arguments)
    self.lam = -lam


def whole_square(self, *, lam=LAM, **arguments):
    INIT(self, lam=lam, **arguments)
    self.lam = 2 * lam


def scored_global(self, inputs):
    return self(inputs)


def recalled_as_received(self, payload, memory):
    RECEIVE(self, payload, memory)
    self.own.fill(payload.params)


BUGS = {
    "sign of the term": [(DittoClient, "__init__", negative)],
    "term without its half": [(DittoClient, "__init__", whole_square)],
    "memory forgotten": [(DittoClient, "receive", forgetful)],
    "a first own model that is another": [(DittoClient, "receive", from_received)],
    "own model sent": [(DittoClient, "upload", swapped)],
    "global model scored": [(DittoClient, "predict", scored_global)],
    "own model lost at the recall": [(DittoClient, "recall", recalled_as_received)],
    "anchor that trains": [(FrozenCopy, "fill", lambda self, source: None)],
    "mean without weights": [(WeightedMean, "add", lambda self, params, weight: ADD(self, params, 1))],
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    for owner, attribute, mutant in BUGS[bug]:
        monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        check(tmp_path, Ditto(), of(DittoClient, lam=LAM))
