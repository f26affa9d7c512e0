"""FedALA through the real loop: by hand, with weights fixed at 1, its sample and its passes, and planted bugs."""

from functools import partial
from statistics import pstdev

import pytest
import torch
from harness import SIZES, sample_cohort
from personal_rounds import (
    B2,
    EPOCHS,
    NAMES,
    ROUNDS,
    W2,
    ByHand,
    Sgd,
    assert_resumes,
    assert_stacks,
    check,
    federation_of,
    logits,
    network,
    of,
    slopes,
)
from torch.nn import functional

from fedfeat import tree
from fedfeat.algorithms import fedala
from fedfeat.algorithms.fedala import FedALAClient, TopLayers
from fedfeat.client import ClientModule
from fedfeat.errors import ConfigError
from fedfeat.params import WeightedMean
from fedfeat.seeding import derive_seed

ETA, SHARE, THRESHOLD = 4.0, 0.7, 0.02


class FedAla(ByHand):
    """Full batches of the sample; the top layer's tensors are kept with their weights."""

    def __init__(self, top=(W2, B2)):
        self.top, self.passes = top, []

    def start(self, w, memory, x, y, round_idx):
        """Give the mixture and its weights."""
        if memory is None:
            return w, {name: torch.ones_like(w[name]) for name in self.top}
        kept, weights, turns = memory
        generator = torch.Generator().manual_seed(derive_seed(0, "turn", round_idx, SIZES.index(len(y))))
        chosen = torch.randperm(len(y), generator=generator)[: round(SHARE * len(y))].sort().values
        losses = []
        while True:
            theta = w | {n: kept[n] + (w[n] - kept[n]) * weights[n] for n in self.top}
            if losses and (turns > 1 or (len(losses) > 10 and pstdev(losses[-10:]) < THRESHOLD)):
                self.passes.append((turns, len(losses)))
                return theta, weights
            slope = slopes(theta, x[chosen], y[chosen])
            losses.append(functional.cross_entropy(logits(theta, x[chosen]), y[chosen]).item())
            weights = {n: (weights[n] - ETA * slope[n] * (w[n] - kept[n])).clamp(0, 1) for n in self.top}

    def turn(self, w, memory, x, y, steps):
        if steps == EPOCHS:
            self.asked = getattr(self, "asked", -1) + 1
        theta, weights = self.start(w, memory, x, y, self.asked // 2 if steps == EPOCHS else ROUNDS)
        optimizer = Sgd()
        for _ in range(steps):
            theta = optimizer.step(theta, slopes(theta, x, y))
        turns = memory[2] + 1 if memory else 1
        return theta, ({n: theta[n] for n in self.top}, weights, turns), theta

    def own(self, w, memory, x, y):
        return self.start(w, memory, x, y, 0)[0]


client = partial(of, FedALAClient, eta=ETA, share=SHARE, threshold=THRESHOLD)


@pytest.mark.parametrize("layers", [1, 2])
def test_rounds_by_hand(layers, tmp_path):
    """Weights leave 1 and reach 0, and the second turn takes more passes than later ones."""
    by_hand = FedAla((W2, B2) if layers == 1 else NAMES)
    federation, _ = check(tmp_path, by_hand, client(layers=layers))
    first = {count for turns, count in by_hand.passes if turns == 1}
    assert min(first) > 10
    assert {count for turns, count in by_hand.passes if turns > 1} == {1}
    found = torch.cat([t.flatten() for k in federation.store for t in tree.tensors(federation.store.get(k))])
    assert ((found > 0) & (found < 1)).any()
    memory = federation.store.get(2).memory
    assert set(memory.weights) == set(memory.params) == set(by_hand.top)


HARD = {"batch_size": 3, "build_model": lambda: network(0.4), "precision": "32-true", "keep_optimizer": True}


def test_with_weights_fixed_at_1_it_is_fedavg_bit_for_bit(tmp_path):
    """Also between the turns, where its own models are the common one."""
    found = federation_of(tmp_path / "a", client(eta=0.0), **HARD)
    fedavg = federation_of(tmp_path / "b", of(ClientModule), **HARD)
    for (mine, record), (its, other) in zip(found.rounds(), fedavg.rounds(), strict=True):
        assert tree.sha256(mine.state) == tree.sha256(its.state)
        for name in ("global/loss", "compute/flops", "comm/total_bytes", "local_pre_agg/acc_mean"):
            assert record.metrics.get(name) == other.metrics.get(name)
        for row in record.clients:
            assert row.personal_loss == pytest.approx(row.global_loss, abs=1e-6)


def test_weights_at_0_keep_the_own_top_layers_bit_for_bit():
    kept, received = ({"w": torch.randn(5)} for _ in range(2))
    for weight, expected in ((0.0, kept), (1.0, received)):
        found = fedala.mixed(kept, received, {"w": torch.full((5,), weight)})
        assert torch.equal(found["w"], expected["w"])


def test_the_sample_is_a_share_of_the_examples_and_another_in_every_turn(tmp_path):
    federation = federation_of(tmp_path, client(ala_batch=3))
    worker, state, found = federation.executor.worker, federation.start().state, []
    for round_idx in (1, 2, 1):
        payload = federation.server.broadcast(state, 2)
        turn = worker.begin(worker.module, federation.plan.task(round_idx, 2, 1, payload, None))
        batches = worker.module._sample(turn)
        assert sum(len(labels) for _, labels in batches) == round(SHARE * 8)
        assert [len(labels) for _, labels in batches] == [3, 3]
        found.append(torch.cat([inputs for inputs, _ in batches]))
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])
    own = worker.data.dataset.train.inputs[worker.data.split.train.of(2)].double()
    assert all((own == row).all(1).any() for row in found[0])


def test_losses_that_never_settle_end_the_first_learning_after_a_hundred_passes(tmp_path):
    half = federation_of(tmp_path, client(threshold=0.0)).executor.worker.module
    assert not half._settled([0.0, 1.0] * 49, first=True)
    assert half._settled([0.0, 1.0] * 50, first=True)
    assert not half._settled([1.0] * 10, first=True)
    assert not half._settled([], first=False)
    assert half._settled([1.0], first=False)


def test_messages_are_those_of_fedavg_and_passes_that_learn_are_counted(tmp_path):
    federation = federation_of(tmp_path, client())
    last = federation.run()[1][-1].metrics
    by_hand = FedAla()
    data, w, memories = (
        federation.data,
        {n: t.double() for n, t in network().state_dict().items()},
        [None] * 3,
    )
    learned = 0
    for t in range(ROUNDS):
        found = {}
        for k in sample_cohort(0, t, 3, 2):
            chosen, train = data.split.train.of(k), data.dataset.train
            x, y = train.inputs[chosen].double(), train.labels[chosen]
            before = len(by_hand.passes)
            found[k], memories[k], _ = by_hand.turn(w, memories[k], x, y, EPOCHS)
            learned += sum(count for _, count in by_hand.passes[before:]) * round(SHARE * len(y))
        w = by_hand.mean(w, found)
    seen = sum(SIZES[k] for t in range(ROUNDS) for k in sample_cohort(0, t, 3, 2))
    assert last["comm/down_bytes"] == last["comm/up_bytes"] == ROUNDS * 2 * 43 * 8
    assert last["compute/flops"] == (EPOCHS * seen + learned) * 170
    assert learned > 0


def test_turns_are_stacked_as_they_are_alone(tmp_path):
    assert_stacks(tmp_path, client(ala_batch=3))


def test_a_run_goes_on_from_its_middle_with_what_clients_keep(tmp_path):
    assert_resumes(tmp_path, client(ala_batch=3))


def test_more_layers_than_there_are_are_refused():
    optimizer = partial(torch.optim.SGD, lr=0.1)
    with pytest.raises(ConfigError, match=r"^algorithm\.client\.layers must be at most 2, .* but it is 3\.$"):
        FedALAClient(model=network(), optimizer=optimizer, layers=3)


def test_small_steps_of_the_weights_are_made_in_half_precision_too(tmp_path):
    """Just below 1 neighbours in bfloat16 are .004 apart; steps of W_k are a tenth of it."""
    federation = federation_of(tmp_path, client(eta=0.01), **HARD | {"precision": "bf16-true"})
    federation.run()
    kept = [federation.store.get(k).memory for k in federation.store]
    assert all(tensor.dtype == torch.bfloat16 for memory in kept for tensor in memory.params.values())
    moved = torch.cat([(1 - weight).flatten() for memory in kept for weight in memory.weights.values()])
    assert moved.dtype == torch.float32
    assert ((moved > 0) & (moved < 0.001)).any()


ADD, MIXED, UPLOAD = WeightedMean.add, fedala.mixed, FedALAClient.upload
RECEIVE, LEARN = FedALAClient.receive, FedALAClient._learn


def forgotten(self, turn, tensors):
    payload, memory = UPLOAD(self, turn, tensors)
    return payload, TopLayers(
        memory.params, {k: torch.ones_like(t) for k, t in memory.weights.items()}, memory.turns
    )


def always_first(self, turn, tensors):
    payload, memory = UPLOAD(self, turn, tensors)
    return payload, memory._replace(turns=1)


def uphill(self, weights, kept, received, batches):
    self.eta = -self.eta
    try:
        return LEARN(self, weights, kept, received, batches)
    finally:
        self.eta = -self.eta


def everything(self, turn):
    self.share = 1.0
    return SAMPLE(self, turn)


SAMPLE = FedALAClient._sample
BUGS = {
    "weights of the wrong side": [(fedala, "mixed", lambda kept, got, weights: MIXED(got, kept, weights))],
    "weights forgotten": [(FedALAClient, "upload", forgotten)],
    "memory forgotten": [
        (FedALAClient, "receive", lambda self, payload, memory: RECEIVE(self, payload, None))
    ],
    "every turn a first one": [(FedALAClient, "upload", always_first)],
    "weights uphill": [(FedALAClient, "_learn", uphill)],
    "all examples": [(FedALAClient, "_sample", everything)],
    "the common model between turns": [(FedALAClient, "adapt", lambda self, turn: None)],
    "mean without weights": [(WeightedMean, "add", lambda self, params, weight: ADD(self, params, 1))],
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    for owner, attribute, mutant in BUGS[bug]:
        monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        check(tmp_path, FedAla(), client())
