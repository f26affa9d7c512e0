"""FD: rounds in plain torch, `local` at lambda = 0 and for a client alone, what is sent, and planted bugs."""

from functools import partial
from itertools import product

import pytest
import torch
from float64_runs import assert_stacks, steps_of
from harness import make_data, network_of, parties
from linear_rounds import goes_on
from prototype_rounds import (
    DOUBLE,
    LR,
    MOMENTUM,
    NAMES,
    assert_own,
    assert_prototypes,
    initial,
    logits_of,
    own_examples,
    split_by_class,
    two_layers,
)
from torch import nn
from torch.nn import functional

from fedfeat import tree
from fedfeat.algorithms import fd, prototype_clients
from fedfeat.algorithms.fd import ClassOutputs, FDClient, FDServer, divergence
from fedfeat.client import ClientModule
from fedfeat.errors import ConfigError

STEPS = 3
PARTS = ((0, 1), (1,), (0, 2), (2, 1))
"""Classes of the clients, of whom two are a cohort."""


def federation_of(folder, *, lam=0.7, outputs="probabilities", server=None, **plan):
    arguments = {"num_rounds": 6, "local_epochs": STEPS, "cohort_size": 2, "lr": LR, "momentum": MOMENTUM}
    arguments |= {"build_model": two_layers, "data": split_by_class(*PARTS)}
    client = partial(FDClient, lam=lam, outputs=outputs, personal=["all"])
    return parties(folder, client=client, server=server or FDServer(), **(arguments | plan))


def output_of(params, x, outputs):
    """What is averaged, of examples (n, 4)."""
    logits = logits_of(params, x)
    return logits if outputs == "logits" else logits.exp() / logits.exp().sum(1, keepdim=True)


def distance(logits, target, outputs):
    """Of one example's logits from a target."""
    if outputs == "logits":
        return ((logits - target) ** 2).sum() / len(logits)
    return (target * (target.log() - logits + logits.exp().sum().log())).sum()


def trained(params, x, y, *, lam, targets, outputs):
    """Steps on cross-entropy and distillation, one example at a time."""
    params, velocity = dict(params), dict.fromkeys(params, 0.0)
    for _ in range(STEPS):
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
        logits = logits_of(leaves, x)
        loss = functional.cross_entropy(logits, y)
        for row, c in zip(logits, y.tolist(), strict=True):
            if c in targets:
                loss = loss + lam / len(y) * distance(row, targets[c], outputs)
        slopes = torch.autograd.grad(loss, list(leaves.values()))
        for name, slope in zip(leaves, slopes, strict=True):
            velocity[name] = MOMENTUM * velocity[name] + slope
            params[name] = params[name] - LR * velocity[name]
    return params


def received(table, k, leave_one_out):
    """What client k is sent, by class."""
    found = {}
    for c in range(3):
        those = [own[c] for j, own in table.items() if c in own and not (leave_one_out and j == k)]
        if those:
            found[c] = torch.stack(those).mean(0)
    return found


def check(folder, *, lam=0.7, outputs="probabilities", leave_one_out=True, keep_absent=True, **plan):
    """Compare models, what everyone would receive, and scores after every round."""
    server = FDServer(leave_one_out, keep_absent)
    federation = federation_of(folder, lam=lam, outputs=outputs, server=server, **(DOUBLE | plan))
    test, own, table = federation.data.dataset.test, [initial() for _ in PARTS], {}
    for step, record in federation.rounds():
        found = {}
        for k in record.cohort:
            x, y = own_examples(federation.data, k)
            targets = received(table, k, leave_one_out)
            own[k] = trained(own[k], x, y, lam=lam, targets=targets, outputs=outputs)
            values = output_of(own[k], x, outputs)
            found[k] = {c: values[y == c].mean(0) for c in y.unique().tolist()}
            for name in NAMES:
                kept = federation.store.get(k).personal[name]
                torch.testing.assert_close(kept, own[k][name], rtol=0, atol=1e-12)
        if record.cohort:
            table = table | found if keep_absent else found
        for k in range(len(PARTS)):
            assert_prototypes(server.broadcast(step.state, k), received(table, k, leave_one_out))
            assert_own(record, k, logits_of(own[k], test.inputs.double()), test.labels)


@pytest.mark.parametrize(
    ("outputs", "leave_one_out", "keep_absent"),
    list(product(["probabilities", "logits"], [True, False], [True, False])),
)
def test_rounds_of_some_of_unequal_clients_by_hand(outputs, leave_one_out, keep_absent, tmp_path):
    check(tmp_path, outputs=outputs, leave_one_out=leave_one_out, keep_absent=keep_absent)


def test_the_divergence_draws_probabilities_to_the_target_as_cross_entropy_does():
    """By p - G over the batch, 0 in p = G; it is the paper's cross-entropy less the entropy of G."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, dtype=torch.float64, generator=draw, requires_grad=True)
    targets = torch.randn(3, 3, dtype=torch.float64, generator=draw).softmax(1)
    labels, known = torch.tensor([2, 0, 1, 2]), torch.tensor([True, False, True])
    found = divergence(logits, labels, targets, known)
    (slope,) = torch.autograd.grad(found, logits)
    there = known[labels].double().unsqueeze(1)
    expected = (logits.softmax(1) - targets[labels]) * there / 4
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-15)
    rows = functional.cross_entropy(logits, targets[labels], reduction="none")
    entropy = -(targets * targets.log()).sum(1)[labels]
    torch.testing.assert_close(found, ((rows - entropy) * there[:, 0]).mean())
    there = targets[labels].log()
    assert divergence(there, labels, targets, known.fill_(True)).abs() < 1e-15


def test_padding_and_vanished_probabilities_add_nothing():
    """A mean in which a probability is 0 in float32 is a target like any other."""
    targets = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0, 0, 1]])
    logits = torch.tensor([[0.3, 0.1, 0.2], [9.0, 9.0, 9.0]], requires_grad=True)
    known = torch.ones(3, dtype=torch.bool)
    found = divergence(logits, torch.tensor([1, -100]), targets, known)
    assert found.item() == pytest.approx(divergence(logits[:1], torch.tensor([1]), targets, known).item())
    (slope,) = torch.autograd.grad(found, logits)
    assert slope.isfinite().all()
    assert not slope[1].any()


def local(folder, **plan):
    return parties(folder, client=partial(ClientModule, personal=["all"]), **plan)


PLAN = {
    "build_model": partial(two_layers, 0.3),
    "batch_size": 2,
    "local_epochs": 2,
    "cohort_size": 2,
    "momentum": 0.9,
    "num_rounds": 4,
}


@pytest.mark.parametrize(
    ("parts", "lam", "outputs"),
    [
        (PARTS, 0.0, "probabilities"),
        (PARTS, 0.0, "logits"),
        (((0,), (1,), (2,)), 9.0, "probabilities"),
        (((0, 1, 2),), 9.0, "logits"),
    ],
)
def test_without_weight_or_anyone_of_the_same_class_it_is_local_training_bit_for_bit(
    parts, lam, outputs, tmp_path
):
    plan = PLAN | {"data": split_by_class(*parts), "cohort_size": min(2, len(parts))}
    found = federation_of(tmp_path / "a", lam=lam, outputs=outputs, **plan)
    left = found.run()[1]
    plain = local(tmp_path / "b", lr=LR, **plan)
    right = plain.run()[1]
    for k in plain.store:
        assert tree.sha256(found.store.get(k).personal) == tree.sha256(plain.store.get(k).personal)
    for mine, its in zip(left, right, strict=True):
        for name in ("train/loss", "personal/acc_mean"):
            assert mine.metrics.get(name) == its.metrics.get(name)


def test_the_first_round_has_no_term(tmp_path):
    kept = []
    for name, lam in (("a", 1e6), ("b", 0.0)):
        federation = federation_of(tmp_path / name, lam=lam, num_rounds=1)
        federation.run()
        kept.append([tree.sha256(federation.store.get(k)) for k in federation.store])
    assert kept[0] == kept[1]


def sent_by(federation):
    """Note the clients' newest payloads while rounds run."""
    sent, aggregate = {}, federation.server.aggregate
    federation.server.aggregate = lambda state, updates: aggregate(
        state, (sent.update({u.client_id: u.payload}) or u for u in updates)
    )
    return sent


def test_of_two_clients_each_receives_what_the_other_sent(tmp_path):
    """Bit for bit in float32; of the class that only the first has, nothing."""
    federation = federation_of(tmp_path, data=split_by_class((0, 1), (1,)), num_rounds=2)
    sent = sent_by(federation)
    for step, record in federation.rounds():
        if record.cohort:
            first, second = (federation.server.broadcast(step.state, k) for k in range(2))
            assert (first.classes.tolist(), second.classes.tolist()) == ([1], [0, 1])
            assert torch.equal(first.means, sent[1].means)
            assert torch.equal(second.means, sent[0].means)


def normed():
    torch.manual_seed(3)
    return network_of(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, 3))


@pytest.mark.parametrize("outputs", ["probabilities", "logits"])
def test_outputs_are_those_of_the_trained_model_in_eval_mode_over_all_examples(outputs, tmp_path):
    plan = {"build_model": normed, "batch_size": 3, "num_rounds": 2, "data": make_data((7, 10)), **DOUBLE}
    federation = federation_of(tmp_path, outputs=outputs, **plan)
    sent = sent_by(federation)
    federation.run()
    for k in range(2):
        model = normed().double().eval()
        model.load_state_dict(federation.store.get(k).personal)
        x, y = own_examples(federation.data, k)
        with torch.no_grad():
            values = model(x) if outputs == "logits" else model(x).softmax(1)
        assert_prototypes(sent[k], {c: values[y == c].mean(0) for c in y.unique().tolist()})


def test_messages_hold_vectors_of_the_classes_and_no_weights(tmp_path):
    """m classes of 3 numbers of 4 bytes and the class's 8."""
    up, down, seen = 0, 0, set()
    federation = federation_of(tmp_path)
    for _, record in federation.rounds():
        for k in record.cohort:
            up += len(PARTS[k]) * (8 + 3 * 4)
            down += len({c for j in seen - {k} for c in PARTS[j]}) * (8 + 3 * 4)
        seen |= set(record.cohort)
        assert (record.metrics["comm/up_bytes"], record.metrics["comm/down_bytes"]) == (up, down)
    assert federation.executor.worker.module.shared_keys == ()
    for k in federation.store:
        assert federation.store.get(k).memory is None
        assert set(federation.store.get(k).personal) == set(NAMES)


def test_the_pass_for_the_means_is_counted(tmp_path):
    federation = federation_of(tmp_path, num_rounds=1, cohort_size=4)
    examples = int(federation.data.class_counts.sum())
    metrics = federation.run()[1][-1].metrics
    module = federation.executor.worker.module
    expected = STEPS * module.flops_per_example + module.forward_flops_per_example
    assert metrics["compute/flops"] == examples * expected


def test_a_round_without_an_update_changes_nothing_and_states_are_values(tmp_path):
    federation = federation_of(tmp_path)
    state = federation.run()[0][-1].state
    before = tree.sha256(state)
    assert federation.server.aggregate(state, iter([])) is state
    payload = ClassOutputs(torch.tensor([1]), torch.ones(1, 3))
    update = next(iter(federation.executor.map("fit", [federation.plan.task(0, 0, 1, payload, None)])))
    for server in (federation.server, FDServer(keep_absent=False)):
        assert tree.sha256(server.aggregate(state, iter([update]))) != before
    assert tree.sha256(state) == before


def test_what_was_received_before_is_forgotten(tmp_path):
    """Clients take turns in one module: another's targets are not theirs."""
    module = federation_of(tmp_path).executor.worker.module
    module.receive(ClassOutputs(torch.tensor([0, 2]), torch.ones(2, 3)), None)
    module.receive(ClassOutputs(torch.tensor([1]), 2 * torch.ones(1, 3)), None)
    assert module.known.tolist() == [False, True, False]
    assert module.targets.sum(1).tolist() == [0, 6, 0]


def test_a_newcomer_receives_the_mean_of_all(tmp_path):
    federation = federation_of(tmp_path, cohort_size=4, num_rounds=1, **DOUBLE)
    sent = sent_by(federation)
    state = federation.run()[0][-1].state
    table = {
        k: dict(zip(payload.classes.tolist(), payload.means, strict=True)) for k, payload in sent.items()
    }
    assert_prototypes(federation.server.newcomer_payload(state), received(table, None, leave_one_out=True))


def test_a_run_goes_on_from_its_middle(tmp_path):
    assert goes_on(federation_of, tmp_path / "cut", tmp_path / "whole")


STACKED = {
    "probabilities": ("scenario=stragglers", "partition=quantity_skew"),
    "logits": ("federation.cohort_size=2", "federation.num_rounds=4", "algorithm.client.outputs=logits"),
}


@pytest.mark.parametrize("name", STACKED)
def test_whole_runs_of_stacked_clients_are_those_of_serial(name, tmp_path):
    assert_stacks(tmp_path, "algorithm=fd", "federation.local_epochs=2", *STACKED[name])


POOL = (
    "pool=hetero_cnn", "pool.names=[deep,wide,deep,wide]",
    "+pool.models.deep={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[8,6]}",
    "+pool.models.wide={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[16]}",
)  # fmt: skip


@pytest.mark.parametrize("executor", ["serial", "vectorized"])
def test_networks_of_unequal_depth_and_width_share_their_outputs(executor, tmp_path):
    experiment, steps = steps_of(tmp_path, "algorithm=fd", *POOL, f"executor={executor}")
    state = steps[-1][0].state
    assert torch.equal(state.known, torch.from_numpy(experiment.data.class_counts > 0))
    for k in range(4):
        own = experiment.store.get(k).personal
        assert ("head.fc3.linear.weight" in own) == (k % 2 == 0)
        network = experiment.executor.worker.networks.build("wide" if k % 2 else "deep").double()
        network.load_state_dict(own)
        x, y = (torch.cat(parts) for parts in zip(*experiment.data.labelled_batches(k, 50), strict=True))
        p = network(x).softmax(1).detach()
        for c in y.unique().tolist():
            torch.testing.assert_close(state.outputs[k, c], p[y == c].mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("structure", ["grouped", "trimmed"])
def test_grouped_networks_are_refused(structure, tmp_path):
    with pytest.raises(ConfigError, match=r"structure must be none for FD, .* it is 'grouped'\."):
        steps_of(tmp_path, "algorithm=fd", f"structure={structure}")


def test_a_part_that_is_not_personal_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"personal must be \[all\] where clients send no weights"):
        parties(tmp_path, client=partial(FDClient, personal=["last"]), build_model=two_layers)


KL, MEANS, RECEIVE, BROADCAST = (
    fd.divergence,
    prototype_clients.class_moments,
    FDClient.receive,
    FDServer.broadcast,
)


def forgetful(self, payload, memory):
    RECEIVE(self, payload, memory)
    self.take_personal({})


def one_too_many(self, state, client_id):
    found = BROADCAST(self, state, client_id)
    return found._replace(means=found.means * (1 - 1 / (1 + state.known.sum(0)[found.classes].unsqueeze(1))))


BUGS = {
    "pushed away": (fd, "divergence", lambda *arguments: -KL(*arguments)),
    "unknown targets draw": (fd, "divergence", lambda z, y, g, known: KL(z, y, g + 0.1, torch.ones_like(known))),
    "another class's target": (fd, "divergence", lambda z, y, g, known: KL(z, (y + 1) % 3, g, known)),
    "logits where probabilities are due": (fd, "divergence", lambda z, *rest: KL(z.softmax(1), *rest)),
    "own outputs among the others'": (
        FDServer, "broadcast", lambda self, state, k: BROADCAST(FDServer(leave_one_out=False), state, k)
    ),
    "another number of clients": (FDServer, "broadcast", one_too_many),
    "model forgotten": (FDClient, "receive", forgetful),
    "old targets": (FDClient, "receive", lambda self, payload, memory: None),
    "classes mixed up": (prototype_clients, "class_moments", lambda p, y, n: MEANS(p.flip(1), y, n)),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises(AssertionError):
        check(tmp_path)
