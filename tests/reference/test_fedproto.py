"""FedProto: rounds in plain torch, `local` at lambda = 0, what is sent, and planted bugs."""

from functools import partial

import pytest
import torch
from float64_runs import assert_stacks, steps_of
from harness import make_data, network_of, parties
from linear_rounds import goes_on
from prototype_rounds import (
    DOUBLE,
    HIDDEN,
    LR,
    MOMENTUM,
    NAMES,
    assert_own,
    assert_prototypes,
    initial,
    logits_of,
    means_of,
    nearest,
    own_examples,
    split_by_class,
    trained,
    two_layers,
)
from torch import nn

from fedfeat import tree
from fedfeat.algorithms import prototype_clients, prototype_servers
from fedfeat.algorithms.fedproto import CountedPrototypes, FedProtoClient, FedProtoServer
from fedfeat.client import ClientModule
from fedfeat.errors import ConfigError, UserError
from fedfeat.features.prototypes import Moments

STEPS = 3
PARTS = ((0, 1), (1,), (0, 2), (2, 1))
"""Classes of the clients, of whom two are a cohort: some share a class, in which they weigh unequally."""


def federation_of(folder, *, lam=0.7, predict_by="prototype", server=None, **plan):
    arguments = {"num_rounds": 5, "local_epochs": STEPS, "cohort_size": 2, "lr": LR, "momentum": MOMENTUM}
    arguments |= {"build_model": two_layers, "data": split_by_class(*PARTS)}
    client = partial(FedProtoClient, lam=lam, predict_by=predict_by, personal=["all"])
    return parties(folder, client=client, server=server or FedProtoServer(), **(arguments | plan))


def check(folder, *, lam=0.7, predict_by="prototype", weighting="samples", keep_absent=True, **plan):
    """Compare models, prototypes and scores after every round; give how often a class was in no cohort."""
    server = FedProtoServer(weighting, keep_absent)
    federation = federation_of(folder, lam=lam, predict_by=predict_by, server=server, **(DOUBLE | plan))
    test, own = federation.data.dataset.test, [initial() for _ in PARTS]
    prototypes, absent = {}, 0
    for step, record in federation.rounds():
        found = {}
        for k in record.cohort:
            x, y = own_examples(federation.data, k)
            own[k] = trained(own[k], x, y, STEPS, lam=lam, prototypes=prototypes)
            found[k] = means_of(own[k], x, y), {c: int((y == c).sum()) for c in range(3)}
            for name in NAMES:
                kept = federation.store.get(k).personal[name]
                torch.testing.assert_close(kept, own[k][name], rtol=0, atol=1e-12)
        new = {}
        for c in range(3):
            those = [
                (n[c] if weighting == "samples" else 1, means[c]) for means, n in found.values() if c in means
            ]
            if those:
                new[c] = sum(n * mean for n, mean in those) / sum(n for n, _ in those)
        if record.cohort:
            absent += len(set(prototypes) - set(new))
            prototypes = prototypes | new if keep_absent else new
        assert_prototypes(server.broadcast(step.state, 0), prototypes)
        for k in range(len(PARTS)):
            by_head = predict_by == "head" or not prototypes
            x = test.inputs.double()
            logits = logits_of(own[k], x) if by_head else nearest(own[k], x, prototypes)
            assert_own(record, k, logits, test.labels)
    return absent


@pytest.mark.parametrize("keep_absent", [True, False])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_rounds_of_some_of_unequal_clients_by_hand(weighting, keep_absent, tmp_path):
    assert check(tmp_path, weighting=weighting, keep_absent=keep_absent)


def test_own_heads_predict_where_they_are_asked_to(tmp_path):
    check(tmp_path, predict_by="head", lam=2.0)


def local(folder, **plan):
    return parties(folder, client=partial(ClientModule, personal=["all"]), **plan)


PLAN = {
    "build_model": partial(two_layers, 0.3),
    "batch_size": 2,
    "local_epochs": 2,
    "cohort_size": 2,
    "momentum": 0.9,
}


def test_without_a_weight_it_is_local_training_bit_for_bit(tmp_path):
    found = federation_of(tmp_path / "a", lam=0.0, predict_by="head", **(PLAN | {"num_rounds": 4}))
    left = found.run()[1]
    plain = local(tmp_path / "b", data=split_by_class(*PARTS), lr=LR, num_rounds=4, **PLAN)
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


def test_of_clients_with_disjoint_classes_each_prototype_is_one_clients(tmp_path):
    """Bit for bit; nobody has class 1, whose examples would have nothing to be pulled to."""
    server, sent = FedProtoServer(), {}
    federation = federation_of(
        tmp_path, server=server, data=split_by_class((0,), (2,)), num_rounds=2, cohort_size=2
    )
    aggregate = server.aggregate
    server.aggregate = lambda state, updates: aggregate(
        state, (sent.update({u.client_id: u.payload}) or u for u in updates)
    )
    for step, _ in federation.rounds():
        got = server.broadcast(step.state, 0)
        assert got.classes.tolist() == [c for k, c in ((0, 0), (1, 2)) if k in sent]
        for row, k in enumerate(sent):
            assert torch.equal(got.means[row], sent[k].means[0])


def normed():
    torch.manual_seed(3)
    return network_of(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, 3))


def test_prototypes_are_those_of_the_trained_model_in_eval_mode_over_all_examples(tmp_path):
    """Batches of 3 leave a single example out of the last fit's epoch, and the model has dropout and statistics."""
    data = make_data((7, 10))
    server, sent = FedProtoServer(), {}
    federation = federation_of(
        tmp_path, server=server, data=data, build_model=normed, batch_size=3, num_rounds=2, **DOUBLE
    )
    aggregate = server.aggregate
    server.aggregate = lambda state, updates: aggregate(
        state, (sent.update({u.client_id: u.payload}) or u for u in updates)
    )
    federation.run()
    for k in range(2):
        model = normed().double().eval()
        model.load_state_dict(federation.store.get(k).personal)
        x, y = own_examples(data, k)
        with torch.no_grad():
            z = model.head.all[:3](x)
        assert_prototypes(sent[k], {c: z[y == c].mean(0) for c in y.unique().tolist()})
        assert sent[k].counts.tolist() == [int((y == c).sum()) for c in sent[k].classes]


def test_messages_hold_prototypes_and_no_weights(tmp_path):
    """m classes of 5 numbers of 4 bytes and the class's 8; upwards 8 more for the count."""
    up, down, known = 0, 0, set()
    federation = federation_of(tmp_path)
    for _, record in federation.rounds():
        down += len(record.cohort) * len(known) * (8 + HIDDEN * 4)
        up += sum(len(PARTS[k]) * (16 + HIDDEN * 4) for k in record.cohort)
        known |= {c for k in record.cohort for c in PARTS[k]}
        assert (record.metrics["comm/up_bytes"], record.metrics["comm/down_bytes"]) == (up, down)
    assert federation.executor.worker.module.shared_keys == ()
    for k in federation.store:
        assert federation.store.get(k).memory is None
        assert set(federation.store.get(k).personal) == set(NAMES)


def test_the_pass_for_the_means_is_counted(tmp_path):
    """Forward 2 (20 + 15) = 70, a step 3 times that less 40 for inputs; everyone's 3 steps and one pass."""
    federation = federation_of(tmp_path, num_rounds=1, cohort_size=4)
    examples = int(federation.data.class_counts.sum())
    metrics = federation.run()[1][-1].metrics
    module = federation.executor.worker.module
    per_step, per_pass = module.flops_per_example, module.forward_flops_per_example
    assert per_pass == 70
    assert metrics["compute/flops"] == examples * (STEPS * per_step + per_pass)


def test_a_round_without_an_update_changes_nothing_and_states_are_values(tmp_path):
    federation = federation_of(tmp_path)
    steps = federation.run()[0]
    before = tree.sha256(steps[-1].state)
    assert federation.server.aggregate(steps[-1].state, iter([])) is steps[-1].state
    payload = CountedPrototypes(torch.tensor([1]), torch.ones(1, HIDDEN), torch.tensor([4]))
    update = next(iter(federation.executor.map("fit", [federation.plan.task(0, 0, 1, payload, None)])))
    federation.server.aggregate(steps[-1].state, iter([update]))
    assert tree.sha256(steps[-1].state) == before


def test_what_was_received_before_is_forgotten(tmp_path):
    """Clients take turns in one module: another's prototypes are not theirs."""
    module = federation_of(tmp_path).executor.worker.module
    module.receive(CountedPrototypes(torch.tensor([0, 2]), torch.ones(2, HIDDEN)), None)
    module.receive(CountedPrototypes(torch.tensor([1]), 2 * torch.ones(1, HIDDEN)), None)
    assert module.known.tolist() == [False, True, False]
    assert module.prototypes.sum(1).tolist() == [0, 2 * HIDDEN, 0]


def test_a_run_goes_on_from_its_middle_with_its_models(tmp_path):
    assert goes_on(federation_of, tmp_path / "cut", tmp_path / "whole")


STACKED = {
    "stragglers": ("scenario=stragglers", "partition=quantity_skew"),
    "few": ("federation.cohort_size=2", "federation.num_rounds=4", "algorithm.client.lam=5"),
    "its own heads": ("algorithm.client.predict_by=head", "federation.evaluate_local=true"),
}


@pytest.mark.parametrize("name", STACKED)
def test_whole_runs_of_stacked_clients_are_those_of_serial(name, tmp_path):
    options = ("algorithm=fedproto", "federation.local_epochs=2", *STACKED[name])
    assert_stacks(tmp_path, *options)


def test_a_part_that_is_not_personal_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"personal must be \[all\] where clients send no weights"):
        parties(tmp_path, client=partial(FedProtoClient, personal=["last"]), build_model=two_layers)


POOL = (
    "pool=hetero_cnn", "pool.names=[deep,wide,deep,wide]",
    "+pool.models.deep={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[8,6]}",
    "+pool.models.wide={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[6]}",
)  # fmt: skip


@pytest.mark.parametrize("executor", ["serial", "vectorized"])
def test_networks_of_unequal_depth_share_prototypes(executor, tmp_path):
    """6 numbers each, whatever the server's own network would read."""
    experiment, steps = steps_of(tmp_path, "algorithm=fedproto", *POOL, f"executor={executor}")
    state = steps[-1][0].state
    assert state.prototypes.shape == (10, 6)
    assert state.known.all()
    counts = experiment.data.class_counts
    total = torch.zeros(10, 6, dtype=torch.float64)
    for k in range(4):
        own = experiment.store.get(k).personal
        assert ("head.fc3.linear.weight" in own) == (k % 2 == 0)
        network = experiment.executor.worker.networks.build("wide" if k % 2 else "deep").double()
        network.load_state_dict(own)
        x, y = (torch.cat(parts) for parts in zip(*experiment.data.labelled_batches(k, 50), strict=True))
        total.index_add_(0, y, network.representation(x).detach())
    expected = total / torch.from_numpy(counts.sum(0))[:, None]
    torch.testing.assert_close(state.prototypes, expected, rtol=0, atol=1e-12)


def test_networks_whose_last_layers_read_unequal_numbers_are_refused(tmp_path):
    options = [*POOL[:-1], POOL[-1].replace("[6]", "[16]")]
    with pytest.raises(
        UserError,
        match=r"algorithm=fedproto needs networks .* of client 0 reads 6 and that of client 1 reads 16\.",
    ):
        steps_of(tmp_path, "algorithm=fedproto", *options)


PULL, MEANS, RECEIVE = prototype_clients.pull, prototype_clients.class_moments, FedProtoClient.receive
POOLED = prototype_servers.pooled


def forgetful(self, payload, memory):
    RECEIVE(self, payload, memory)
    self.take_personal({})


def unweighted(parts):
    return POOLED(Moments(part.counts.clamp(max=1), part.means) for part in parts)


BUGS = {
    "pushed away": (prototype_clients, "pull", lambda *arguments: -PULL(*arguments)),
    "not over d": (prototype_clients, "pull", lambda z, *more: z.shape[1] * PULL(z, *more)),
    "unknown prototypes pull": (
        prototype_clients, "pull", lambda z, y, p, known: PULL(z, y, p, torch.ones_like(known))
    ),
    "mean without weights": (prototype_servers, "pooled", unweighted),
    "model forgotten": (FedProtoClient, "receive", forgetful),
    "old prototypes": (FedProtoClient, "receive", lambda self, payload, memory: None),
    "logits in place of representations": (
        prototype_clients, "class_moments", lambda z, y, n: MEANS(z.flip(1), y, n)
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises(AssertionError):
        check(tmp_path)
