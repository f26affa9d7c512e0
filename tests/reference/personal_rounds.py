"""Rounds of clients with models of their own, beside what plain float64 arithmetic makes of them.

A method by hand is an object with ``turn``, ``own`` and ``mean``; `check` compares the server's tensors, what clients
keep, and the scores of their own models, between their turns, right after them and after the extra fit.
"""

import torch
from harness import SIZES, parties, sample_cohort
from torch.nn import functional

from fedfeat import tree
from fedfeat.client import ClientModule
from fedfeat.executors.stacked.vectorized import VectorizedExecutor
from fedfeat.models.mlp import mlp

LR, MOMENTUM, DECAY, ROUNDS, EPOCHS, FINAL = 0.2, 0.5, 0.05, 4, 3, 2
NAMES = W1, B1, W2, B2 = tuple(
    f"{block}.linear.{kind}" for block in ("encoder.fc1", "head.fc2") for kind in ("weight", "bias")
)
TIGHT = 1e-12


def network(dropout=0.0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return mlp((4,), 3, hidden=[5], dropout=dropout)


def initial():
    return {name: tensor.double() for name, tensor in network().state_dict().items()}


def of(kind, **fixed):
    """A client half with weight decay."""

    def make(optimizer, **arguments):
        optimizer.keywords["weight_decay"] = DECAY
        return kind(optimizer=optimizer, **fixed, **arguments)

    return make


def federation_of(store_dir, client, server=None, **plan):
    arguments = {
        "num_rounds": ROUNDS, "local_epochs": EPOCHS, "cohort_size": 2, "lr": LR, "momentum": MOMENTUM,
        "build_model": network, "precision": "64-true", "personal": True, "evaluate_local": True,
    }  # fmt: skip
    return parties(store_dir, client=client, server=server, **(arguments | plan))


def logits(params, x):
    return (x @ params[W1].T + params[B1]).relu() @ params[W2].T + params[B2]


def slopes(params, x, y):
    """Gradient of the mean cross-entropy."""
    leaves = {name: params[name].detach().requires_grad_() for name in NAMES}
    loss = functional.cross_entropy(logits(leaves, x), y)
    return dict(zip(NAMES, torch.autograd.grad(loss, list(leaves.values())), strict=True))


class Sgd:
    """Steps with momentum and weight decay."""

    def __init__(self, lr=LR):
        self.lr, self.velocity = lr, {}

    def step(self, params, push):
        for name in NAMES:
            slope = push[name] + DECAY * params[name]
            self.velocity[name] = slope + MOMENTUM * self.velocity.get(name, 0.0)
        return {name: params[name] - self.lr * self.velocity[name] for name in NAMES}


class ByHand:
    """FedAvg, as a base for methods by hand."""

    def turn(self, w, memory, x, y, steps):
        """Give what is sent, what is kept, and the client's own model right after its fit."""
        optimizer, own = Sgd(), w
        for _ in range(steps):
            own = optimizer.step(own, slopes(own, x, y))
        return own, None, own

    def own(self, w, memory, x, y):
        """Give the client's own model between its turns."""
        return w

    def mean(self, w, found):
        total = sum(SIZES[k] for k in found)
        return {name: sum(SIZES[k] * one[name] for k, one in found.items()) / total for name in NAMES}


def examples(data, client_id):
    chosen, train = data.split.train.of(client_id), data.dataset.train
    return train.inputs[chosen].double(), train.labels[chosen]


def assert_scores(record, kind, models, test):
    """Compare accuracy and loss of one kind of the clients' models with those of ``models``, by client."""
    rows = {row.client_id: row for row in record.clients}
    for k, params in models.items():
        expected = logits(params, test.inputs.double())
        right = (expected.argmax(1) == test.labels).double().mean().item()
        assert abs(getattr(rows[k], f"{kind}_acc") - right) < 1e-9
        loss = functional.cross_entropy(expected, test.labels).item()
        assert abs(getattr(rows[k], f"{kind}_loss") - loss) < 1e-9


def assert_kept(kept, memory):
    found = tree.tensors(kept.memory) if kept else []
    for mine, its in zip(found, tree.tensors(memory), strict=True):
        assert mine.dtype == torch.float64
        torch.testing.assert_close(mine, its, rtol=0, atol=TIGHT)


def check(store_dir, by_hand, client, server=None, **plan):
    """Compare every round of a federation with the method by hand; give the federation and the last record."""
    federation = federation_of(store_dir, client, server, final_epochs=FINAL, **plan)
    data, test = federation.data, federation.data.dataset.test
    w, memories = initial(), [None] * 3
    for step, record in federation.rounds():
        if record.round_idx:
            found, local = {}, {}
            for k in sample_cohort(0, record.round_idx - 1, 3, 2):
                found[k], memories[k], local[k] = by_hand.turn(w, memories[k], *examples(data, k), EPOCHS)
            w = by_hand.mean(w, found)
            assert_scores(record, "local", local, test)
        for name in NAMES:
            torch.testing.assert_close(step.state.params[name], w[name], rtol=0, atol=TIGHT)
        for k in range(3):
            assert_kept(federation.store.get(k), memories[k])
        own = {k: by_hand.own(w, memories[k], *examples(data, k)) for k in range(3)}
        assert_scores(record, "personal", own, test)
    last = {k: by_hand.turn(w, memories[k], *examples(data, k), FINAL)[2] for k in range(3)}
    assert_scores(record, "final", last, test)
    return federation, record


def outcome(federation):
    """Run; give all tensors of the last state and of what clients keep, and the last record's metrics less times."""
    steps, records = federation.run()
    kept = [federation.store.get(k) for k in federation.store]
    metrics = {k: v for k, v in records[-1].metrics.items() if not k.startswith("time/")}
    return tree.tensors([steps[-1].state, kept]), metrics


def assert_stacks(store_dir, client, server=None, **plan):
    """The stacked fit does what single ones do, with unequal batches and dropout too."""
    found = []
    for name, executor in (("serial", {}), ("stacked", {"build_executor": VectorizedExecutor})):
        options = {"batch_size": 3, "build_model": lambda: network(0.3), "cohort_size": 3, **plan, **executor}
        found.append(outcome(federation_of(store_dir / name, client, server, **options)))
    (serial, metrics), (stacked, others) = found
    assert len(serial) > 0
    for mine, its in zip(stacked, serial, strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=TIGHT)
    assert metrics.keys() == others.keys()
    for name, value in metrics.items():
        assert abs(others[name] - value) <= 1e-9 * max(1.0, abs(value)), name


HARD = {"batch_size": 3, "build_model": lambda: network(0.4), "precision": "32-true", "keep_optimizer": True}
"""Dropout, batches of unequal size and momentum that is kept."""


def assert_global_track_is_fedavgs(store_dir, client):
    """What the server has is FedAvg's, bit for bit."""
    own = federation_of(store_dir / "own", client, **HARD)
    fedavg = federation_of(store_dir / "fedavg", of(ClientModule), **HARD)
    for (mine, found), (its, expected) in zip(own.rounds(), fedavg.rounds(), strict=True):
        assert tree.sha256(mine.state) == tree.sha256(its.state)
        for name in ("global/loss", "comm/total_bytes", "compute/examples"):
            assert found.metrics[name] == expected.metrics[name]


def assert_learns_alone(store_dir, client):
    """What clients keep is bit for bit of local learning, with its batches and dropout masks."""
    own = federation_of(store_dir / "own", client, **HARD)
    local = federation_of(store_dir / "local", of(ClientModule, personal=["all"]), **HARD)
    found, expected = own.run()[1], local.run()[1]
    for k in range(3):
        assert tree.sha256(own.store.get(k).memory.params) == tree.sha256(local.store.get(k).personal)
    for mine, its in zip(found, expected, strict=True):
        for name in ("personal/acc_mean", "local_pre_agg/acc_mean"):
            assert mine.metrics.get(name) == its.metrics.get(name)


def assert_absent_keep_their_models(store_dir, client, server=None):
    """What a client keeps changes in the rounds that it takes part in, and in no others."""
    federation = federation_of(store_dir, client, server)
    kept = {}
    for _, record in federation.rounds():
        now = {k: tree.sha256(federation.store.get(k)) for k in federation.store}
        for k in now:
            assert (now[k] != kept.get(k)) == (k in record.cohort)
        kept = now
    assert len(kept) == 3


def assert_resumes(store_dir, client, server=None, **plan):
    """A run that is cut after half of its rounds and goes on from what was stored ends as an unbroken one."""
    whole = federation_of(store_dir / "whole", client, server, **plan)
    expected = whole.run()[0][-1]
    first = federation_of(store_dir / "cut", client, server, **plan, **{"num_rounds": ROUNDS // 2})
    progress = first.run()[0][-1]
    manifest = first.store.persist()
    second = federation_of(store_dir / "cut", client, server, **plan)
    second.store.restore(manifest)
    second.start()
    last = second.run(progress)[0][-1]
    assert tree.sha256(last.state) == tree.sha256(expected.state)
    assert list(second.store) == list(whole.store)
    for k in whole.store:
        assert tree.sha256(second.store.get(k)) == tree.sha256(whole.store.get(k))
