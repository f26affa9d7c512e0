"""Clients whose own model takes their data to make: where it is made, and that no other client gets it."""

import pytest
import torch
from harness import make_data, parties
from torch.nn import functional

from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.executors.forked.processes import ProcessExecutor
from fedfeat.executors.serial import SerialExecutor
from fedfeat.executors.stacked.vectorized import VectorizedExecutor
from fedfeat.types import Weights


class Counting(ClientModule):
    """Its own model gives the numbers of the client's training examples by class."""

    keeps_model = True
    seeds = []  # noqa: RUF012 - emptied by the test

    def adapt(self, turn):
        assert not self.training
        Counting.seeds.append(turn.seed)
        labels = torch.cat([labels for _, labels in turn.batches(2)])
        assert (labels.bincount(minlength=3).numpy() == turn.class_counts).all()
        self.counts = labels.bincount(minlength=3).float()

    def predict(self, inputs):
        return self.counts.expand(len(inputs), 3)

    def answer(self, inputs, part):
        return Weights({"counts": self.counts.clone()})


class Balanced(ClientModule):
    """Its own model gives these numbers too, by the softmax that is balanced by them."""

    keeps_model = True

    def __init__(self, **arguments):
        super().__init__(softmax_scope="balanced", **arguments)

    def adapt(self, turn):
        losses = torch.stack([self.cross_entropy(torch.zeros(1, 3), torch.tensor([c])) for c in range(3)])
        self.counts = turn.class_counts.sum() * (-losses).exp()

    def predict(self, inputs):
        return self.counts.expand(len(inputs), 3)


def expected(data):
    """Loss of each client's numbers of examples by class, as logits, on the test examples."""
    logits, labels = torch.tensor(data.class_counts).float(), data.dataset.test.labels
    return [float(functional.cross_entropy(one.expand(len(labels), 3), labels)) for one in logits]


@pytest.mark.parametrize("client", [Counting, Balanced])
@pytest.mark.parametrize("executor", [SerialExecutor, VectorizedExecutor, ProcessExecutor])
def test_every_score_of_an_own_model_is_of_the_one_made_of_the_clients_data(client, executor, tmp_path):
    """Before the first round too, when all clients would receive the same."""
    options = {"personal": True, "evaluate_local": True, "final_epochs": 1, "cohort_size": 2}
    federation = parties(tmp_path, client=client, build_executor=executor, **options)
    _, records = federation.run()
    federation.executor.close()
    losses = expected(federation.data)
    assert len(set(losses)) == 3
    losses = [pytest.approx(loss, abs=1e-6) for loss in losses]
    for record in records:
        rows = {row.client_id: row for row in record.clients}
        assert [rows[k].personal_loss for k in range(3)] == losses
        assert [rows[k].local_loss for k in record.cohort] == [losses[k] for k in record.cohort]
    assert [records[-1].clients[k].final_loss for k in range(3)] == losses


def test_an_answer_is_that_of_the_own_model(tmp_path):
    federation = parties(tmp_path, client=Counting)
    worker = federation.executor.worker
    payload = federation.server.broadcast(federation.start().state, 1)
    found = worker.answer(Task(1, 0, payload, None), torch.zeros(2, 4))
    assert found.payload.params["counts"].tolist() == make_data().class_counts[1].tolist()


def test_what_it_draws_is_the_clients_and_the_same_whenever_it_is_asked_for(tmp_path):
    Counting.seeds.clear()
    parties(tmp_path, client=Counting, num_rounds=2, personal=True).run()
    assert len(Counting.seeds) == 9
    assert Counting.seeds[:3] == Counting.seeds[3:6] == Counting.seeds[6:]
    assert len(set(Counting.seeds)) == 3


class Drawing(ClientModule):
    """Notes the seed of each turn."""

    seen = []  # noqa: RUF012 - emptied by the test

    def begin_turn(self, turn):
        Drawing.seen.append(turn.seed)


def test_a_turn_has_a_seed_of_its_own(tmp_path):
    Drawing.seen.clear()
    for _ in range(2):
        parties(tmp_path, client=Drawing, num_rounds=2).run()
    assert len(set(Drawing.seen)) == 6
    assert Drawing.seen[:6] == Drawing.seen[6:]
