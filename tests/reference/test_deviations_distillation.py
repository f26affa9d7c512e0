"""FD and FedPAC beside public codes, where docs/deviations.md says that the two differ."""

from functools import partial

import numpy as np
import pytest
import torch
from deviating import gap, pair_of
from harness import LR, examples_of, make_data, parties
from linear_rounds import ZERO
from prototype_rounds import means_of, own_examples, split_by_class, two_layers

from fedfeat.algorithms.fd import FDClient, FDServer, divergence
from fedfeat.algorithms.fedpac import FedPACClient, FedPACServer
from fedfeat.features.prototypes import pull

DATA = make_data()
EPOCHS = 4


def logits_of(pair, x):
    return x @ pair[0].T + pair[1]


def probabilities(logits):
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def distilled(k, pair, slope, targets):
    """Full-batch steps; where they lead, and the mean logits of each class over all of them."""
    x, y = examples_of(DATA, k)
    seen = []
    for _ in range(EPOCHS):
        logits = logits_of(pair, x)
        seen.append(logits)
        push = probabilities(logits) - np.eye(3)[y]
        if targets:
            push = push + slope(logits, np.stack([targets[c] for c in y]))
        pair = pair[0] - LR * push.T @ x / len(y), pair[1] - LR * push.mean(0)
    return pair, {c: np.mean(seen, 0)[y == c].mean(0) for c in np.unique(y)}


def raw(logits, target):
    """Of the cross-entropy with any numbers as a target."""
    return target.sum(1, keepdims=True) * probabilities(logits) - target


def divergent(logits, target):
    return probabilities(logits) - target


def to_mean(logits, target):
    return 2 / 3 * (logits - target)


def mean_of(outputs):
    classes = {c for own in outputs for c in own}
    return {c: np.mean([own[c] for own in outputs if c in own], 0) for c in classes}


def by_hand(slope, of_outputs=None):
    """Two rounds of everyone, in which all receive the mean of all; where client 2 ends, and what is sent."""
    ends, outputs = zip(*(distilled(k, ZERO, None, None) for k in range(3)), strict=True)
    if of_outputs:
        outputs = []
        for k, pair in enumerate(ends):
            x, y = examples_of(DATA, k)
            values = of_outputs(logits_of(pair, x))
            outputs.append({c: values[y == c].mean(0) for c in np.unique(y)})
    targets = mean_of(outputs)
    return distilled(2, ends[2], slope, targets)[0], targets


def ours(folder, outputs):
    server = FDServer(leave_one_out=False)
    plan = {"local_epochs": EPOCHS, "num_rounds": 2, "precision": "64-true", "personal": True}
    client = partial(FDClient, outputs=outputs, personal=["all"])
    federation = parties(folder, client=client, server=server, **plan)
    steps = federation.run()[0]
    return pair_of(federation.store.get(2).personal), server.broadcast(steps[1].state, 0)


def test_raw_logits_as_soft_targets_push_on_where_they_are_reached(tmp_path):
    """Logits of a softmax regression from zeros add up to 0, so the slope is -G whatever the outputs are."""
    found = {kind: ours(tmp_path / kind, kind)[0] for kind in ("probabilities", "logits")}
    assert gap(found["probabilities"], by_hand(divergent, probabilities)[0]) < 1e-12
    assert gap(found["logits"], by_hand(to_mean, lambda logits: logits)[0]) < 1e-12
    theirs, targets = by_hand(raw)
    assert theirs[1] == pytest.approx([0.0476, 0.1733, -0.2209], abs=1e-4)
    assert [gap(theirs, found[kind]) for kind in found] == pytest.approx([0.471, 0.510], abs=1e-3)
    logits, labels = torch.from_numpy(targets[2])[None].requires_grad_(), torch.tensor([0])
    every, known = logits.detach().expand(3, 3), torch.ones(3, dtype=torch.bool)
    for term in (divergence(logits, labels, every.softmax(1), known), pull(logits, labels, every, known)):
        assert torch.autograd.grad(term, logits)[0].abs().max() < 1e-15
    assert np.abs(raw(targets[2][None], targets[2][None]) + targets[2]).max() < 1e-15
    assert np.abs(targets[2]).max() == pytest.approx(0.329, abs=1e-3)


def test_outputs_of_all_batches_are_of_networks_that_move(tmp_path):
    payload = ours(tmp_path, "logits")[1]
    after = dict(zip(payload.classes.tolist(), payload.means.numpy(), strict=True))
    theirs = by_hand(raw)[1]
    assert set(after) == set(theirs)
    assert max(np.abs(after[c] - theirs[c]).max() for c in after) == pytest.approx(0.410, abs=1e-3)


PARTS = ((0, 1), (1,), (0, 2), (2, 1))


def after_a_turn(folder, dropout):
    """What client 3 has trained of FedPAC in a first turn of one epoch for the head and three for the body."""

    def client(optimizer, **arguments):
        optimizer = partial(optimizer.func, **optimizer.keywords, weight_decay=5e-4)
        return FedPACClient(optimizer=optimizer, personal=["last"], head_lr=0.1, **arguments)

    plan = {"build_model": partial(two_layers, dropout), "lr": 0.3, "momentum": 0.5, "precision": "64-true"}
    federation = parties(folder, client=client, server=FedPACServer(), data=split_by_class(*PARTS), **plan)
    payload = federation.server.broadcast(federation.start().state, 3)
    update = federation.executor.worker.fit(federation.plan.task(0, 3, 4, payload, None))
    return update.payload.params | update.payload.head


def test_a_fit_in_eval_mode_drops_nothing(tmp_path):
    theirs, dropping = (after_a_turn(tmp_path / str(share), share) for share in (0.0, 0.4))
    apart = max(float((theirs[key] - dropping[key]).abs().max()) for key in theirs)
    assert apart == pytest.approx(0.123, abs=1e-3)


def test_prototypes_of_clients_that_count_alike(tmp_path):
    """Of the common initial body, of which nothing is trained here."""
    params = {name: tensor.double() for name, tensor in two_layers().state_dict().items()}
    data, sums = split_by_class(*PARTS), {}
    for k in range(4):
        x, y = own_examples(data, k)
        for c, mean in means_of(params, x, y).items():
            sums.setdefault(c, []).append((int((y == c).sum()), mean))
    client = partial(FedPACClient, personal=["last"])
    plan = {"build_model": two_layers, "lr": 1e-30, "precision": "64-true", "num_rounds": 1}
    federation = parties(tmp_path, client=client, server=FedPACServer(), data=data, **plan)
    found = federation.run()[0][-1].state.prototypes
    apart = 0.0
    for c, pairs in sums.items():
        weighted = sum(n * mean for n, mean in pairs) / sum(n for n, _ in pairs)
        torch.testing.assert_close(found[c], weighted, rtol=0, atol=1e-12)
        apart = max(apart, float((weighted - torch.stack([mean for _, mean in pairs]).mean(0)).abs().max()))
    assert apart == pytest.approx(0.069, abs=1e-3)
