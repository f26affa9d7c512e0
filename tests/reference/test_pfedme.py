"""pFedMe through the real loop: inner solves by hand, on a network and on a quadratic, its server, and planted bugs."""

from functools import partial

import pytest
import torch
from harness import SETTING, SIZES, network_of, parties, sample_cohort
from personal_rounds import (
    EPOCHS,
    LR,
    NAMES,
    ROUNDS,
    ByHand,
    Sgd,
    assert_absent_keep_their_models,
    assert_resumes,
    assert_stacks,
    check,
    federation_of,
    initial,
    of,
    slopes,
)
from torch import nn

from fedfeat import tree
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.own_models import OwnModel
from fedfeat.algorithms.pfedme import PFedMeClient, PFedMeServer
from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.errors import ConfigError
from fedfeat.params import WeightedMean
from fedfeat.types import Update, Weights

LAM, STEPS, INNER, MU, BETA = 2.0, 3, 0.15, 0.01, 0.8


class PFedMe(ByHand):
    """Theta starts at w in every turn and goes on from batch to batch."""

    def __init__(self, beta=1.0, **_):
        self.beta = beta

    def turn(self, w, memory, x, y, steps):
        self.before, own, theta, optimizer = w, w, w, Sgd()
        for _ in range(steps):
            for _ in range(STEPS):
                slope = slopes(theta, x, y)
                theta = {
                    n: theta[n] - INNER * (slope[n] + LAM * (theta[n] - own[n]) + MU * theta[n])
                    for n in NAMES
                }
            own = optimizer.step(own, {n: LAM * (own[n] - theta[n]) for n in NAMES})
        return own, theta, theta

    def own(self, w, memory, x, y):
        return memory or initial()

    def mean(self, w, found):
        mean = super().mean(w, found)
        return {name: (1 - self.beta) * w[name] + self.beta * mean[name] for name in NAMES}


client = partial(of, PFedMeClient, lam=LAM, inner_steps=STEPS, inner_lr=INNER, mu=MU)


def server(beta=1.0):
    return PFedMeServer(average=FedAvgServer(), beta=beta)


@pytest.mark.parametrize("beta", [BETA, 1.5])
def test_running_statistics_are_the_averages(beta, tmp_path):
    """They are no steps: beyond their mean a variance could be negative."""
    federation = parties(
        tmp_path,
        build_model=lambda: network_of(nn.BatchNorm1d(4), nn.Linear(4, 3)),
        client=client(),
        server=server(beta),
    )
    begun = federation.start().state
    start = federation.server.average.params(begun)
    updates = [
        Update(k, 1, Weights({name: torch.full_like(tensor, k) for name, tensor in start.items()}), None, {})
        for k in (0, 1)
    ]
    found = federation.server.average.params(federation.server.aggregate(begun, updates))
    names = [name for name in start if "running" in name]
    assert len(names) == 2
    assert all(torch.equal(found[name], torch.full_like(found[name], 0.5)) for name in names)
    weights = [name for name in start if "running" not in name and "num_batches" not in name]
    assert all(torch.allclose(found[n], (1 - beta) * start[n] + beta * 0.5) for n in weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("beta", [0.1, 0.9, 1.5])
def test_what_everyone_sends_back_stays_as_it_is(beta, dtype, tmp_path):
    federation = parties(tmp_path, client=client(), server=server(beta))
    begun = federation.start().state
    own = {name: tensor.to(dtype) for name, tensor in federation.server.average.params(begun).items()}
    begun = federation.server.average.with_params(begun, own)
    found = federation.server.aggregate(begun, [Update(0, 3, Weights(own), None, {})])
    assert tree.sha256(federation.server.average.params(found)) == tree.sha256(own)


@pytest.mark.parametrize("beta", [1.0, BETA, 1.5])
def test_rounds_by_hand(beta, tmp_path):
    check(tmp_path, PFedMe(beta), client(), server(beta))


def test_a_step_on_a_quadratic_follows_its_moreau_envelope(tmp_path):
    """F(v) = ||v - a||^2 / 2: theta -> (a + lam w) / (1 + lam), and w moves by lr lam (a - w) / (1 + lam).

    K steps leave (1 - inner_lr (1 + lam))^K of the way to that theta.
    """
    target = torch.tensor([[1.0, -2.0, 0.5, 3.0]] * 3).double()

    class Quadratic(PFedMeClient):
        def cross_entropy(self, logits, labels):
            """Logits of unit vectors are the weights."""
            return 0.5 * (logits.T[:, :4] - target).square().sum()

    def build():
        linear = nn.Linear(4, 3, bias=False)
        nn.init.constant_(linear.weight, 0.25)
        return network_of(linear)

    arguments = {"lam": 3.0, "inner_steps": 4, "inner_lr": 0.1}
    federation = federation_of(
        tmp_path, partial(Quadratic, **arguments), server(), build_model=build, lr=0.2, momentum=0.0
    )
    module = federation.executor.worker.module
    payload = federation.server.broadcast(federation.start().state, 0)
    module.receive(payload, None)
    optimizer = module.configure_optimizers()
    w = torch.full((3, 4), 0.25).double()
    theta = w
    for _ in range(3):
        optimizer.zero_grad()
        value = module.loss((torch.eye(4).double(), torch.zeros(4, dtype=torch.long)))
        value.backward()
        optimizer.step()
        best = (target + 3.0 * w) / 4.0
        theta = best + (1 - 0.1 * 4.0) ** 4 * (theta - best)
        w = w - 0.2 * 3.0 * (w - theta)
        (found,), (own,) = module.model.parameters(), module.theta.parameters()
        torch.testing.assert_close(found.detach(), w, rtol=0, atol=1e-12)
        torch.testing.assert_close(own.detach(), theta, rtol=0, atol=1e-12)


def test_a_server_that_goes_all_the_way_is_fedavgs_bit_for_bit(tmp_path):
    found = federation_of(tmp_path / "a", of(ClientModule), server()).run()[0][-1]
    expected = federation_of(tmp_path / "b", of(ClientModule)).run()[0][-1]
    assert tree.sha256(found.state) == tree.sha256(expected.state)


def test_running_statistics_are_those_that_the_clients_models_have_passed(tmp_path):
    """Twice a momentum of .1 towards the mean of a full batch, by K = 2 passes."""
    federation = federation_of(
        tmp_path, partial(PFedMeClient, inner_steps=2), server(), num_rounds=1, local_epochs=1,
        build_model=lambda: network_of(nn.BatchNorm1d(4), nn.Linear(4, 3)),
    )  # fmt: skip
    state = federation.start().state
    update = federation.executor.worker.fit(Task(2, 0, federation.server.broadcast(state, 2), None, 1))
    data = federation.data
    x = data.dataset.train.inputs[data.split.train.of(2)].double()
    (key,) = [name for name in state.params if name.endswith("running_mean")]
    for found in (update.payload.params[key], update.kept.memory.params[key]):
        torch.testing.assert_close(found, (1 - 0.9**2) * x.mean(0))


def test_who_is_absent_keeps_its_model(tmp_path):
    assert_absent_keep_their_models(tmp_path, client(), server())


def test_messages_are_those_of_fedavg_and_every_batch_is_passed_k_times(tmp_path):
    last = federation_of(tmp_path, client(), server()).run()[1][-1].metrics
    seen = sum(SIZES[k] for t in range(ROUNDS) for k in sample_cohort(0, t, 3, 2))
    assert last["comm/down_bytes"] == last["comm/up_bytes"] == ROUNDS * 2 * 43 * 8
    assert last["compute/examples"] == EPOCHS * seen
    assert last["compute/flops"] == STEPS * EPOCHS * seen * 170


def test_turns_are_stacked_as_they_are_alone(tmp_path):
    assert_stacks(tmp_path, client(), server(BETA))


@pytest.mark.parametrize("keep", [False, True])
def test_a_run_goes_on_from_its_middle_with_the_own_models(keep, tmp_path):
    assert_resumes(tmp_path, client(), server(BETA), keep_optimizer=keep, batch_size=3)


def test_other_optimizers_are_refused():
    half = PFedMeClient(model=network_of(nn.Linear(4, 3)), optimizer=partial(torch.optim.Adam, lr=LR))
    with pytest.raises(ConfigError, match=r"^optimizer must be one of torch\.optim\.SGD .*'Adam'\.$"):
        half.check(SETTING)


ADD, RECEIVE, UPLOAD, SOLVED = (
    WeightedMean.add,
    PFedMeClient.receive,
    PFedMeClient.upload,
    PFedMeClient._solved,
)
OPTIMIZERS, AGGREGATE = PFedMeClient.configure_optimizers, PFedMeServer.aggregate


def start_kept(self, payload, memory):
    RECEIVE(self, payload, memory)
    if memory:
        self.theta.load_state_dict(memory.params)


def uphill(self, w, batch):
    theta, value = SOLVED(self, w, batch)
    return {name: 2 * w[name] - tensor for name, tensor in theta.items()}, value


def one_less(self, w, batch):
    self.inner_steps -= 1
    try:
        return SOLVED(self, w, batch)
    finally:
        self.inner_steps += 1


def slow(self):
    optimizer = OPTIMIZERS(self)
    optimizer.param_groups[-1]["lr"] = self.lr
    return optimizer


def kept_w(self, turn, tensors):
    payload, _ = UPLOAD(self, turn, tensors)
    return payload, OwnModel(tensors["model"])


def reversed_share(self, state, updates):
    self.beta = 1 - self.beta
    try:
        return AGGREGATE(self, state, updates)
    finally:
        self.beta = 1 - self.beta


BUGS = {
    "theta starts where it was": [(PFedMeClient, "receive", start_kept)],
    "w moves away from theta": [(PFedMeClient, "_solved", uphill)],
    "a step less": [(PFedMeClient, "_solved", one_less)],
    "theta at the rate of w": [(PFedMeClient, "configure_optimizers", slow)],
    "w kept": [(PFedMeClient, "upload", kept_w)],
    "w scored": [(PFedMeClient, "predict", lambda self, inputs: self(inputs))],
    "the common model at the recall": [(PFedMeClient, "recall", RECEIVE)],
    "the other share": [(PFedMeServer, "aggregate", reversed_share)],
    "mean without weights": [(WeightedMean, "add", lambda self, params, weight: ADD(self, params, 1))],
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    for owner, attribute, mutant in BUGS[bug]:
        monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        check(tmp_path, PFedMe(BETA), client(), server(BETA))
