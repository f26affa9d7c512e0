"""FedPAC: rounds in plain torch and NumPy, FedRep without lambda and combined heads, what is sent, planted bugs."""

import json
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from float64_runs import steps_of
from harness import make_data, parties, sample_cohort
from linear_rounds import goes_on
from prototype_rounds import (
    B1,
    B2,
    DOUBLE,
    HIDDEN,
    LR,
    MOMENTUM,
    W1,
    W2,
    assert_own,
    assert_prototypes,
    hidden_of,
    initial,
    logits_of,
    means_of,
    own_examples,
    split_by_class,
    two_layers,
)
from torch.nn import functional

from fedfeat import tree
from fedfeat.algorithms import fedpac
from fedfeat.algorithms.alternating import AlternatingClient
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedpac import BodyAndHead, FedPACClient, FedPACServer, statistics_of
from fedfeat.algorithms.fedrep import FedRepClient
from fedfeat.errors import ConfigError
from fedfeat.executors.serial import SerialExecutor
from fedfeat.executors.stacked.vectorized import VectorizedExecutor
from fedfeat.features.prototypes import Prototypes, class_moments
from fedfeat.params import WeightedMean

HEAD_EPOCHS, BODY_EPOCHS, DECAY = 2, 3, 0.01
BODY, HEAD = (W1, B1), (W2, B2)
PARTS = ((0, 1), (1,), (0, 2), (2, 1))
"""Classes of the clients, of whom two are a cohort: a class may be in no client of a round, or of all before."""
ROUNDS = 6


def decaying(optimizer, kind=FedPACClient, **arguments):
    optimizer = partial(optimizer.func, **optimizer.keywords, weight_decay=DECAY)
    return kind(optimizer=optimizer, head_epochs=HEAD_EPOCHS, **arguments)


def federation_of(folder, *, lam=0.7, agg_head=True, head_lr=None, server=None, personal=("last",), **plan):
    arguments = {"num_rounds": ROUNDS, "local_epochs": HEAD_EPOCHS + BODY_EPOCHS, "cohort_size": 2, "lr": LR}
    arguments |= {"build_model": two_layers, "data": split_by_class(*PARTS), "momentum": MOMENTUM}
    client = partial(decaying, lam=lam, agg_head=agg_head, head_lr=head_lr, personal=list(personal))
    return parties(folder, client=client, server=server or FedPACServer(), **(arguments | plan))


def uncertainty(params, x, y):
    """V and H (C, d): of the mean of z onehot(y)^T, one number of which each example has for each class and feature."""
    z = hidden_of(params, x).detach().numpy()
    each = z[:, None, :] * np.eye(3)[y.numpy()][:, :, None]
    return each.var(0).sum() / len(z), each.mean(0)


def weight_of_own(one, other):
    """What the first of two clients gives its own head: the bottom of a parabola."""
    gap = ((one[1] - other[1]) ** 2).sum()
    return (other[0] + gap) / (one[0] + other[0] + gap)


def trained(params, x, y, *, lam, prototypes, head_lr, lr):
    """Steps on the head, then on the body with the pull, one example at a time."""
    params, velocity = dict(params), dict.fromkeys(params, 0.0)
    for epoch in range(HEAD_EPOCHS + BODY_EPOCHS):
        names = HEAD if epoch < HEAD_EPOCHS else BODY
        learned = {name: params[name].detach().requires_grad_() for name in names}
        full = params | learned
        loss = functional.cross_entropy(logits_of(full, x), y)
        for z, c in zip(hidden_of(full, x), y.tolist(), strict=True):
            if names == BODY and c in prototypes:
                loss = loss + lam * ((z - prototypes[c]) ** 2).sum() / HIDDEN / len(y)
        for name, slope in zip(names, torch.autograd.grad(loss, list(learned.values())), strict=True):
            velocity[name] = MOMENTUM * velocity[name] + slope + DECAY * params[name]
            params[name] = params[name] - (head_lr if names == HEAD else lr) * velocity[name]
    return params


def averaged(pairs):
    total = sum(n for n, _ in pairs)
    return sum(n * tensor for n, tensor in pairs) / total


def check(folder, *, lam=0.7, agg_head=True, keep_absent=True, head_lr=None, **plan):
    """Compare body, heads, prototypes and scores after every round; give how often own prototypes stood in."""
    server = FedPACServer(keep_absent)
    options = DOUBLE | {"lr_factor": lambda t, _: 1 / (1 + t)} | plan
    federation = federation_of(folder, lam=lam, agg_head=agg_head, head_lr=head_lr, server=server, **options)
    data, test = federation.data, federation.data.dataset.test
    body = {name: initial()[name] for name in BODY}
    heads = [{name: initial()[name] for name in HEAD} for _ in PARTS]
    prototypes, stood_in = {}, 0
    for step, record in federation.rounds():
        found, factor = {}, 1 / max(record.round_idx, 1)
        for k in record.cohort:
            x, y = own_examples(data, k)
            pulled_to = means_of(body, x, y) | prototypes if prototypes else {}
            stood_in += bool(prototypes) and not set(y.tolist()) <= set(prototypes)
            rates = {"head_lr": (head_lr or LR) * factor, "lr": LR * factor}
            own = trained(body | heads[k], x, y, lam=lam, prototypes=pulled_to, **rates)
            found[k] = own, uncertainty(body, x, y), means_of(own, x, y), y
        for k, (own, knows, *_) in found.items():
            heads[k] = {name: own[name] for name in HEAD}
            for j, (other, its, *_) in found.items():
                if agg_head and j != k:
                    share = weight_of_own(knows, its)
                    heads[k] = {name: share * own[name] + (1 - share) * other[name] for name in HEAD}
        if found:
            body = {name: averaged([(len(y), own[name]) for own, _, _, y in found.values()]) for name in BODY}
            new = {}
            for c in range(3):
                those = [(int((y == c).sum()), means[c]) for _, _, means, y in found.values() if c in means]
                if those:
                    new[c] = averaged(those)
            prototypes = prototypes | new if keep_absent else new
        for k in range(len(PARTS)):
            sent = server.broadcast(step.state, k)
            assert_prototypes(sent.prototypes, prototypes)
            for name in BODY:
                torch.testing.assert_close(sent.params[name], body[name], rtol=0, atol=1e-12)
            assert_own(record, k, logits_of(body | heads[k], test.inputs.double()), test.labels)
            if k in found and agg_head:
                for name in HEAD:
                    torch.testing.assert_close(sent.head[name], heads[k][name], rtol=0, atol=1e-12)
    return stood_in


@pytest.mark.parametrize("keep_absent", [True, False])
@pytest.mark.parametrize("agg_head", [True, False])
def test_rounds_of_some_of_unequal_clients_by_hand(agg_head, keep_absent, tmp_path):
    """Prototypes of their own stand in where those of a class are forgotten."""
    assert bool(check(tmp_path, agg_head=agg_head, keep_absent=keep_absent)) != keep_absent


def test_the_heads_epochs_have_a_rate_of_their_own(tmp_path):
    check(tmp_path, head_lr=0.8, lam=2.0)


@pytest.mark.parametrize("seed", range(3))
def test_the_variance_is_that_of_the_mean_of_features_by_class(seed):
    """H is the mean over the examples of z onehot(y)^T; V the sum of its numbers' variances, over their number."""
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(9, 4, dtype=torch.float64, generator=draw)
    y = torch.tensor([0, 2, 2, 0, 2, 2, 2, 0, 4])
    each = z[:, None, :] * functional.one_hot(y, 5)[:, :, None]
    found = statistics_of(class_moments(z, y, 5, "diagonal"))
    torch.testing.assert_close(found.variance, each.var(0, correction=0).sum() / 9)
    torch.testing.assert_close(found.means, each.mean(0)[[0, 2, 4]])
    # As in the paper: traces of second moments less the squares of what is known.
    traces = sum((y == c).sum() / 9 * z[y == c].square().sum(1).mean() for c in (0, 2, 4))
    torch.testing.assert_close(found.variance, (traces - found.means.square().sum()) / 9)


def rep(folder, **plan):
    """FedRep on the same clients."""
    arguments = {"num_rounds": ROUNDS, "local_epochs": 3, "lr": LR, "data": split_by_class(*PARTS)}
    client = partial(decaying, kind=FedRepClient, personal=["last"])
    return parties(folder, client=client, server=FedAvgServer(), **(arguments | plan))


PLAN = {"build_model": partial(two_layers, 0.3), "batch_size": 2, "local_epochs": 3, "momentum": 0.9}


def kept_by(federation):
    return {k: tree.sha256(federation.store.get(k).personal) for k in federation.store}


def test_without_pull_and_combined_heads_it_is_fedrep_bit_for_bit(tmp_path):
    found = federation_of(tmp_path / "a", lam=0.0, agg_head=False, **PLAN)
    steps, left = found.run()
    plain = rep(tmp_path / "b", cohort_size=2, **PLAN)
    others, right = plain.run()
    assert kept_by(found) == kept_by(plain)
    for mine, its in zip(steps, others, strict=True):
        assert tree.sha256(mine.state.params) == tree.sha256(its.state.params)
    for mine, its in zip(left, right, strict=True):
        for name in ("train/loss", "personal/acc_mean"):
            assert mine.metrics.get(name) == its.metrics.get(name)


@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_a_client_alone_in_its_rounds_keeps_its_head_bit_for_bit(lam, tmp_path):
    """Its weight is 1 whatever it knows; without lambda the other run takes no statistics before its fits."""
    runs = [
        federation_of(tmp_path / str(agg_head), lam=lam, agg_head=agg_head, cohort_size=1, **PLAN)
        for agg_head in (True, False)
    ]
    ends = [run.run()[0][-1].state for run in runs]
    assert kept_by(runs[0]) == kept_by(runs[1])
    assert tree.sha256(ends[0]._replace(heads={})) == tree.sha256(ends[1])
    for k, head in ends[0].heads.items():
        own = runs[0].store.get(k).personal
        assert all(torch.equal(head[name], own[name]) for name in HEAD)


def sent_by(federation):
    """Note the newest round's payloads, by client, while rounds run."""
    sent, aggregate = {}, federation.server.aggregate

    def noting(state, updates):
        sent.clear()
        return aggregate(state, (sent.update({u.client_id: u.payload}) or u for u in updates))

    federation.server.aggregate = noting
    return sent


def test_heads_of_clients_that_know_the_same_are_weighed_by_the_inverse_of_their_variances(tmp_path):
    """The plain mean, where they are copies of one another; here one of them pretends to know less exactly."""
    federation = federation_of(tmp_path, num_rounds=1, **DOUBLE)
    sent = sent_by(federation)
    state = federation.run()[0][0].state
    payload = next(iter(sent.values()))
    update = federation.executor.worker.fit(
        federation.plan.task(0, 0, 1, federation.server.broadcast(state, 0), None)
    )
    updates = []
    for k, factor in enumerate((1.0, 2.0, 5.0)):
        variance = factor * payload.statistics.variance
        head = {name: tensor + k for name, tensor in payload.head.items()}
        mine = payload._replace(head=head, statistics=payload.statistics._replace(variance=variance))
        updates.append(update._replace(client_id=k, payload=mine))
    heads = FedPACServer().aggregate(state, iter(updates)).heads
    shift = (0 / 1 + 1 / 2 + 2 / 5) / (1 + 1 / 2 + 1 / 5)
    for k in range(3):
        for name in HEAD:
            torch.testing.assert_close(heads[k][name], payload.head[name] + shift, rtol=0, atol=1e-12)


def test_the_first_round_has_no_pull(tmp_path):
    kept = []
    for name, lam in (("a", 1e6), ("b", 0.0)):
        federation = federation_of(tmp_path / name, lam=lam, num_rounds=1)
        federation.run()
        kept.append(kept_by(federation))
    assert kept[0] == kept[1]


@pytest.mark.parametrize("agg_head", [True, False])
def test_bodies_heads_prototypes_and_statistics_are_sent(agg_head, tmp_path):
    """Body 4 5 + 5 = 25 numbers, head 3 5 + 3 = 18, V is one, a class's prototype 5 and 8 bytes.

    Up also a count of 8 bytes and 5 numbers of H for each class of the client; without combined heads neither V nor H.
    """
    federation = federation_of(tmp_path, agg_head=agg_head)
    up, down, known, seen = 0, 0, set(), set()
    for _, record in federation.rounds():
        for k in record.cohort:
            down += 25 * 4 + len(known) * (8 + 5 * 4) + (18 * 4 if agg_head and k in seen else 0)
            up += 25 * 4 + len(PARTS[k]) * (16 + 5 * 4)
            up += (19 + 5 * len(PARTS[k])) * 4 if agg_head else 0
        seen |= set(record.cohort)
        known |= {c for k in record.cohort for c in PARTS[k]}
        assert (record.metrics["comm/up_bytes"], record.metrics["comm/down_bytes"]) == (up, down)
    for k in federation.store:
        assert set(federation.store.get(k).personal) == set(HEAD)
        assert federation.store.get(k).memory is None


@pytest.mark.parametrize(("lam", "agg_head", "passes"), [(0.0, False, 1), (1.0, False, 2), (0.0, True, 2)])
def test_passes_for_means_are_counted(lam, agg_head, passes, tmp_path):
    """Forward 2 (20 + 15) = 70; then 30 for a head's step, or 40 + 30 for a body's."""
    federation = federation_of(tmp_path, lam=lam, agg_head=agg_head, num_rounds=1, cohort_size=4)
    examples = int(federation.data.class_counts.sum())
    metrics = federation.run()[1][-1].metrics
    expected = HEAD_EPOCHS * 100 + BODY_EPOCHS * 140 + passes * 70
    assert metrics["compute/flops"] == examples * expected


def test_a_round_without_an_update_changes_nothing_and_states_are_values(tmp_path):
    federation = federation_of(tmp_path)
    state = federation.run()[0][-1].state
    before = tree.sha256(state)
    assert federation.server.aggregate(state, iter([])) is state
    payload = federation.server.broadcast(state, 0)
    update = federation.executor.worker.fit(federation.plan.task(0, 0, 1, payload, federation.store.get(0)))
    assert tree.sha256(federation.server.aggregate(state, iter([update]))) != before
    assert tree.sha256(state) == before


def test_those_outside_of_a_cohort_keep_what_was_combined_for_them(tmp_path):
    federation = federation_of(tmp_path)
    before = {}
    for step, record in federation.rounds():
        for k, head in before.items():
            same = all(torch.equal(step.state.heads[k][name], head[name]) for name in HEAD)
            assert same == (k not in record.cohort)
        before = step.state.heads
    assert set(before) == {k for t in range(ROUNDS) for k in sample_cohort(0, t, 4, 2)}
    newcomer = federation.server.newcomer_payload(step.state)
    assert newcomer.head == {}
    assert newcomer.params is step.state.params


@pytest.mark.filterwarnings("ignore:Total length of:UserWarning")
@pytest.mark.parametrize("executor", [SerialExecutor, VectorizedExecutor])
def test_a_client_without_examples_changes_nothing_for_the_others(executor, tmp_path):
    """It sends the body alone, which weighs nothing, and keeps its head."""
    ends, losses = [], []
    for sizes in ((3, 0, 8), (3, 8)):
        folder = tmp_path / str(len(sizes))
        plan = {"data": make_data(sizes), "cohort_size": len(sizes), "build_executor": executor, **DOUBLE}
        federation = federation_of(folder, **plan)
        sent = sent_by(federation)
        steps, records = federation.run()
        ends.append(steps[-1].state)
        losses.append([row.personal_loss for row in records[-1].clients])
        if len(sizes) == 3:
            assert (sent[1].head, sent[1].statistics, len(sent[1].counts)) == ({}, None, 0)
            kept = federation.store.get(1).personal
            assert all(torch.equal(kept[name], initial()[name]) for name in HEAD)
    (found, expected), (own, others) = ends, losses
    assert set(found.heads) == {0, 2}
    for mine, its in zip(
        tree.tensors([found.params, found.prototypes, found.known, found.heads[0], found.heads[2]]),
        tree.tensors(
            [expected.params, expected.prototypes, expected.known, expected.heads[0], expected.heads[1]]
        ),
        strict=True,
    ):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-12)
    assert np.isfinite(own).all()
    assert [own[0], own[2]] == pytest.approx(others, abs=1e-12)


@pytest.mark.filterwarnings("ignore:Total length of:UserWarning")
def test_a_round_of_clients_without_examples_changes_nothing(tmp_path):
    federation = federation_of(tmp_path, data=make_data((0, 8)), cohort_size=1, num_rounds=4)
    steps, records = federation.run()
    assert {record.cohort for record in records[1:]} == {(0,), (1,)}
    for (before, after), record in zip(pairwise(steps), records[1:], strict=True):
        assert (tree.sha256(after.state) == tree.sha256(before.state)) == (record.cohort == (0,))


def test_what_was_received_before_is_forgotten(tmp_path):
    module = federation_of(tmp_path).executor.worker.module
    body = {name: two_layers().state_dict()[name] for name in BODY}
    for classes, value in (((0, 2), 1.0), ((1,), 2.0)):
        means = torch.full((len(classes), HIDDEN), value)
        module.receive(BodyAndHead(body, {}, Prototypes(torch.tensor(classes), means)), None)
    assert module.known.tolist() == [False, True, False]
    assert module.prototypes.sum(1).tolist() == [0, 2 * HIDDEN, 0]


@pytest.mark.parametrize("agg_head", [True, False])
def test_a_run_goes_on_from_its_middle(agg_head, tmp_path):
    build = partial(federation_of, agg_head=agg_head)
    assert goes_on(build, tmp_path / "cut", tmp_path / "whole", at=3)


def test_heads_by_client_survive_a_file(tmp_path):
    state = federation_of(tmp_path).run()[0][-1].state
    skeleton, named = tree.flatten(state)
    again = tree.unflatten(json.loads(json.dumps(skeleton)), named)
    assert tree.sha256(again) == tree.sha256(state)
    assert set(again.heads) == set(state.heads)
    server = FedPACServer()
    k = max(state.heads)
    assert tree.sha256(server.broadcast(again, k)) == tree.sha256(server.broadcast(state, k))


def test_stacked_clients_have_statistics_of_their_own(tmp_path):
    plan = {"cohort_size": 3, "num_rounds": 3, "precision": "64-true"}
    found, expected = (
        tree.tensors(federation_of(tmp_path / kind.__name__, build_executor=kind, **plan).run()[0][-1].state)
        for kind in (VectorizedExecutor, SerialExecutor)
    )
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-10)


@pytest.mark.parametrize("personal", [[], ["all"], ["body"]])
def test_other_personal_parts_are_refused(personal, tmp_path):
    with pytest.raises(
        ConfigError, match=r"personal must be \[last\] for FedPAC, whose heads are last layers"
    ):
        federation_of(tmp_path, personal=personal)


def test_grouped_networks_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="structure must be none where clients send prototypes"):
        steps_of(tmp_path, "algorithm=fedpac", "structure=grouped")


WEIGHTS, STATISTICS, PULL, ALL = (
    fedpac.combining_weights, fedpac.statistics_of, fedpac.pull, fedpac.over_all_classes,
)  # fmt: skip
RECEIVE, BEGIN, UPLOAD, ADD = (
    FedPACClient.receive, FedPACClient.begin_turn, FedPACClient.upload, WeightedMean.add,
)  # fmt: skip


def inexact(moments):
    """The variance of one example in place of that of a mean."""
    found = STATISTICS(moments)
    return found._replace(variance=found.variance * moments.counts.sum())


def later(self, turn, tensors):
    """Statistics of the trained body."""
    if self.passes_before:
        found = statistics_of(self.own_moments(turn, self.network, "diagonal"))
        self.variance.copy_(found.variance)
        self.class_shares[torch.from_numpy(turn.class_counts) > 0] = found.means.to(self.class_shares)
    return UPLOAD(self, turn, tensors)


def without_own(self, turn):
    known = self.known.clone()
    BEGIN(self, turn)
    self.known.copy_(known)


def own_head(self, payload, memory):
    RECEIVE(self, payload._replace(head={}), memory)


BUGS = {
    "weights of the others' programs": (fedpac, "combining_weights", lambda v, h: WEIGHTS(v, h)[::-1]),
    "no variance": (fedpac, "combining_weights", lambda v, h: WEIGHTS(0.01 * v, h)),
    "no bias": (fedpac, "combining_weights", lambda v, h: WEIGHTS(v, 0 * h)),
    "statistics after the fit": (FedPACClient, "upload", later),
    "variance not over n": (fedpac, "statistics_of", inexact),
    "means without class shares": (
        fedpac, "statistics_of", lambda m: STATISTICS(m)._replace(means=m.means[m.counts > 0])
    ),
    "combined heads do not arrive": (FedPACClient, "receive", own_head),
    "pushed away": (fedpac, "pull", lambda *arguments: -PULL(*arguments)),
    "own prototypes do not stand in": (FedPACClient, "begin_turn", without_own),
    "prototypes without weights": (
        fedpac, "over_all_classes", lambda classes, means, counts, n: ALL(classes, means, counts.clamp(max=1), n)
    ),
    "body's mean without weights": (
        WeightedMean, "add", lambda self, params, n: ADD(self, params, 1 if isinstance(n, int) else n)
    ),
    "head and body together": (AlternatingClient, "on_train_epoch_start", lambda self: self._train_everything()),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises(AssertionError):
        check(tmp_path, keep_absent=False)
