"""FedProto, FedTGP and FedGH beside public codes, where docs/deviations.md says that the two differ."""

from functools import partial

import numpy as np
import pytest
import torch
from harness import parties
from prototype_rounds import (
    B1,
    B2,
    DOUBLE,
    LR,
    MOMENTUM,
    W1,
    W2,
    initial,
    logits_of,
    means_of,
    nearest,
    own_examples,
    split_by_class,
    trained,
    two_layers,
)
from torch.nn import functional

from fedfeat.algorithms.fedgh import FedGHClient, FedGHServer
from fedfeat.algorithms.fedproto import FedProtoClient, FedProtoServer
from fedfeat.algorithms.fedtgp import FedTGPClient, FedTGPServer, margin_of

STEPS = 3
PARTS = ((0, 1), (1,), (0, 2), (2, 1))
"""Classes of the clients, who all take part."""
PERSONAL = {"lam": 0.7, "personal": ["all"]}


def run(folder, client, server, **plan):
    """Give the federation, the last state, what each client sent last, by class, and the last round's clients."""
    arguments = {"num_rounds": 3, "local_epochs": STEPS, "lr": LR, "momentum": MOMENTUM, "personal": True}
    arguments |= {
        "build_model": two_layers,
        "data": split_by_class(*PARTS),
        "client": client,
        "server": server,
    }
    federation, sent = parties(folder, **(arguments | DOUBLE | plan)), {}
    aggregate = server.aggregate
    server.aggregate = lambda state, updates: aggregate(
        state, (sent.update({u.client_id: u.payload}) or u for u in updates)
    )
    steps, records = federation.run()
    found = {k: getattr(payload, "prototypes", None) or payload for k, payload in sent.items()}
    by_class = {k: dict(zip(p.classes.tolist(), p.means, strict=True)) for k, p in found.items()}
    return federation, steps[-1].state, by_class, records[-1].clients


def far(found, expected):
    """The largest distance of tensors by name or class."""
    return max(float((found[name] - expected[name]).abs().max()) for name in found)


def running(models, prototypes, x, y):
    """Each client's score by its head and by prototypes of its own classes, of counters that none starts anew."""
    hits = seen = 0
    by_head, by_prototype = [], []
    for own, classes in zip(models, PARTS, strict=True):
        for scores, logits in (
            (by_head, logits_of(own, x)),
            (by_prototype, nearest(own, x, {c: prototypes[c] for c in classes})),
        ):
            hits += int((logits.argmax(1) == y).sum())
            seen += len(y)
            scores.append(hits / seen)
    return by_head, by_prototype


def test_scores_of_fedproto_that_are_running_means_of_two_kinds(tmp_path):
    own = {}
    for by in ("head", "prototype"):
        client = partial(FedProtoClient, predict_by=by, **PERSONAL)
        federation, state, _, rows = run(tmp_path / by, client, FedProtoServer())
        own[by] = [row.personal_acc for row in rows]
    models = [federation.store.get(k).personal for k in range(4)]
    test = federation.data.dataset.test
    x, y = test.inputs.double(), test.labels
    for by, logits in (
        ("head", [logits_of(model, x) for model in models]),
        ("prototype", [nearest(model, x, dict(enumerate(state.prototypes))) for model in models]),
    ):
        assert own[by] == pytest.approx([float((part.argmax(1) == y).double().mean()) for part in logits])
    code = running(models, dict(enumerate(state.prototypes)), x, y)
    numbers = [(float(np.mean(part)), float(np.std(part))) for part in (own["head"], own["prototype"], *code)]
    expected = (0.292, 0.217), (0.542, 0.138), (0.202, 0.062), (0.224, 0.061)
    assert numbers == [pytest.approx(pair, abs=1e-3) for pair in expected]


def along_the_way(params, x, y, epochs):
    """Class means of what full batches gave in some epochs, each before its step."""
    paths = [trained(params, x, y, n, lam=0.0) for n in epochs]
    parts = [means_of(step, x, y) for step in paths]
    return {c: sum(part[c] for part in parts) / len(parts) for c in parts[0]}


def test_prototypes_that_are_gathered_while_weights_move(tmp_path):
    """Of the first round: of the last epoch, or of all of them, for those of the trained network."""
    federation, _, sent, _ = run(
        tmp_path, partial(FedProtoClient, **PERSONAL), FedProtoServer(), num_rounds=1
    )
    last, every = [], []
    for k in range(4):
        x, y = own_examples(federation.data, k)
        assert far(sent[k], means_of(trained(initial(), x, y, STEPS), x, y)) < 1e-12
        last.append(far(sent[k], along_the_way(initial(), x, y, [STEPS - 1])))
        every.append(far(sent[k], along_the_way(initial(), x, y, range(STEPS))))
    assert (max(last), max(every)) == pytest.approx((0.161, 0.277), abs=1e-3)


def test_a_mean_of_prototypes_without_counts(tmp_path):
    found = [
        run(tmp_path / by, partial(FedProtoClient, **PERSONAL), FedProtoServer(weighting=by), num_rounds=1)
        for by in ("samples", "uniform")
    ]
    (_, ours, sent, _), (_, plain, _, _) = found
    for c in range(3):
        those = [part[c] for part in sent.values() if c in part]
        torch.testing.assert_close(plain.prototypes[c], sum(those) / len(those), rtol=0, atol=1e-12)
    assert float((ours.prototypes - plain.prototypes).abs().max()) == pytest.approx(0.087, abs=1e-3)


def test_prototypes_of_the_network_before_its_turn(tmp_path):
    sent = []
    for when in ("after", "before"):
        client = partial(FedTGPClient, proto_from=when, **PERSONAL)
        federation, _, own, _ = run(tmp_path / when, client, FedTGPServer(epochs=4), num_rounds=1)
        sent.append(own)
    for k in range(4):
        x, y = own_examples(federation.data, k)
        assert far(sent[0][k], means_of(trained(initial(), x, y, STEPS), x, y)) < 1e-12
        assert far(sent[1][k], means_of(initial(), x, y)) < 1e-12
    assert max(far(sent[0][k], sent[1][k]) for k in range(4)) == pytest.approx(0.456, abs=1e-3)


def test_a_margin_of_nearest_classes():
    """On a line, at 0, 1 and 4: no two are farther apart than 4, none is farther than 3 from the next."""
    centres = torch.tensor([[0.0, 0.0], [1.0, 0.0], [4.0, 0.0]])
    assert margin_of(centres, "all_pairs", 100.0) == 4.0
    assert margin_of(centres, "nearest", 100.0) == 3.0


def rounds_of_gh(data, headers, momentum, *, carried):
    """Extractors of all clients after rounds with these headers; momentum is carried on by one optimizer, or not.

    The server of that optimizer makes a step for each prototype, too, by the gradient of the last client's last batch.
    """
    models, velocity, slopes = [initial() for _ in PARTS], None, None
    for header in headers:
        for k in range(len(PARTS)):
            x, y = own_examples(data, k)
            params = models[k] | header
            if velocity is None or not carried:
                velocity = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
            for _ in range(STEPS):
                leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
                loss = functional.cross_entropy(logits_of(leaves, x), y)
                slopes = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
                velocity = {name: momentum * velocity[name] + slope for name, slope in slopes.items()}
                params = {name: params[name] - LR * velocity[name] for name in params}
            models[k] = params
        for _ in range(sum(map(len, PARTS))):
            velocity = {name: momentum * velocity[name] + slope for name, slope in slopes.items()}
    return [{name: model[name] for name in (W1, B1)} for model in models]


def test_a_header_that_no_optimizer_holds(tmp_path):
    """Our ``epochs=0``. The optimizer that the server steps is that of all clients' networks, with its momentum."""
    first = {name: initial()[name] for name in (W2, B2)}
    client = partial(FedGHClient, personal=["body"])
    _, trained_header, _, _ = run(tmp_path / "a", client, FedGHServer(epochs=3, lr=0.4))
    federation, state, _, _ = run(tmp_path / "b", client, FedGHServer(epochs=0))
    assert all(torch.equal(*pair) for pair in zip(state.header.values(), first.values(), strict=True))
    assert far(trained_header.header, state.header) == pytest.approx(0.551, abs=1e-3)
    plain, carried = (
        rounds_of_gh(federation.data, [first] * 3, MOMENTUM, carried=by) for by in (False, True)
    )
    kept = [federation.store.get(k).personal for k in range(4)]
    assert max(map(far, plain, kept)) < 1e-12
    assert max(map(far, carried, kept)) == pytest.approx(0.211, abs=1e-3)


def means_of_batches(params, x, y, size):
    """Of each class the mean of the means that it has in batches."""
    parts = [means_of(params, *part) for part in zip(x.split(size), y.split(size), strict=True)]
    return {c: torch.stack([part[c] for part in parts if c in part]).mean(0) for c in y.unique().tolist()}


def test_prototypes_that_are_means_of_batches_means(tmp_path):
    """Batches of 2 in the stored order."""
    client = partial(FedGHClient, personal=["body"])
    federation, _, sent, _ = run(tmp_path, client, FedGHServer(), num_rounds=1)
    distances = []
    for k in range(4):
        x, y = own_examples(federation.data, k)
        model = trained(initial(), x, y, STEPS)
        assert far(sent[k], means_of(model, x, y)) < 1e-12
        distances.append(far(sent[k], means_of_batches(model, x, y, 2)))
    assert max(distances) == pytest.approx(0.063, abs=1e-3)
