"""FedTGP: rounds in plain torch, both readings of the margin, prototypes before or after training, planted bugs."""

from functools import partial

import pytest
import torch
from float64_runs import assert_stacks, steps_of
from harness import parties
from linear_rounds import goes_on
from prototype_rounds import (
    DOUBLE,
    HIDDEN,
    LR,
    MOMENTUM,
    NAMES,
    assert_own,
    initial,
    logits_of,
    means_of,
    nearest,
    own_examples,
    split_by_class,
    trained,
    two_layers,
)

from fedfeat import tree
from fedfeat.algorithms import fedtgp, prototype_clients
from fedfeat.algorithms.fedtgp import FedTGPClient, FedTGPServer, contrast, margin_of
from fedfeat.client import ClientModule
from fedfeat.features.prototypes import Prototypes
from fedfeat.seeding import derive_seed
from fedfeat.types import Update

STEPS = 3
PARTS = ((0, 1), (1,), (0, 2), (2, 1))
SERVER = {"epochs": 4, "lr": 0.3, "batch_size": 3, "tau": 0.5}


def federation_of(folder, *, lam=0.7, proto_from="after", predict_by="prototype", server=None, **plan):
    arguments = {"num_rounds": 4, "local_epochs": STEPS, "cohort_size": 3, "lr": LR, "momentum": MOMENTUM}
    arguments |= {"build_model": two_layers, "data": split_by_class(*PARTS)}
    client = partial(FedTGPClient, lam=lam, proto_from=proto_from, predict_by=predict_by, personal=["all"])
    return parties(folder, client=client, server=server or FedTGPServer(**SERVER), **(arguments | plan))


def delta_by_hand(centres, reading, tau):
    """Loops over the classes."""
    gaps = {c: {b: float((centres[c] - centres[b]).norm()) for b in centres if b != c} for c in centres}
    each = [max(found.values()) if reading == "all_pairs" else min(found.values()) for found in gaps.values()]
    return min(max(each), tau)


def of_f(params):
    """P = F(e), (C, d)."""
    hidden = (params["embedding.weight"] @ params["hidden.weight"].T + params["hidden.bias"]).relu()
    return hidden @ params["out.weight"].T + params["out.bias"]


def served(params, pairs, delta, order, *, epochs, lr, batch_size, **_):
    """Steps of SGD on F, the loss one pair and one class at a time."""
    for _ in range(epochs):
        for batch in torch.randperm(len(pairs), generator=order).split(batch_size):
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
            prototypes, total = of_f(leaves), 0.0
            for i in batch.tolist():
                mean, c = pairs[i]
                gaps = [((mean - p) ** 2).sum().sqrt() for p in prototypes]
                own = torch.exp(-(gaps[c] + delta))
                others = sum(torch.exp(-gap) for b, gap in enumerate(gaps) if b != c)
                total = total - torch.log(own / (own + others)) / len(batch)
            slopes = torch.autograd.grad(total, list(leaves.values()))
            params = {name: params[name] - lr * slope for name, slope in zip(params, slopes, strict=True)}
    return params


def check(folder, *, lam=0.7, proto_from="after", margin="all_pairs", **changes):
    """Compare models, F and scores after every round; give the margins."""
    server = FedTGPServer(**(SERVER | {"margin": margin} | changes))
    federation = federation_of(folder, lam=lam, proto_from=proto_from, server=server, **DOUBLE)
    test, own = federation.data.dataset.test, [initial() for _ in PARTS]
    prototypes, params, deltas = {}, None, []
    for step, record in federation.rounds():
        if params is None:
            params = step.state.params
            assert {name: tensor.shape[0] for name, tensor in params.items() if "bias" not in name} == {
                "embedding.weight": 3, "hidden.weight": HIDDEN, "out.weight": HIDDEN
            }  # fmt: skip
        pairs = []
        for k in record.cohort:
            x, y = own_examples(federation.data, k)
            before = own[k]
            own[k] = trained(before, x, y, STEPS, lam=lam, prototypes=prototypes)
            means = means_of(own[k] if proto_from == "after" else before, x, y)
            pairs += [(means[c], c) for c in sorted(means)]
            for name in NAMES:
                kept = federation.store.get(k).personal[name]
                torch.testing.assert_close(kept, own[k][name], rtol=0, atol=1e-12)
        if record.cohort:
            those = {c: [mean for mean, b in pairs if b == c] for c in {c for _, c in pairs}}
            deltas.append(delta_by_hand({c: sum(m) / len(m) for c, m in those.items()}, margin, server.tau))
            order = torch.Generator().manual_seed(derive_seed(0, "prototypes", record.round_idx))
            params = served(params, pairs, deltas[-1], order, **(SERVER | changes))
            prototypes = dict(enumerate(of_f(params)))
        for name, tensor in step.state.params.items():
            torch.testing.assert_close(tensor, params[name], rtol=0, atol=1e-12)
        assert server.broadcast(step.state, 0).classes.tolist() == list(prototypes)
        for mean, prototype in zip(server.broadcast(step.state, 0).means, prototypes.values(), strict=True):
            torch.testing.assert_close(mean, prototype, rtol=0, atol=1e-12)
        for k in range(len(PARTS)):
            x = test.inputs.double()
            logits = nearest(own[k], x, prototypes) if prototypes else logits_of(own[k], x)
            assert_own(record, k, logits, test.labels)
    return deltas


@pytest.mark.parametrize("margin", ["all_pairs", "nearest"])
@pytest.mark.parametrize("proto_from", ["after", "before"])
def test_rounds_of_some_of_unequal_clients_by_hand(proto_from, margin, tmp_path):
    check(tmp_path, proto_from=proto_from, margin=margin, tau=5.0)


def test_the_margin_is_cut_and_the_readings_are_two(tmp_path):
    cut, whole, near = (
        check(tmp_path / str(i), **more)
        for i, more in enumerate(({"tau": 0.1}, {"tau": 9.0}, {"tau": 9.0, "margin": "nearest"}))
    )
    assert set(cut) == {0.1}
    assert max(whole) < 9
    assert all(n < w for n, w in zip(near, whole, strict=True))


def test_margins_by_hand():
    """0, 3 and 4 + 3 on a line: pairs 3, 4, 7; nearest 3, 3, 4."""
    centres = torch.tensor([[0.0, 0.0], [3.0, 0.0], [7.0, 0.0]])
    assert margin_of(centres, "all_pairs", 100.0) == 7
    assert margin_of(centres, "nearest", 100.0) == 4
    assert margin_of(centres, "all_pairs", 5.0) == margin_of(centres, "nearest", 5.0) + 1 == 5
    assert margin_of(centres, "nearest", 0.0) == 0
    assert margin_of(centres[:1], "nearest", 9.0) == margin_of(centres[:0], "all_pairs", 9.0) == 0


def test_without_a_margin_the_loss_is_a_softmax_over_minus_the_distances():
    """Distances 3 and 4 to two prototypes: log(1 + e^(3 - 4)); with a margin of 2, log(1 + e^(5 - 4))."""
    means, prototypes = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    found = [float(contrast(means, torch.tensor([0]), prototypes, delta)) for delta in (0.0, 2.0)]
    assert found == pytest.approx([0.3132617, 1.3132617])


def test_no_server_steps_leave_the_prototypes_where_they_are(tmp_path):
    federation = federation_of(tmp_path, server=FedTGPServer(epochs=0))
    steps = federation.run()[0]
    assert len(federation.server.broadcast(steps[0].state, 0).classes) == 0
    sent = [federation.server.broadcast(step.state, 0) for step in steps[1:]]
    assert len({tree.sha256(one) for one in sent}) == 1
    assert sent[0].means.shape == (3, HIDDEN)
    assert tree.sha256(steps[-1].state.params) == tree.sha256(steps[0].state.params)
    trained_ones = federation_of(tmp_path / "b").run()[0]
    assert tree.sha256(trained_ones[-1].state.params) != tree.sha256(steps[0].state.params)
    assert tree.sha256(trained_ones[0].state) == tree.sha256(steps[0].state)


PLAN = {
    "build_model": partial(two_layers, 0.3),
    "batch_size": 2,
    "local_epochs": 2,
    "cohort_size": 2,
    "num_rounds": 3,
}


@pytest.mark.parametrize("proto_from", ["after", "before"])
def test_without_a_weight_it_is_local_training_bit_for_bit(proto_from, tmp_path):
    found = federation_of(tmp_path / "a", lam=0.0, predict_by="head", proto_from=proto_from, **PLAN)
    left = found.run()[1]
    kind, data = partial(ClientModule, personal=["all"]), split_by_class(*PARTS)
    plain = parties(tmp_path / "b", client=kind, data=data, lr=LR, momentum=MOMENTUM, **PLAN)
    right = plain.run()[1]
    for k in plain.store:
        assert tree.sha256(found.store.get(k).personal) == tree.sha256(plain.store.get(k).personal)
    for mine, its in zip(left, right, strict=True):
        for name in ("train/loss", "personal/acc_mean"):
            assert mine.metrics.get(name) == its.metrics.get(name)


def test_messages_hold_prototypes_and_no_weights_and_no_counts(tmp_path):
    """m classes of 5 numbers of 4 bytes and the class's 8; down all three classes, but nothing in the first round."""
    federation = federation_of(tmp_path)
    up, down = 0, 0
    for _, record in federation.rounds():
        down += len(record.cohort) * 3 * (8 + HIDDEN * 4) * (record.round_idx > 1)
        up += sum(len(PARTS[k]) * (8 + HIDDEN * 4) for k in record.cohort)
        assert (record.metrics["comm/up_bytes"], record.metrics["comm/down_bytes"]) == (up, down)
    for k in federation.store:
        assert federation.store.get(k).memory is None
        assert set(federation.store.get(k).personal) == set(NAMES)


def test_what_the_server_computes_is_counted(tmp_path):
    """7 pairs in batches of 3 are 3 steps an epoch: each F of 3 classes, 2 * 25 products; distances 7 * 3 * 5."""
    flops = []
    for epochs in (0, 4):
        server = FedTGPServer(**(SERVER | {"epochs": epochs}))
        federation = federation_of(tmp_path / str(epochs), server=server, num_rounds=1, cohort_size=4)
        flops.append(federation.run()[1][-1].metrics["compute/flops"])
    assert flops[1] - flops[0] == 3 * 2 * 4 * (3 * 3 * 2 * 25 + 7 * 3 * 5)


def test_a_round_without_a_prototype_trains_nothing(tmp_path):
    federation = federation_of(tmp_path)
    state = federation.run()[0][-1].state
    nothing = Prototypes(torch.zeros(0, dtype=torch.int64), torch.zeros(0, HIDDEN))
    for updates in ([], [Update(0, 0, nothing, None, {})]):
        after = federation.server.aggregate(state, iter(updates))
        assert after == state._replace(round_idx=state.round_idx + 1)


@pytest.mark.parametrize("proto_from", ["after", "before"])
def test_a_run_goes_on_from_its_middle_with_its_models(proto_from, tmp_path):
    build = partial(federation_of, proto_from=proto_from)
    assert goes_on(build, tmp_path / "cut", tmp_path / "whole")


STACKED = {
    "after": ("partition=quantity_skew",),
    "before": ("algorithm.client.proto_from=before", "federation.cohort_size=2", "federation.num_rounds=4"),
}


@pytest.mark.parametrize("name", STACKED)
def test_whole_runs_of_stacked_clients_are_those_of_serial(name, tmp_path):
    options = ("algorithm=fedtgp", "algorithm.server.epochs=10", *STACKED[name])
    assert_stacks(tmp_path, *options)


def test_networks_of_unequal_depth_share_prototypes(tmp_path):
    pool = (
        "pool=hetero_cnn", "pool.names=[deep,wide,deep,wide]",
        "+pool.models.deep={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[8,6]}",
        "+pool.models.wide={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[6]}",
    )  # fmt: skip
    experiment, steps = steps_of(tmp_path, "algorithm=fedtgp", "algorithm.client.proto_from=before", *pool)
    assert steps[-1][0].state.prototypes.shape == (10, 6)
    assert "head.fc3.linear.weight" in experiment.store.get(0).personal
    assert "head.fc3.linear.weight" not in experiment.store.get(1).personal


UPLOAD = FedTGPClient.upload


def forgetful(self, turn, tensors):
    self.take_personal({})
    return UPLOAD(self, turn, tensors)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_the_server_trains_in_single_precision_where_clients_have_half(precision, tmp_path):
    _, steps = steps_of(tmp_path, "algorithm=fedtgp", f"trainer.precision={precision}")
    state = steps[-1][0].state
    assert {tensor.dtype for tensor in [*state.params.values(), state.prototypes]} == {torch.float32}
    assert state.prototypes.isfinite().all()
    assert not torch.equal(state.prototypes, steps[1][0].state.prototypes)


CONTRAST, MARGIN, PULL = fedtgp.contrast, fedtgp.margin_of, prototype_clients.pull
BUGS = {
    "margin of the wrong sign": (fedtgp, "contrast", lambda *parts: CONTRAST(*parts[:3], -parts[3])),
    "margin forgotten": (fedtgp, "contrast", lambda *parts: CONTRAST(*parts[:3], 0.0)),
    "margin not cut": (fedtgp, "margin_of", lambda centres, reading, tau: MARGIN(centres, reading, 1e9)),
    "the other reading": (fedtgp, "margin_of", lambda centres, reading, tau: MARGIN(centres, "nearest", tau)),
    "pushed away": (prototype_clients, "pull", lambda *arguments: -PULL(*arguments)),
    "F drawn anew": (fedtgp, "copy_into", lambda net, params: None),
    "the first network": (FedTGPClient, "upload", forgetful),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises(AssertionError):
        check(tmp_path, tau=0.1 if bug == "margin not cut" else 9.0)
