"""Rounds in which the server shares unlabelled inputs first: who answers, in which memory, and what is counted."""

import weakref

import pytest
import torch
from harness import make_data, parties, sample_cohort

from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedhenn import FedHeNNClient, FedHeNNServer, OwnModel
from fedfeat.algorithms.fedhenn_hetero import FedHeNNHeteroServer
from fedfeat.clients.tasks import Task
from fedfeat.clients.worker import Worker
from fedfeat.features.kernels import linear_kernel
from fedfeat.models.mlp import mlp
from fedfeat.params import copy_into, snapshot
from fedfeat.types import Kept, Survey

SIZES = (3, 4, 5, 6)


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp((4,), 3, hidden=[5])


def hetero(kbar_over="all"):
    return FedHeNNHeteroServer(rad_size=8, eta_schedule="const", kbar_over=kbar_over)


def federation_of(store_dir, server, **plan):
    arguments = {"data": make_data(SIZES), "num_rounds": 3, "cohort_size": 2, "personal": True, "lr": 0.1}
    client = {"client": FedHeNNClient, "build_model": network}
    return parties(store_dir, server=server, **(client | arguments | plan))


def listening(kind, heard, **options):
    class Listening(kind):
        """Notes what it hears."""

        def hear(self, state, inputs, answers):
            answers = list(answers)
            heard.append((inputs.clone(), [(a.client_id, a.num_examples, a.flops) for a in answers]))
            return super().hear(state, inputs, iter(answers))

    return Listening(**({"rad_size": 8, "eta_schedule": "const"} | options))


def test_methods_share_the_same_inputs_and_redraw_them_every_round(tmp_path):
    alike, unequal = [], []
    for heard, server in (
        (alike, listening(FedHeNNServer, alike, average=FedAvgServer())),
        (unequal, listening(FedHeNNHeteroServer, unequal)),
    ):
        federation_of(tmp_path / str(id(heard)), server).run()
    assert len(alike) == len(unequal) == 3
    for (ours, _), (theirs, _) in zip(alike, unequal, strict=True):
        assert torch.equal(ours, theirs)
    assert not any(torch.equal(alike[i][0], alike[j][0]) for i in range(3) for j in range(i))


@pytest.mark.parametrize("kbar_over", ["all", "participants", "last_participants"])
def test_who_is_asked(kbar_over, tmp_path):
    """Forward 2 (4 5 + 5 3) = 70 FLOPs for each of 8 inputs."""
    heard = []
    federation_of(tmp_path, listening(FedHeNNHeteroServer, heard, kbar_over=kbar_over)).run()
    cohorts = [sample_cohort(0, round_idx, 4, 2) for round_idx in range(3)]
    expected = {"all": [range(4)] * 3, "participants": cohorts, "last_participants": cohorts[:2]}[kbar_over]
    for (_, answers), asked in zip(heard, expected, strict=True):
        assert answers == [(k, SIZES[k], 8 * 70) for k in asked]


def test_where_nobody_is_heard_the_round_goes_without_the_term():
    server = hetero()
    state = server.init(network(), None)
    assert server.hear(state, torch.rand(8, 4), iter(())) == state
    sent = server.broadcast(state, 0)
    assert sent.inputs is None
    assert sent.target is None


def test_without_a_survey_nobody_is_asked(tmp_path):
    heard = []
    federation_of(tmp_path, listening(FedHeNNHeteroServer, heard, eta0=0.0)).run()
    assert heard == []
    heard = []
    federation_of(tmp_path / "b", listening(FedHeNNServer, heard, average=FedAvgServer())).run()
    assert [answers for _, answers in heard] == [[], [], []]


def test_an_answer_is_that_of_the_clients_own_model_in_evaluation_mode(tmp_path):
    """In chunks of 3 inputs, with dropout in the network, after a turn of another client."""

    def dropping():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return mlp((4,), 3, hidden=[5], dropout=0.5)

    federation = federation_of(tmp_path, hetero(), build_model=dropping)
    worker, own = federation.executor.worker, dropping()
    object.__setattr__(worker.settings, "eval_batch_size", 3)
    memory = {name: tensor + 0.1 for name, tensor in snapshot(own).items()}
    payload = federation.server.broadcast(federation.start().state, 0)
    worker.fit(Task(0, 0, payload, None, 3))
    inputs = federation.data.unlabelled(Survey("train_pool", 8), 0, 0)
    old = Kept(memory=OwnModel(memory))
    fresh, kept = (worker.answer(Task(1, 0, None, has), inputs) for has in (None, old))
    for answer, params in ((fresh, {}), (kept, memory)):
        copy_into(own, params)
        expected = linear_kernel(own.eval().representation(inputs)).centred()
        # In batches of another size, products round differently on some machines.
        torch.testing.assert_close(answer.payload.values, expected.values.detach(), rtol=0, atol=1e-6)
        assert not answer.payload.dense
        assert not answer.payload.values.requires_grad
    assert worker.module.training
    assert fresh.client_id == 1


def test_answers_stream(tmp_path, monkeypatch):
    """When a client is asked, the representations of the ones before it are gone."""
    alive, most, original = [], [], Worker.answer

    def watched(self, task, inputs):
        most.append(sum(reference() is not None for reference in alive))
        answer = original(self, task, inputs)
        alive.append(weakref.ref(answer.payload.values))
        return answer

    monkeypatch.setattr(Worker, "answer", watched)
    sizes = (3,) * 20
    federation_of(tmp_path, hetero(), data=make_data(sizes), num_rounds=1, cohort_size=2).run()
    assert len(most) == 20
    assert max(most) <= 1


def test_the_answers_of_many_clients_take_the_memory_of_one_kernel(tmp_path):
    state = {}

    class Keeping(FedHeNNHeteroServer):
        """Keeps what it has heard."""

        def hear(self, *arguments):
            state["heard"] = super().hear(*arguments)
            return state["heard"]

    server = Keeping(rad_size=8, eta_schedule="const")
    federation_of(tmp_path, server, data=make_data((3,) * 20), num_rounds=1).run()
    assert state["heard"].target.values.shape == (8, 8)
    assert state["heard"].inputs.shape == (8, 4)


def test_inputs_of_dropped_stragglers_are_sent_and_counted(tmp_path):
    """8 inputs of 4 numbers and a matrix of 8 x 8, or less in factors of 5 per client, to each of two."""
    options = {"straggler_fraction": 0.5, "drop_stragglers": True, "num_rounds": 1}
    found = federation_of(tmp_path, hetero(), **options).run()[1][-1].metrics
    assert found["comm/down_bytes"] == 2 * 4 * (8 * 4 + 8 * 8)
    assert found["comm/up_bytes"] == 1 * 4 * 43
    assert found["clients/failed"] == 1


def test_factors_are_sent_where_they_are_fewer_numbers(tmp_path):
    """One participant's kernel of 8 inputs is 5 wide."""
    options = {"num_rounds": 1, "cohort_size": 1}
    found = federation_of(tmp_path, hetero("participants"), **options).run()[1][-1].metrics
    assert found["comm/down_bytes"] == 4 * (8 * 4 + 8 * 5)
