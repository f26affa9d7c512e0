"""FedRoD: its rounds by plain autograd, FedAvg under the balanced softmax, both models' scores, and planted bugs."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from float64_runs import assert_stacks, steps_of
from harness import LR, SIZES, make_data, parties, turn_of
from linear_rounds import goes_on
from torch.nn import functional

from fedfeat import tree
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedrod import FedRoDClient, PersonalHead
from fedfeat.client import ClientModule
from fedfeat.data import transforms
from fedfeat.data.federated import FederatedData
from fedfeat.models.mlp import mlp
from fedfeat.params import WeightedMean
from fedfeat.rounds.sampling import sample_stragglers, straggler_steps

DOUBLE = {"precision": "64-true"}


def two_layers(dropout=0.0):
    torch.manual_seed(1)
    return mlp((4,), 3, hidden=[5], dropout=dropout)


def fedrod(**fixed):
    return partial(FedRoDClient, **({"softmax_scope": "balanced"} | fixed))


def labelled(sizes, label):
    """`make_data` with a label for each of a client's examples by its number."""
    data = make_data(sizes)
    train, parts = data.dataset.train, data.split.train
    labels = train.labels.clone()
    for k in range(len(sizes)):
        labels[parts.of(k)] = torch.tensor([label(k, i) for i in range(sizes[k])])
    dataset = replace(data.dataset, train=replace(train, labels=labels))
    return FederatedData(dataset, data.split, transforms.none())


def federation_of(folder, *, client=None, weighting="samples", **plan):
    """Two of three unequal clients a round, 4 full-batch steps each, fewer for stragglers."""
    arguments = {"num_rounds": 5, "local_epochs": 4, "cohort_size": 2, "straggler_fraction": 0.5}
    arguments |= {
        "build_model": two_layers,
        "personal": True,
        "client": client or fedrod(),
        "server": FedAvgServer(weighting),
    }
    return parties(folder, **(arguments | DOUBLE | plan))


def features(body, x):
    return (x @ body[0].T + body[1]).relu()


def by_hand(federation, cohorts, *, gamma=1.0, momentum=0.0, weighting="samples"):
    """Body, generic head and all personal heads after each cohort: two steps one after the other, each on its own."""
    data, plan = federation.data, federation.plan
    w = [tensor.double() for tensor in two_layers().parameters()]
    heads = {k: [torch.zeros_like(tensor) for tensor in w[2:]] for k in range(3)}
    for round_idx, cohort in enumerate(cohorts):
        late = sample_stragglers(0, round_idx, cohort, plan.straggler_fraction)
        ends = {}
        for k in cohort:
            chosen, train = data.split.train.of(k), data.dataset.train
            x, y = train.inputs[chosen].double(), train.labels[chosen]
            counts = torch.bincount(y, minlength=3).double()
            own, head, velocity = w, heads[k], [torch.zeros_like(t) for t in (*w, *heads[k])]
            for _ in range(straggler_steps(0, round_idx, k, 4, 1) if k in late else 4):
                own = [tensor.detach().requires_grad_() for tensor in own]
                head = [tensor.detach().requires_grad_() for tensor in head]
                z = features(own, x)
                g = z @ own[2].T + own[3]
                # Written out: n_y^gamma e^{g_y} over the sum, in which absent classes weigh nothing.
                weights = torch.where(counts > 0, counts**gamma, 0.0) * g.exp()
                balanced = -(weights[torch.arange(len(y)), y] / weights.sum(1)).log().mean()
                both = g.detach() + z.detach() @ head[0].T + head[1]
                slopes = torch.autograd.grad(balanced, own)
                slopes += torch.autograd.grad(functional.cross_entropy(both, y), head)
                velocity = [momentum * v + slope for v, slope in zip(velocity, slopes, strict=True)]
                moved = [(t - LR * v).detach() for t, v in zip((*own, *head), velocity, strict=True)]
                own, head = moved[:4], moved[4:]
            ends[k], heads[k] = own, head
        share = {k: (SIZES[k] if weighting == "samples" else 1) for k in cohort}
        w = [sum(share[k] * ends[k][i] for k in cohort) / sum(share.values()) for i in range(4)]
        yield w, dict(heads)


SETTINGS = {
    "the paper's": {},
    "gamma": {"gamma": 0.4},
    "gamma 0": {"gamma": 0.0},
    "momentum": {"momentum": 0.6},
    "uniform weights": {"weighting": "uniform"},
}


def check(folder, name="the paper's"):
    """Compare models, what clients keep and both models' scores after every round."""
    setting = SETTINGS[name]
    plan = {key: setting[key] for key in ("momentum", "weighting") if key in setting}
    federation = federation_of(folder, client=fedrod(gamma=setting.get("gamma", 1.0)), **plan)
    test = federation.data.dataset.test
    x, y = test.inputs.double(), test.labels
    steps, records = federation.run()
    cohorts = [record.cohort for record in records[1:]]
    assert len(set(cohorts)) > 1
    expected = list(by_hand(federation, cohorts, **setting))
    for step, record, (w, heads) in zip(steps[1:], records[1:], expected, strict=True):
        for found, its in zip(step.state.params.values(), w, strict=True):
            torch.testing.assert_close(found, its, rtol=0, atol=1e-12)
        z = features(w, x)
        generic = z @ w[2].T + w[3]
        assert record.metrics["global/loss"] == pytest.approx(
            float(functional.cross_entropy(generic, y)), abs=1e-9
        )
        assert len(record.clients) == 3
        for row in record.clients:
            own = generic + z @ heads[row.client_id][0].T + heads[row.client_id][1]
            assert row.personal_loss == pytest.approx(float(functional.cross_entropy(own, y)), abs=1e-9)
            assert row.personal_acc == pytest.approx(float((own.argmax(1) == y).double().mean()), abs=1e-9)
    for k in federation.store:
        kept = federation.store.get(k)
        assert isinstance(kept.memory, PersonalHead)
        assert kept.personal == kept.optimizer == {}
        for found, its in zip(kept.memory.params.values(), expected[-1][1][k], strict=True):
            torch.testing.assert_close(found, its, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_of_some_of_unequal_clients_by_hand(name, tmp_path):
    check(tmp_path, name)


def same_averages(tmp_path, half, plain, **plan):
    """Whether a run of FedRoD and one of another half send and average the very same weights, in float32."""
    shared = {"build_model": partial(two_layers, 0.3), "batch_size": 2, "cohort_size": 2, "momentum": 0.9}
    shared |= {"local_epochs": 2, "num_rounds": 3} | plan
    left = parties(tmp_path / "a", client=half, **shared).run()
    right = parties(tmp_path / "b", client=plain, **shared).run()
    bytes_sent = [[record.metrics["comm/total_bytes"] for record in run[1]] for run in (left, right)]
    assert bytes_sent[0] == bytes_sent[1]
    return all(tree.sha256(a.state) == tree.sha256(b.state) for a, b in zip(left[0], right[0], strict=True))


@pytest.mark.parametrize("scope", ["balanced", "all", "present_classes"])
def test_nothing_of_the_personal_head_reaches_what_is_averaged(scope, tmp_path):
    assert same_averages(tmp_path, fedrod(softmax_scope=scope), partial(ClientModule, softmax_scope=scope))


def test_gamma_0_is_the_restricted_softmax_bit_for_bit(tmp_path):
    plain = partial(ClientModule, softmax_scope="present_classes")
    assert same_averages(tmp_path, fedrod(gamma=0.0), plain)
    assert not same_averages(tmp_path, fedrod(), plain)


def test_with_equal_counts_it_is_fedavg_bit_for_bit(tmp_path):
    data = labelled((6, 9, 3), lambda k, i: i % 3)
    assert same_averages(tmp_path, fedrod(), ClientModule, data=data)
    skewed = labelled((6, 9, 3), lambda k, i: (i * i + k) % 3)
    assert not same_averages(tmp_path, fedrod(), ClientModule, data=skewed)


def test_the_balanced_softmax_is_the_formula():
    module = fedrod(gamma=0.7)(model=two_layers(), optimizer=partial(torch.optim.SGD, lr=0.1))
    counts = torch.tensor([6, 0, 2])
    module.ready(turn_of()._replace(class_counts=counts.numpy()))
    logits, labels = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 2, 0])
    found = module.cross_entropy(logits, labels)
    terms = []
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        weights = [n**0.7 * math.exp(g) if n else 0.0 for n, g in zip(counts.tolist(), row, strict=True)]
        terms.append(-math.log(weights[label] / sum(weights)))
    assert float(found) == pytest.approx(sum(terms) / 4, abs=1e-6)


def test_before_its_first_turn_a_clients_own_model_is_the_generic_one(tmp_path):
    federation = federation_of(tmp_path, num_rounds=1)
    _, first = next(federation.rounds())
    assert first.metrics["personal/acc_mean"] == first.metrics["global/acc"]
    assert {row.personal_loss for row in first.clients} == {first.metrics["global/loss"]}


def test_heads_stay_and_cost_their_own_passes(tmp_path):
    """5 4 + 5 and 3 5 + 3 numbers are sent. FLOPs: forward 2 (20 + 15), backward 40 and 2 * 30, the head 2 * 30."""
    federation = federation_of(tmp_path, straggler_fraction=0.0)
    kept, absent, turns = {}, 0, 0
    for _, record in federation.rounds():
        for k in federation.store:
            memory = federation.store.get(k).memory
            assert {name: tuple(t.shape) for name, t in memory.params.items()} == {
                "weight": (3, 5),
                "bias": (3,),
            }
            if k not in record.cohort:
                assert tree.sha256(memory) == tree.sha256(kept[k])
                absent += 1
            kept[k] = memory
        turns += len(record.cohort)
        assert record.metrics["comm/up_bytes"] == record.metrics["comm/down_bytes"] == turns * 43 * 8
    assert absent
    assert record.metrics["compute/flops"] == record.metrics["compute/examples"] * (70 + 40 + 60 + 60)


def test_a_run_goes_on_from_its_middle_with_the_heads(tmp_path):
    assert goes_on(partial(federation_of, momentum=0.5), tmp_path / "cut", tmp_path / "whole")


STACKED = {
    "stragglers": ("scenario=stragglers", "partition=quantity_skew"),
    "skew": ("partition=n_classes", "partition.classes_per_client=3", "algorithm.client.gamma=0.5"),
    "groups": ("algorithm/server=fed2", "structure=grouped", "structure.norm_shared=gn1"),
    "trimmed": ("algorithm/server=fed2", "structure=trimmed", "structure.norm_shared=gn1", "partition=iid"),
}


@pytest.mark.parametrize("name", STACKED)
def test_whole_runs_of_stacked_clients_are_those_of_serial(name, tmp_path):
    options = ("algorithm=fedrod", "federation.cohort_size=3", "federation.local_epochs=2", *STACKED[name])
    assert_stacks(tmp_path, *options)


LOSS, RECEIVE, SCOPE_TO = FedRoDClient.loss, FedRoDClient.receive, FedRoDClient.scope_to
ADD = WeightedMean.add


def attached(self, batch):
    generic = ClientModule.loss(self, batch)
    seen, logits = self._seen
    return generic + functional.cross_entropy(logits + self.personal_head(seen), batch[1])


def alone(self, batch):
    generic = ClientModule.loss(self, batch)
    return generic + functional.cross_entropy(self.personal_head(self._seen[0].detach()), batch[1])


def reversed_prior(self, turn):
    SCOPE_TO(self, turn)
    self._prior = -self._prior


BUGS = {
    "gradients through the personal loss": (FedRoDClient, "loss", attached),
    "the personal head without the generic one": (FedRoDClient, "loss", alone),
    "heads forgotten": (FedRoDClient, "receive", lambda self, payload, memory: RECEIVE(self, payload, None)),
    "the sign of the prior": (FedRoDClient, "scope_to", reversed_prior),
    "the generic model scored as the own one": (FedRoDClient, "predict", FedRoDClient.forward),
    "mean without weights": (WeightedMean, "add", lambda self, params, weight: ADD(self, params, 1)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises(AssertionError):
        check(tmp_path)


def test_the_personal_head_trains_beside_a_last_layer_that_is_frozen(tmp_path):
    words = ("algorithm=fedrod", "model.freeze=[head]", "federation.num_rounds=1")
    experiment, _ = steps_of(tmp_path, *words)
    own = experiment.store.get(0).memory.params["weight"]
    start = experiment.executor.worker.networks.build().last_layer.weight
    assert not torch.equal(own, start.detach().double())
