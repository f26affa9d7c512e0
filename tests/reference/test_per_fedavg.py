"""Per-FedAvg, first order, through the real loop: by hand, on a quadratic, its halves, and planted bugs."""

from functools import partial

import numpy as np
import pytest
import torch
from harness import SIZES, make_data, network_of, sample_cohort
from personal_rounds import (
    EPOCHS,
    NAMES,
    ROUNDS,
    ByHand,
    Sgd,
    assert_resumes,
    assert_stacks,
    check,
    federation_of,
    initial,
    network,
    of,
    slopes,
)
from torch import nn

from fedfeat.algorithms import per_fedavg
from fedfeat.algorithms.per_fedavg import PerFedAvgClient, halves
from fedfeat.data.batches import epoch_orders
from fedfeat.errors import ConfigError
from fedfeat.executors.serial import SerialExecutor
from fedfeat.executors.stacked.vectorized import VectorizedExecutor
from fedfeat.params import WeightedMean

ALPHA = 0.4


def moved(params, by, alpha=ALPHA):
    return {name: params[name] - alpha * by[name] for name in NAMES}


class PerFedAvg(ByHand):
    """Full batches in the order of each epoch, cut into halves; the own model is a step on everything."""

    def __init__(self):
        self.turns = {}

    def turn(self, w, memory, x, y, steps):
        k = SIZES.index(len(y))
        orders = epoch_orders(len(y), len(y), (0, self.rounds(steps), k))
        own, optimizer = w, Sgd()
        for _ in range(steps):
            order = next(orders)
            first, second = order[0::2], order[1::2]
            step = moved(own, slopes(own, x[first], y[first]))
            own = optimizer.step(own, slopes(step, x[second], y[second]))
        return own, None, moved(own, slopes(own, x, y))

    def rounds(self, steps):
        """The round, from 0, of which two clients ask; the last fit is that after all of them."""
        if steps != EPOCHS:
            return ROUNDS
        self.asked = getattr(self, "asked", -1) + 1
        return self.asked // 2

    def own(self, w, memory, x, y):
        return moved(w, slopes(w, x, y))


client = partial(of, PerFedAvgClient, alpha=ALPHA)


def test_rounds_by_hand(tmp_path):
    check(tmp_path, PerFedAvg(), client())


@pytest.mark.parametrize("part", [2, 3])
def test_the_own_model_does_not_depend_on_the_parts_that_examples_are_passed_in(part, tmp_path, monkeypatch):
    monkeypatch.setattr(per_fedavg, "_PART", part)
    check(tmp_path, PerFedAvg(), client())


def test_a_step_on_a_quadratic_leaves_out_the_second_derivative(tmp_path):
    """F(v) = c ||v - a||^2 / 2: grad F(w - alpha grad F(w)) = c (1 - alpha c) (w - a), whose true factor is squared."""
    c, target = 1.5, torch.tensor([[1.0, -2.0, 0.5, 3.0]] * 3).double()

    class Quadratic(PerFedAvgClient):
        def cross_entropy(self, logits, labels):
            """Logits of unit vectors are the weights."""
            return 0.5 * c * (logits.T - target).square().sum()

    whole = torch.eye(4).double()
    build = lambda: network_of(nn.Linear(4, 3, bias=False))  # noqa: E731
    federation = federation_of(tmp_path, partial(Quadratic, alpha=ALPHA), build_model=build)
    module = federation.executor.worker.module
    (w,) = module.model.parameters()
    # Every example twice, so that both halves are all unit vectors.
    module.loss((whole.repeat_interleave(2, 0), torch.zeros(8, dtype=torch.long))).backward()
    gap = (w - target).detach()
    torch.testing.assert_close(w.grad, c * (1 - ALPHA * c) * gap, rtol=0, atol=1e-12)


def test_without_a_step_the_own_model_is_the_common_one(tmp_path):
    records = federation_of(tmp_path, client(alpha=0.0)).run()[1]
    for record in records:
        for row in record.clients:
            assert row.personal_loss == pytest.approx(row.global_loss, abs=1e-12)
    assert len({record.metrics["global/loss"] for record in records}) == ROUNDS + 1


def test_at_rate_0_nothing_moves(tmp_path):
    federation = federation_of(tmp_path, client(), lr=0.0)
    steps, records = federation.run()
    for step in steps:
        for name, tensor in initial().items():
            torch.testing.assert_close(step.state.params[name], tensor, rtol=0, atol=1e-12)
    assert records[-1].clients[0].personal_loss != records[-1].clients[0].global_loss


def test_halves_are_every_other_example_and_padding_changes_nothing():
    x, y = torch.arange(10.0).reshape(5, 2), torch.arange(5)
    pad = torch.cat([y, torch.full((3,), -100)])
    padded = halves(torch.cat([x, torch.zeros(3, 2)]), pad)
    for (inputs, labels), (longer, more), chosen in zip(
        halves(x, y), padded, ([0, 2, 4], [1, 3]), strict=True
    ):
        assert labels.tolist() == chosen
        assert torch.equal(inputs, x[chosen])
        assert more[: len(chosen)].tolist() == chosen
        assert (more[len(chosen) :] == -100).all()
        assert torch.equal(longer[: len(chosen)], x[chosen])


def test_an_example_alone_is_in_both_halves():
    x, y = torch.ones(1, 2), torch.tensor([2])
    padded = halves(torch.cat([x, torch.zeros(3, 2)]), torch.cat([y, torch.full((3,), -100)]))
    for inputs, labels in (*halves(x, y), *padded):
        assert labels[labels != -100].tolist() == [2]
        assert torch.equal(inputs[labels != -100], x)


@pytest.mark.parametrize("count", [2, 3])
def test_a_half_of_one_example_is_none_for_batch_norm(count):
    """Of one there are no statistics; of three, one half would have one."""
    inputs, labels = torch.rand(count, 2), torch.zeros(count, dtype=torch.long)
    assert all(torch.equal(half[0], inputs) for half in halves(inputs, labels, least=2))
    assert [len(half[1]) for half in halves(*(torch.rand(4, 2), torch.zeros(4)), least=2)] == [2, 2]
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    client = PerFedAvgClient(model=network, optimizer=partial(torch.optim.SGD, lr=0.1))
    assert torch.isfinite(client.loss((inputs, labels)))


def test_clients_keep_nothing_and_messages_and_work_are_those_of_fedavg(tmp_path):
    federation = federation_of(tmp_path, client())
    last = federation.run()[1][-1].metrics
    seen = sum(SIZES[k] for t in range(ROUNDS) for k in sample_cohort(0, t, 3, 2))
    assert len(federation.store) == 0
    assert last["comm/down_bytes"] == last["comm/up_bytes"] == ROUNDS * 2 * 43 * 8
    assert last["compute/flops"] == EPOCHS * seen * 170


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_turns_are_stacked_as_they_are_alone(batch_size, tmp_path):
    """Of 3, 5 and 8 examples; batches of 2 leave one alone, which is padded."""
    assert_stacks(tmp_path, client(), batch_size=batch_size, build_model=network)


def test_with_dropout_they_are_not(tmp_path):
    with pytest.raises(
        ConfigError, match=r"PerFedAvgClient cannot be stacked: it passes halves of batches, and"
    ):
        assert_stacks(tmp_path, client())


@pytest.mark.filterwarnings("ignore:Total length of:UserWarning")
@pytest.mark.parametrize("executor", [SerialExecutor, VectorizedExecutor])
def test_the_own_model_of_a_client_without_examples_is_the_common_one(executor, tmp_path):
    """Client 1 has none, so it has no gradient either."""
    plan = {"data": make_data((3, 0, 8)), "cohort_size": 3, "build_executor": executor, "final_epochs": 1}
    records = federation_of(tmp_path, client(), **plan).run()[1]
    for record in records:
        own, common = (
            [getattr(row, f"{kind}_loss") for row in record.clients] for kind in ("personal", "global")
        )
        assert np.isfinite(own).all()
        assert own[1] == pytest.approx(common[1], abs=1e-12)
        assert abs(own[0] - common[0]) > 1e-6 < abs(own[2] - common[2])
    assert len({record.metrics["global/loss"] for record in records}) == ROUNDS + 1


def test_a_run_goes_on_from_its_middle(tmp_path):
    assert_resumes(tmp_path, client(), batch_size=3, keep_optimizer=True)


def test_the_softmax_of_the_own_step_is_the_clients(tmp_path):
    """Though another client was there before."""
    options = {"client": of(PerFedAvgClient, alpha=ALPHA, softmax_scope="present_classes"), "num_rounds": 1}
    federation = federation_of(tmp_path, **options)
    worker, state = federation.executor.worker, federation.start().state
    scopes = []
    for k in (2, 0, 2):
        task = federation.plan.task(0, k, 1, federation.server.broadcast(state, k), None)
        scopes.append((worker.evaluate_client(task)["own/loss"], worker.module._outside))
    assert scopes[0][0] == scopes[2][0] != scopes[1][0]


class Doubled(PerFedAvgClient):
    def scope_to(self, turn):
        super().scope_to(turn)
        self._prior = 2 * self._prior


@pytest.mark.parametrize("half", [PerFedAvgClient, Doubled])
def test_the_own_step_is_taken_by_the_softmax_of_the_fit(half, tmp_path):
    """What a method makes of the softmax's scope holds for a fit and for what a client's own model is scored by."""
    options = {"client": of(half, alpha=ALPHA, softmax_scope="balanced"), "num_rounds": 1}
    federation = federation_of(tmp_path, **options)
    worker, state = federation.executor.worker, federation.start().state
    task = federation.plan.task(1, 2, 1, federation.server.broadcast(state, 2), None)
    worker.fit(task)
    of_the_fit = worker.module._prior.clone()
    worker.module._prior = None
    worker.evaluate_client(task)
    assert torch.equal(worker.module._prior, of_the_fit)
    assert of_the_fit.abs().max() > 0


ADD, LOSS = WeightedMean.add, PerFedAvgClient.loss


def one_half(inputs, labels, least):
    return (inputs, labels), (inputs, labels)


def swapped(inputs, labels, least):
    return halves(inputs, labels)[::-1]


def uphill(self, batch):
    self.alpha = -self.alpha
    try:
        return LOSS(self, batch)
    finally:
        self.alpha = -self.alpha


def unadapted(self, turn):
    self.own.fill(self.model.state_dict())


BUGS = {
    "one batch for both gradients": [(per_fedavg, "halves", one_half)],
    "halves swapped": [(per_fedavg, "halves", swapped)],
    "sign of the inner step": [(PerFedAvgClient, "loss", uphill)],
    "no step for the own model": [(PerFedAvgClient, "adapt", unadapted)],
    "the common model scored": [(PerFedAvgClient, "predict", lambda self, inputs: self(inputs))],
    "mean without weights": [(WeightedMean, "add", lambda self, params, weight: ADD(self, params, 1))],
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    for owner, attribute, mutant in BUGS[bug]:
        monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        check(tmp_path, PerFedAvg(), client())
