"""MOON: its rounds by plain autograd, FedAvg at mu = 0 and in first turns, its memory, and planted bugs."""

import math
from functools import partial

import pytest
import torch
from float64_runs import assert_stacks
from harness import LR, SIZES, network_of, parties, turn_of
from linear_rounds import goes_on
from torch import nn

from fedfeat import tree
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.moon import LastModels, MoonClient, contrast
from fedfeat.client import ClientModule
from fedfeat.models.frozen import FrozenCopy
from fedfeat.models.mlp import mlp
from fedfeat.models.projection import project
from fedfeat.params import WeightedMean
from fedfeat.rounds.sampling import sample_stragglers, straggler_steps

DOUBLE = {"precision": "64-true"}
LN2 = math.log(2)


def two_layers(dropout=0.0):
    torch.manual_seed(1)
    return mlp((4,), 3, hidden=[5], dropout=dropout)


def projected(dropout=0.0):
    network = two_layers(dropout)
    project(network, 6)
    return network


def moon(**fixed):
    return partial(MoonClient, **({"mu": 1.5, "projection": None} | fixed))


def federation_of(folder, *, client=None, weighting="samples", **plan):
    """Two of three unequal clients a round, 4 full-batch steps each, fewer for stragglers."""
    arguments = {"num_rounds": 6, "local_epochs": 4, "cohort_size": 2, "straggler_fraction": 0.5}
    arguments |= {"build_model": projected, "client": client or moon(), "server": FedAvgServer(weighting)}
    return parties(folder, **(arguments | DOUBLE | plan))


def forward(params, x, head):
    """What the last layer reads, and the logits; params are weights and biases from input to logits."""
    *hidden, weight, bias = params
    seen = (x @ hidden[0].T + hidden[1]).relu()
    if head:
        seen = (seen @ hidden[2].T + hidden[3]).relu() @ hidden[4].T + hidden[5]
    return seen, seen @ weight.T + bias


def cosine(left, right):
    left, right = (part / part.norm(dim=1, keepdim=True).clamp_min(1e-8) for part in (left, right))
    return (left * right).sum(1)


def by_hand(
    federation, cohorts, first, *, mu=1.5, tau=0.5, size=1, head=True, momentum=0.0, weighting="samples"
):
    """w and all last models after each cohort."""
    data, plan = federation.data, federation.plan
    w = [tensor.double() for tensor in (projected() if head else two_layers()).parameters()]
    last = {k: list(models) for k, models in first.items()}
    for round_idx, cohort in enumerate(cohorts):
        late = sample_stragglers(0, round_idx, cohort, plan.straggler_fraction)
        ends = {}
        for k in cohort:
            chosen, train = data.split.train.of(k), data.dataset.train
            x, y = train.inputs[chosen].double(), train.labels[chosen]
            own, velocity = w, [torch.zeros_like(tensor) for tensor in w]
            before = last[k] or [w]
            for _ in range(straggler_steps(0, round_idx, k, 4, 1) if k in late else 4):
                own = [tensor.detach().requires_grad_() for tensor in own]
                z, logits = forward(own, x, head)
                up = (cosine(z, forward(w, x, head)[0]) / tau).exp()
                down = sum((cosine(z, forward(model, x, head)[0]) / tau).exp() for model in before)
                loss = nn.functional.cross_entropy(logits, y) - mu * (up / (up + down)).log().mean()
                slopes = torch.autograd.grad(loss, own)
                velocity = [momentum * v + slope for v, slope in zip(velocity, slopes, strict=True)]
                own = [(tensor - LR * v).detach() for tensor, v in zip(own, velocity, strict=True)]
            ends[k] = own
            last[k] = [own, *last[k]][:size]
        share = {k: (SIZES[k] if weighting == "samples" else 1) for k in cohort}
        total = sum(share.values())
        w = [sum(share[k] / total * ends[k][i] for k in cohort) for i in range(len(w))]
        yield w, {k: list(models) for k, models in last.items()}


def assert_tensors(found, expected, tolerance=1e-12):
    assert len(found) == len(expected)
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), its, rtol=0, atol=tolerance)


SETTINGS = {
    "the paper's": ({}, {}),
    "sharper and lighter": ({"mu": 0.4, "tau": 0.2}, {"mu": 0.4, "tau": 0.2}),
    "two last models": ({"num_previous": 2}, {"size": 2}),
    "without a projection": ({}, {"head": False}),
    "independent starts": ({"start": "independent"}, {}),
    "independent starts, two last models": ({"start": "independent", "num_previous": 2}, {"size": 2}),
    "momentum": ({}, {"momentum": 0.6}),
    "uniform weights": ({}, {"weighting": "uniform"}),
}


def check(folder, name="the paper's"):
    """Compare w and what clients keep after every round."""
    half, hand = SETTINGS[name]
    plan = {key: hand[key] for key in ("momentum", "weighting") if key in hand}
    build = projected if hand.get("head", True) else two_layers
    federation = federation_of(folder, client=moon(**half), build_model=build, **plan)
    steps, records = federation.run()
    module = federation.executor.worker.module
    first = {
        k: [list(m.values()) for m in module._last_models(turn_of()._replace(client_id=k))] for k in range(3)
    }
    cohorts = [record.cohort for record in records[1:]]
    assert len(set(cohorts)) > 1
    expected = list(by_hand(federation, cohorts, first, **hand))
    for step, (w, _) in zip(steps[1:], expected, strict=True):
        assert_tensors(list(step.state.params.values()), w)
    for k in federation.store:
        kept = federation.store.get(k)
        assert isinstance(kept.memory, LastModels)
        assert kept.personal == kept.optimizer == {}
        for model, its in zip(kept.memory.models, expected[-1][1][k], strict=True):
            assert_tensors(list(model.values()), its)


@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_of_some_of_unequal_clients_by_hand(name, tmp_path):
    check(tmp_path, name)


def twins(tmp_path, half, **plan):
    """Runs of MOON and of FedAvg with the same network, in float32."""
    shared = {"build_model": partial(projected, 0.3), "batch_size": 2, "cohort_size": 2, "momentum": 0.9}
    shared |= {"local_epochs": 2} | plan
    found = parties(tmp_path / "a", client=half, **shared)
    return found, found.run(), parties(tmp_path / "b", **shared).run()


def test_mu_0_is_fedavg_with_the_same_network_bit_for_bit(tmp_path):
    found, left, right = twins(tmp_path, moon(mu=0.0), num_rounds=3)
    for mine, its in zip(left[0], right[0], strict=True):
        assert tree.sha256(mine.state) == tree.sha256(its.state)
    assert len(found.store) == 0
    names = ("train/loss", "global/loss", "comm/total_bytes", "compute/flops")
    for mine, its in zip(left[1][1:], right[1][1:], strict=True):
        assert [mine.metrics[name] for name in names] == [its.metrics[name] for name in names]


@pytest.mark.parametrize("num_previous", [1, 3])
def test_first_turns_have_a_loss_of_ln_2_and_are_fedavgs_bit_for_bit(num_previous, tmp_path):
    _, left, right = twins(tmp_path, moon(mu=5.0, num_previous=num_previous), num_rounds=1)
    assert tree.sha256(left[0][-1].state) == tree.sha256(right[0][-1].state)
    mine, its = (run[1][-1].metrics["train/loss"] for run in (left, right))
    assert mine == pytest.approx(its + 5 * LN2, abs=1e-5)


def test_so_are_first_turns_in_later_rounds_and_no_others(tmp_path):
    """Its payload is what FedAvg's client would send from the same weights."""
    plan = {"build_model": partial(projected, 0.3), "batch_size": 2, "cohort_size": 2, "num_rounds": 5}
    federation = parties(tmp_path / "a", client=moon(mu=5.0), **plan)
    plain = parties(tmp_path / "b", **plan).executor.worker
    worker, seen, late, others = federation.executor.worker, set(), 0, 0
    fit = worker.fit

    def comparing(task):
        nonlocal late, others
        update = fit(task)
        same = tree.sha256(update.payload) == tree.sha256(plain.fit(task).payload)
        assert same == (task.client_id not in seen)
        late, others = late + (same and task.round_idx > 0), others + (not same)
        seen.add(task.client_id)
        return update

    worker.fit = comparing
    federation.run()
    assert late
    assert others


def test_a_hot_term_is_fedavg(tmp_path):
    plan = {"straggler_fraction": 0.0}
    hot = federation_of(tmp_path / "a", client=moon(tau=1e10), **plan)
    plain = federation_of(tmp_path / "b", client=ClientModule, **plan)
    (left, found), (right, expected) = hot.run(), plain.run()
    assert_tensors(list(left[-1].state.params.values()), list(right[-1].state.params.values()), 1e-8)
    for mine, its in zip(found[1:], expected[1:], strict=True):
        assert mine.metrics["train/loss"] == pytest.approx(its.metrics["train/loss"] + 1.5 * LN2, abs=1e-7)


def test_the_term_and_its_gradient_are_the_formulas():
    torch.manual_seed(0)
    own, positive, near, far = (torch.randn(4, 6, dtype=torch.float64) for _ in range(4))
    everyone, tau = torch.ones(4, dtype=torch.bool), 0.3
    own.requires_grad_()

    def term(z, absent, counts):
        return contrast(z, positive, [near, far], tau, torch.tensor(absent, dtype=torch.float64), counts)

    def formula(chosen, rows):
        up = (cosine(own, positive) / tau).exp()
        down = sum((cosine(own, z) / tau).exp() for z in chosen)
        return -(up / (up + down)).log()[rows].mean()

    some = torch.tensor([True, False, True, False])
    cases = [
        ([0.0, 0.0], everyone, [near, far]),
        ([0.0, -math.inf], everyone, [near]),
        ([0.0, 0.0], some, [near, far]),
    ]
    for absent, counts, chosen in cases:
        found, expected = term(own, absent, counts), formula(chosen, counts)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
        slopes = [torch.autograd.grad(value, own)[0] for value in (found, expected)]
        torch.testing.assert_close(*slopes, rtol=0, atol=1e-14)
    assert torch.autograd.gradcheck(lambda z: term(z, [0.0, 0.0], everyone), own)


def test_weights_alone_are_sent_and_an_absent_client_keeps_its_model(tmp_path):
    """5 4 + 5, 5 5 + 5, 5 6 + 6 and 6 3 + 3 numbers; forward 2 (20 + 25 + 30 + 18) FLOPs, 2 * 93 - 20 more backward."""
    federation = federation_of(tmp_path, straggler_fraction=0.0)
    memories, absent, turns = {}, 0, 0
    for _, record in federation.rounds():
        for k in federation.store:
            memory = federation.store.get(k).memory
            if k not in record.cohort:
                assert tree.sha256(memory) == tree.sha256(memories[k])
                absent += 1
            memories[k] = memory
        turns += len(record.cohort)
        assert record.metrics["comm/up_bytes"] == record.metrics["comm/down_bytes"] == turns * 112 * 8
    assert absent
    forward_pass, backward = 2 * 93, 4 * 93 - 2 * 20
    assert record.metrics["compute/flops"] == record.metrics["compute/examples"] * (
        3 * forward_pass + backward
    )


def test_memory_is_what_was_sent_and_what_is_personal(tmp_path):
    federation = federation_of(tmp_path, client=moon(personal=["last"]), num_rounds=2, cohort_size=3)
    sent = {}
    aggregate = federation.server.aggregate

    def noting(state, updates):
        found = list(updates)
        sent.update({update.client_id: update.payload.params for update in found})
        return aggregate(state, found)

    federation.server.aggregate = noting
    federation.run()
    for k in range(3):
        kept = federation.store.get(k)
        assert tree.sha256(kept.memory.models[0]) == tree.sha256(sent[k] | kept.personal)


def test_fixed_models_are_in_eval_mode_and_have_no_gradient(tmp_path):
    def model():
        torch.manual_seed(3)
        return network_of(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))

    federation = federation_of(tmp_path, build_model=model, num_rounds=3)
    module, begun = federation.executor.worker.module, []
    begin = MoonClient.begin_turn

    class Noting(MoonClient):
        """Notes what is fixed as a turn begins."""

        def begin_turn(self, turn):
            begin(self, turn)
            begun.append([tree.sha256(dict(part.state_dict())) for part in (self.received, *self.previous)])

        def on_train_end(self):
            super().on_train_end()
            parts = [self.received, *self.previous]
            assert [tree.sha256(dict(part.state_dict())) for part in parts] == begun[-1]
            for part in parts:
                assert not any(layer.training for layer in part.modules())
                assert all(p.grad is None and not p.requires_grad for p in part.parameters())

    module.__class__ = Noting
    federation.run()
    assert len(begun) == 6


def test_independent_starts_are_a_clients_own_and_come_back(tmp_path):
    def first_of(folder, client_id):
        module = federation_of(tmp_path / folder, client=moon(start="independent")).executor.worker.module
        module.begin_turn(turn_of()._replace(client_id=client_id))
        return tree.sha256(dict(module.previous[0].state_dict())), tree.sha256(
            dict(module.received.state_dict())
        )

    found = {k: first_of(f"a{k}", k) for k in range(3)}
    assert len({model for pair in found.values() for model in pair}) == 4
    assert found[1] == first_of("b", 1)


@pytest.mark.parametrize("half", [{}, {"start": "independent", "num_previous": 2}])
def test_a_run_goes_on_from_its_middle_with_the_memories(half, tmp_path):
    build = partial(federation_of, client=moon(**half), momentum=0.5)
    assert goes_on(build, tmp_path / "cut", tmp_path / "whole")


STACKED = {
    "stragglers": ("scenario=stragglers", "partition=quantity_skew"),
    "independent": ("algorithm.client.start=independent", "algorithm.client.num_previous=2"),
    "groups": (
        "algorithm/server=fed2",
        "structure=grouped",
        "structure.norm_shared=gn1",
        "algorithm.client.projection=null",
    ),
}


@pytest.mark.parametrize("name", STACKED)
def test_whole_runs_of_stacked_clients_are_those_of_serial(name, tmp_path):
    options = ("algorithm=moon", "federation.cohort_size=3", "federation.local_epochs=2", *STACKED[name])
    assert_stacks(tmp_path, *options)


BEGIN, UPLOAD, FILL = MoonClient.begin_turn, MoonClient.upload, FrozenCopy.fill
ADD = WeightedMean.add


def forgetful(self, turn, tensors):
    return UPLOAD(self, turn, tensors)[0], LastModels((turn.payload.params,))


def swapped(self, turn):
    BEGIN(self, turn)
    own = {key: tensor.clone() for key, tensor in self.received.network.state_dict().items()}
    self.received.fill(self.previous[0].network)
    self.previous[0].fill(own)


def lukewarm(own, positive, negatives, tau, *others):
    return contrast(own, positive, negatives, 1.0, *others)


BUGS = {
    "the sign of the term": [("fedfeat.algorithms.moon.contrast", lambda *a: -contrast(*a))],
    "pulled to the last model": [(MoonClient, "begin_turn", swapped)],
    "the received model kept": [(MoonClient, "upload", forgetful)],
    "the last model never taken": [(MoonClient, "_last_models", lambda self, turn: ())],
    "temperature forgotten": [("fedfeat.algorithms.moon.contrast", lukewarm)],
    "the received model follows": [
        (MoonClient, "loss", lambda self, batch: (FILL(self.received, self.model), LOSS(self, batch))[1])
    ],
    "mean without weights": [(WeightedMean, "add", lambda self, params, weight: ADD(self, params, 1))],
}  # fmt: skip
LOSS = MoonClient.loss


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    for planted in BUGS[bug]:
        monkeypatch.setattr(*planted)
    with pytest.raises(AssertionError):
        check(tmp_path)
