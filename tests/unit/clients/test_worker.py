import numpy as np
import pytest
import torch
from harness import make_data, network_of, parties
from torch import nn

from fedfeat import tree
from fedfeat.client import ClientModule
from fedfeat.clients.scoring import own_parts
from fedfeat.clients.tasks import Task
from fedfeat.data import transforms
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import IndexTestParts, Parts
from fedfeat.errors import DIVERGED, ClientError
from fedfeat.rounds.own_models import own_scores


def task(federation, client_id, num_steps, memory=None, **more):
    state = federation.start().state
    return Task(client_id, 0, federation.server.broadcast(state, client_id), memory, num_steps, **more)


@pytest.mark.parametrize(("batch_size", "expected"), [(None, 1), (8, 1), (3, 3), (1, 8)])
def test_steps_per_epoch(batch_size, expected, tmp_path):
    assert parties(tmp_path, batch_size=batch_size).executor.worker.steps_per_epoch(2) == expected


@pytest.mark.parametrize(("num_steps", "examples"), [(1, 3), (3, 8), (4, 11), (7, 8 + 8 + 3)])
def test_a_turn_makes_exactly_its_steps(num_steps, examples, tmp_path):
    """Client 2 has 8 examples in batches of 3, 3, 2."""
    federation = parties(tmp_path, batch_size=3)
    update = federation.executor.worker.fit(task(federation, 2, num_steps))
    assert update.metrics["examples"] == examples
    assert update.num_examples == 8


def test_a_turn_does_not_depend_on_the_turns_before(tmp_path):
    def model():
        return network_of(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))

    def build():
        torch.manual_seed(5)
        return model()

    alone, after = (parties(tmp_path / name, build_model=build, batch_size=3, momentum=0.9) for name in "ab")
    expected = alone.executor.worker.fit(task(alone, 1, 4))
    wanted = task(after, 1, 4)
    for other in (0, 2):
        after.executor.worker.fit(task(after, other, 3))
    found = after.executor.worker.fit(wanted)
    assert tree.sha256(found.payload) == tree.sha256(expected.payload)


def test_batches_of_one_are_dropped_only_where_batch_norm_cannot_take_them(tmp_path):
    def normed():
        return network_of(nn.BatchNorm1d(4), nn.Linear(4, 3))

    assert parties(tmp_path, batch_size=2).executor.worker.steps_per_epoch(0) == 2
    federation = parties(tmp_path, batch_size=2, build_model=normed)
    assert federation.executor.worker.steps_per_epoch(0) == 1
    assert federation.executor.worker.fit(task(federation, 0, 2)).metrics["examples"] == 4


def test_a_failure_names_client_round_seed_and_cause(tmp_path):
    class Failing(ClientModule):
        def loss(self, batch):
            raise RuntimeError("no luck\nsecond line")

    federation = parties(tmp_path, client=Failing)
    with pytest.raises(
        ClientError,
        match=r"^Client 1 failed in round 1 \(seed \d+\): RuntimeError: no luck in .*test_worker\.py:\d+\.$",
    ):
        federation.executor.worker.fit(task(federation, 1, 1))


def test_the_own_score_is_that_of_the_model_after_training(tmp_path):
    federation = parties(tmp_path)
    worker = federation.executor.worker
    update = worker.fit(task(federation, 2, 5, evaluate=True))
    scores = worker.score(update.payload)
    assert update.metrics["own/acc"] == scores.correct.mean()
    assert update.metrics["own/loss"] == scores.losses.mean() != pytest.approx(1.0986123)


def test_scores_do_not_depend_on_the_batch_size(tmp_path):
    federation = parties(tmp_path)
    worker = federation.executor.worker
    payload = worker.fit(task(federation, 2, 5)).payload
    whole = worker.score(payload)
    object.__setattr__(worker.settings, "eval_batch_size", 4)
    parts = worker.score(payload)
    assert whole.losses.tolist() == pytest.approx(parts.losses.tolist(), abs=1e-6)
    assert len(parts.losses) == 6


def test_validation_examples_of_a_client_are_scored_as_its_own_part(tmp_path):
    """Clients 0 and 2 hold examples out, client 1 none: the model that client 2 has trained, on its own ones."""
    whole = make_data(sizes=(5, 3, 8))
    train = whole.split.train
    left = Parts(np.concatenate([train.of(0)[:3], train.of(1), train.of(2)[:5]]), np.array([0, 3, 6, 11]))
    val = Parts(np.concatenate([train.of(0)[3:], train.of(2)[5:]]), np.array([0, 2, 2, 5]))
    data = FederatedData(whole.dataset, whole.split._replace(train=left, val=val), transforms.none())
    federation = parties(tmp_path, data=data)
    worker, state = federation.executor.worker, federation.start().state
    update = worker.fit(task(federation, 2, 5, evaluate=True))
    mine = train.of(2)[5:]
    module = worker.module_of(2)
    logits = module.model(whole.dataset.train.inputs[mine])
    labels = whole.dataset.train.labels[mine]
    assert update.metrics["own/val_acc"] == (logits.argmax(1) == labels).float().mean()
    expected = nn.functional.cross_entropy(logits, labels).item()
    assert update.metrics["own/val_loss"] == pytest.approx(expected)
    assert "own/val_acc" not in worker.fit(task(federation, 1, 5, evaluate=True)).metrics
    # Before anyone has trained all are one model, which each has its own examples for.
    scores = own_scores(federation.server, federation.executor, data, federation.store, state, range(3), 0)
    assert scores[2]["own/val_loss"] == pytest.approx(np.log(3))
    assert scores[2]["own/val_acc"] == (labels == 0).float().mean()
    assert ["own/val_acc" in scores[k] for k in range(3)] == [True, False, True]


class _Silent(ClientModule):
    """Answers with what is not finite, or fails in eval mode."""

    def answer(self, inputs, part):
        if len(inputs) == 1:
            raise RuntimeError("no words\nat all")
        return torch.full((2,), torch.nan)


@pytest.mark.parametrize(
    ("count", "cause"), [(1, r"RuntimeError: no words in .*\.py:\d+"), (2, f"its answer {DIVERGED}")]
)
def test_a_client_that_cannot_answer_is_named_and_trains_on(count, cause, tmp_path):
    federation = parties(tmp_path, client=_Silent)
    worker = federation.executor.worker
    with pytest.raises(ClientError, match=rf"^Client 1 failed in round 1 \(seed \d+\): {cause}\.$"):
        worker.answer(task(federation, 1, 2), torch.zeros(count, 4))
    assert worker.module_of(1).training


def test_where_the_server_has_diverged_no_client_is_blamed(tmp_path):
    federation = parties(tmp_path)
    sent = task(federation, 1, 2)
    for tensor in tree.tensors(sent.payload):
        tensor.fill_(torch.nan)
    with pytest.raises(ClientError, match=rf"^Client 1 .*: what the server has sent {DIVERGED}\.$"):
        federation.executor.worker.fit(sent)


class _Detached(ClientModule):
    def loss(self, batch):
        return super().loss(batch).detach()


def test_a_loss_without_a_gradient_is_named_by_its_class(tmp_path):
    federation = parties(tmp_path, client=_Detached)
    with pytest.raises(
        ClientError, match=r"ValueError: _Detached\.loss must depend on weights .* is detached\.$"
    ):
        federation.executor.worker.fit(task(federation, 1, 2))


def test_who_holds_all_data_is_scored_on_everyones_test_examples(tmp_path):
    """Client 0 is tested on two examples of six, client 1 on two, one of them the same, client 2 on one."""
    whole = make_data(sizes=(5, 3, 8))
    tests = IndexTestParts(Parts(np.array([0, 3, 3, 4, 1]), np.array([0, 2, 4, 5])))
    data = FederatedData(whole.dataset, whole.split._replace(test=tests), transforms.none()).pooled()
    federation = parties(tmp_path, data=data)
    worker = federation.executor.worker
    found = own_parts(data, 0, 3)[""]
    labels = torch.cat([labels for _, labels in found])
    assert labels.tolist() == whole.dataset.test.labels[[0, 1, 3, 4]].tolist()
    update = worker.fit(task(federation, 0, 5, evaluate=True))
    logits = worker.module_of(0).model(whole.dataset.test.inputs[[0, 1, 3, 4]])
    assert update.metrics["own/acc"] == (logits.argmax(1) == labels).double().mean()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_mean_loss_of_many_batches_is_that_of_one_in_half_precision_too(dtype, tmp_path):
    """Two thousand losses of 2.3: a sum in bfloat16 stands still at 1,024, one in float16 ends at infinity."""
    module = parties(tmp_path).executor.worker.module
    module.begin_count()
    for _ in range(2000):
        module.counted(torch.tensor(2.3, dtype=dtype), 64, 0)
    assert float(module._loss_sum) / module._num_seen == pytest.approx(2.3, rel=1e-2)
