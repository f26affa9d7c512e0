"""A client half is made, becomes one client after the other, and gives what it has trained."""

from functools import partial

import numpy as np
import pytest
import torch
from harness import make_data, parties
from torch import nn

from fedfeat.client import ClientModule
from fedfeat.clients.local_trainer import LocalTrainer
from fedfeat.clients.networks import OneNetwork
from fedfeat.clients.tasks import Task, Turns
from fedfeat.clients.turns import TrainedTensors, become, evaluating, make_module, turn_of
from fedfeat.models.mlp import mlp
from fedfeat.types import Kept

SGD = partial(torch.optim.SGD, lr=0.5)
HEAD = "head.fc2.linear.weight"


class Adding(ClientModule):
    """A half with a layer beside the network."""

    def __init__(self, **arguments):
        super().__init__(optimizer=SGD, personal=["head.fc2"], **arguments)
        self.own = nn.Linear(4, 4)


def half(seed=3):
    build = partial(mlp, (4,), 3, hidden=[5])
    return make_module(Adding, OneNetwork(build), None, LocalTrainer(accelerator="cpu"), seed)


def test_what_a_method_adds_is_drawn_by_the_experiments_seed_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = half()
    assert torch.equal(
        torch.get_rng_state(), before
    )  # what draws from outside draws on as if nothing had been made
    torch.manual_seed(1)
    assert torch.equal(half().own.weight, first.own.weight)
    assert not torch.equal(half(seed=4).own.weight, first.own.weight)


def test_a_client_without_a_turn_begins_with_the_initial_personal_part_not_with_that_of_the_one_before():
    module = half()
    initial = module.model.get_parameter(HEAD).detach().clone()
    heard = []
    first = Task(0, 4, "sent", Kept({HEAD: torch.full((3, 5), 9.0)}, memory="record"))
    assert become(module, first, lambda *told: heard.append(told)) == "record"
    assert (module.model.get_parameter(HEAD) == 9.0).all()
    assert become(module, Task(1, 4, "sent", None), lambda *told: heard.append(told)) is None
    assert torch.equal(module.model.get_parameter(HEAD), initial)
    assert heard == [("sent", "record"), ("sent", None)]


def test_a_turn_has_the_rate_of_its_round_and_the_classes_of_its_client():
    data = make_data()
    turn = turn_of(half(), Task(2, 4, "sent", None, num_steps=7, lr_factor=0.25), "record", data)
    assert (turn.client_id, turn.round_idx, turn.payload, turn.memory) == (2, 4, "sent", "record")
    assert (turn.num_steps, turn.lr) == (7, 0.125)
    labels = data.dataset.train.labels.numpy()[data.split.train.of(2)]
    assert turn.class_counts.tolist() == np.bincount(labels, minlength=3).tolist()
    assert sum(len(y) for _, y in turn.batches(3)) == 8


def test_each_part_is_copied_once_and_without_what_follows_from_others():
    module = half()
    module.policies = {**module.policies, HEAD: "dropped"}
    trained = TrainedTensors(module)
    assert set(trained) == {"model", "own"}
    assert set(trained["model"]) == set(module.policies) - {HEAD}
    assert set(trained["own"]) == {"weight", "bias"}
    before = module.own.weight.detach().clone()
    with torch.no_grad():
        module.own.weight.zero_()
    assert torch.equal(trained["own"]["weight"], before)


def test_an_index_error_of_a_broadcast_is_not_the_end_of_the_cohort():
    """Python's own iteration over a sequence takes it for that, and the rest of the clients would be left out."""

    def make(client_id):
        if client_id == 2:
            raise IndexError("index 2 is out of bounds")
        return Task(client_id, 0, None, None, 1)

    made = []
    with pytest.raises(IndexError, match="out of bounds"):
        made.extend(task.client_id for task in Turns([0, 1, 2, 3], make))


def test_a_module_trains_again_also_where_its_evaluation_has_failed(tmp_path):
    worker = parties(tmp_path).executor.worker

    def evaluate():
        with evaluating(worker.module, worker.data.device, worker.trainer):
            assert not worker.module.training
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        evaluate()
    assert worker.module.training
