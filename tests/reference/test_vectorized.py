"""Clients stacked into one fit against the same clients one after the other."""

import logging
from functools import partial

import numpy as np
import pytest
import torch
from harness import LR, assert_close, local_steps, make_data, params_of, parties, zeros
from stacked_rounds import CASES, TOLERANCE, assert_agree, run, two_layers

from fedfeat import tree
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.clients.worker import Worker
from fedfeat.data import transforms
from fedfeat.errors import ClientError
from fedfeat.executors.serial import SerialExecutor
from fedfeat.executors.stacked import vectorized
from fedfeat.executors.stacked.vectorized import VectorizedExecutor
from fedfeat.models.mlp import mlp


@pytest.fixture
def stacked(monkeypatch):
    """How many clients each stacked fit had."""
    counts = []
    original = vectorized.fit_stacked
    monkeypatch.setattr(
        vectorized,
        "fit_stacked",
        lambda w, tasks, *how: (counts.append(len(tasks)), original(w, tasks, *how))[1],
    )
    return counts


@pytest.mark.parametrize("case", CASES)
def test_weights_and_metrics_are_those_of_serial(case, tmp_path, stacked, caplog):
    expected = run(tmp_path / "serial", SerialExecutor, **CASES[case])
    found = run(tmp_path / "stacked", VectorizedExecutor, **CASES[case])
    assert_agree(found, expected)
    assert stacked
    assert min(stacked) >= 2
    assert "one after the other" not in caplog.text


def test_the_tolerance_would_notice_other_dropout(tmp_path, monkeypatch):
    case = CASES["dropout"]
    expected = run(tmp_path / "a", SerialExecutor, **case)
    monkeypatch.setattr(Worker, "fit_seed", lambda self, task: task.client_id)
    with pytest.raises(AssertionError):
        assert_agree(run(tmp_path / "b", VectorizedExecutor, **case), expected)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop])
def test_other_elementwise_optimizers(optimizer, tmp_path):
    def with_optimizer(**arguments):
        return ClientModule(**(arguments | {"optimizer": partial(optimizer, lr=0.05)}))

    case = {"client": with_optimizer, "batch_size": 2, "local_epochs": 3}
    expected = run(tmp_path / "a", SerialExecutor, **case)
    # Division by the root of a tiny second moment enlarges the last bits.
    assert_agree(run(tmp_path / "b", VectorizedExecutor, **case), expected, tolerance=2e-5)


def test_gradient_steps_by_hand(tmp_path):
    """Full-batch steps of a softmax regression from zero in NumPy; 4, 4 and 4 of unequal clients."""
    federation = parties(tmp_path, build_executor=VectorizedExecutor, local_epochs=4, num_rounds=1)
    found = params_of(federation.run()[0][-1])
    each = [local_steps(zeros(), federation.data, k, 4, lr=LR) for k in range(3)]
    expected = [np.average([pair[i] for pair in each], axis=0, weights=(3, 5, 8)) for i in range(2)]
    assert_close(found, expected)


def augmented_data():
    """The tiny data as images of 1x2x2 uint8 pixels, mirrored at random; the last client makes the most steps."""
    made = make_data((5, 3, 6))
    for examples in (made.dataset.train, made.dataset.test):
        pixels = (examples.inputs.clamp(-3, 3) * 40 + 128).to(torch.uint8)
        object.__setattr__(examples, "inputs", pixels.view(-1, 1, 2, 2))
    transform = transforms.Transform(augment=(partial(transforms.random_flip, p=0.5),))
    return type(made)(made.dataset, made.split, transform)


def image_model():
    torch.manual_seed(2)
    return mlp((1, 2, 2), 3, hidden=[5])


def test_every_client_has_its_own_augmentation(tmp_path, stacked):
    case = {"build_model": image_model, "batch_size": 4, "local_epochs": 3}
    expected = run(tmp_path / "a", SerialExecutor, data=augmented_data(), **case)
    assert_agree(run(tmp_path / "b", VectorizedExecutor, data=augmented_data(), **case), expected)
    assert stacked == [3, 3]


@pytest.mark.parametrize(("together", "expected"), [(1, []), (2, [2, 2]), (3, [3, 3]), (100, [5, 5])])
def test_a_budget_of_memory_cuts_the_cohort(together, expected, tmp_path, stacked):
    """Five clients, two rounds; a chunk of one is serial to the last bit."""
    case = {"data": make_data((4, 3, 5, 2, 6)), "batch_size": 2}
    federation = parties(tmp_path / "x", build_executor=VectorizedExecutor, build_model=two_layers, **case)
    megabytes = together * federation.executor.bytes_per_client / 2**20
    reference = run(tmp_path / "a", SerialExecutor, **case)
    found = run(tmp_path / "b", partial(VectorizedExecutor, memory_mb=megabytes), **case)
    assert_agree(found, reference, tolerance=0 if together == 1 else TOLERANCE)
    assert stacked == ([2, 2, 2, 2] if together == 2 else [3, 2, 3, 2] if together == 3 else expected)


def tasks_of(federation, num_steps=(2, 5, 3)):
    state = federation.start().state
    return [Task(k, 0, federation.server.broadcast(state, k), None, n) for k, n in enumerate(num_steps)]


def test_updates_come_in_cohort_order_and_are_never_changed_afterwards(tmp_path):
    federation = parties(tmp_path, build_executor=VectorizedExecutor, build_model=two_layers, batch_size=2)
    tasks = tasks_of(federation)
    before = tree.transform([task.payload for task in tasks], torch.clone)
    updates = list(federation.executor.map("fit", tasks))
    assert [update.client_id for update in updates] == [0, 1, 2]
    copies = tree.transform([update.payload for update in updates], torch.clone)
    assert len({tree.sha256(copy) for copy in copies}) == 3
    list(federation.executor.map("fit", tasks_of(federation, (4, 4, 4))))
    assert tree.sha256([update.payload for update in updates]) == tree.sha256(copies)
    assert tree.sha256([task.payload for task in tasks]) == tree.sha256(before)


def test_the_same_twice_to_the_last_bit(tmp_path):
    case = CASES["dropout"]
    first, second = (run(tmp_path / name, VectorizedExecutor, **case) for name in "ab")
    assert tree.sha256(first[0]) == tree.sha256(second[0])


@pytest.mark.filterwarnings("ignore:Total length of:UserWarning")
def test_a_client_without_examples_hinders_nobody(tmp_path, stacked):
    case = {"data": make_data((4, 0, 5)), "batch_size": 2}
    expected = run(tmp_path / "a", SerialExecutor, **case)
    assert_agree(run(tmp_path / "b", VectorizedExecutor, **case), expected)
    assert stacked == [2, 2]


class Exploding(ClientModule):
    """Client 1 ends with weights that are not finite: its examples are scaled beyond float32."""

    def loss(self, batch):
        inputs, labels = batch
        return super().loss(
            (torch.where(inputs.abs().amax(-1, keepdim=True) > 1e3, inputs * 1e38, inputs), labels)
        )


def test_values_that_are_not_finite_are_one_client_s(tmp_path, stacked):
    data = make_data((4, 3, 5))
    data.dataset.train.inputs[data.split.train.of(1)] = 2e3
    federation = parties(tmp_path, build_executor=VectorizedExecutor, data=data, client=Exploding, lr=1e3)
    results = list(federation.executor.map("fit", tasks_of(federation)))
    assert [type(result) is ClientError for result in results] == [False, True, False]
    assert str(results[1]).startswith("Client 1 failed in round 1 (seed ")
    assert str(results[1]).endswith("its update holds values that are not finite.")
    assert stacked == [3]


class Failing(ClientModule):
    """Raises where a batch holds the number 99."""

    apart = None

    def configure_optimizers(self):
        if self.hit:
            raise RuntimeError("no optimizer today")
        return super().configure_optimizers()

    def receive(self, payload, memory):
        super().receive(payload, memory)
        self.hit = bool(next(self.parameters()).flatten()[0] == 99)

    hit = False


def test_a_fit_that_raises_names_the_client_whose_fault_it_is(tmp_path, caplog):
    federation = parties(tmp_path, build_executor=VectorizedExecutor, client=Failing)
    first, second, third = tasks_of(federation, (2, 2, 2))
    spoiled = tree.transform(third.payload, torch.clone)
    next(iter(spoiled.params.values())).flatten()[0] = 99
    with caplog.at_level(logging.WARNING, logger="fedfeat"):
        results = list(federation.executor.map("fit", [first, second, third._replace(payload=spoiled)]))
    assert [type(result) is ClientError for result in results] == [False, False, True]
    assert "Client 2 failed in round 1" in str(results[2])
    assert (
        "3 clients are fitted one after the other, for together: RuntimeError: no optimizer today"
        in caplog.text
    )


class Signed(ClientModule):
    """Sends signs instead of weights."""

    def upload(self, turn, tensors):
        payload, memory = super().upload(turn, tensors)
        for key, tensor in payload.params.items():
            payload.params[key] = tensor.sign()
        return payload, memory


def test_what_a_method_of_ones_own_puts_into_a_payload_is_sent(tmp_path, stacked):
    case = {"client": Signed, "num_rounds": 2}
    assert_agree(run(tmp_path / "b", VectorizedExecutor, **case), run(tmp_path / "a", SerialExecutor, **case))
    assert stacked


class Anchored(ClientModule):
    """A buffer that is there from a client's second turn on, as of a method with a memory."""

    apart = None

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.register_buffer("anchor", None)

    def begin_turn(self, turn):
        self.anchor = None if turn.memory is None else turn.memory

    def loss(self, batch):
        weight = self.model.last_layer.weight
        return super().loss(batch) + (0.0 if self.anchor is None else (weight - self.anchor).square().sum())

    def upload(self, turn, tensors):
        payload, _ = super().upload(turn, tensors)
        (weight,) = [t for t in tensors["model"].values() if t.shape == self.model.last_layer.weight.shape]
        return payload, weight.clone()


@pytest.mark.parametrize("seed", range(4))
def test_a_buffer_that_some_clients_lack_is_nobody_elses(seed, tmp_path):
    case = {"client": Anchored, "num_rounds": 4, "cohort_size": 2, "seed": seed}
    assert_agree(run(tmp_path / "b", VectorizedExecutor, **case), run(tmp_path / "a", SerialExecutor, **case))


class Noisy(ClientModule):
    """Sends noise of PyTorch's and NumPy's global generators."""

    def upload(self, turn, tensors):
        payload, memory = super().upload(turn, tensors)
        noise = {key: torch.randn_like(t) + float(np.random.rand()) for key, t in payload.params.items()}
        return payload._replace(params=noise), memory


def test_what_an_upload_draws_is_its_turns(tmp_path):
    case = {"client": Noisy, "num_rounds": 2}
    first = run(tmp_path / "a", SerialExecutor, **case)
    torch.rand(7)
    np.random.rand(7)
    assert_agree(run(tmp_path / "b", VectorizedExecutor, **case), first)


def test_a_payload_without_a_shared_tensor_fails(tmp_path):
    """The client would go on with that of whoever has trained before it."""

    class Part(FedAvgServer):
        def broadcast(self, state, client_id):
            sent = super().broadcast(state, client_id)
            return sent._replace(params=dict(list(sent.params.items())[1:]))

    with pytest.raises(ClientError, match="payload must have every shared tensor, but it has no "):
        parties(tmp_path, server=Part()).run()
