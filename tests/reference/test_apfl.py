"""APFL through the real loop: by hand, at both ends of alpha, and planted bugs."""

import pytest
import torch
from harness import SIZES, network_of, sample_cohort
from personal_rounds import (
    EPOCHS,
    HARD,
    LR,
    NAMES,
    ROUNDS,
    ByHand,
    Sgd,
    assert_global_track_is_fedavgs,
    assert_learns_alone,
    assert_resumes,
    assert_stacks,
    check,
    federation_of,
    initial,
    of,
    slopes,
)
from torch import nn

from fedfeat.algorithms import apfl
from fedfeat.algorithms.apfl import APFLClient, MixedModel
from fedfeat.params import WeightedMean

ALPHA = 0.3


def normed():
    return network_of(nn.BatchNorm1d(4), nn.Linear(4, 3))


def mixed(alpha, v, w):
    return {name: alpha * v[name] + (1 - alpha) * w[name] for name in NAMES}


class Apfl(ByHand):
    """v and alpha are kept; an own optimizer each for v and w."""

    def __init__(self, alpha=ALPHA, adaptive=False):
        self.alpha, self.adaptive = alpha, adaptive

    def kept(self, memory):
        return memory or (initial(), torch.tensor(self.alpha).double())

    def turn(self, w, memory, x, y, steps):
        v, alpha = self.kept(memory)
        if self.adaptive:
            slope = slopes(mixed(alpha, v, w), x, y)
            along = sum(((v[name] - w[name]) * slope[name]).sum() for name in NAMES)
            alpha = (alpha - LR * along).clamp(0, 1)
        own, (first, second) = w, (Sgd(), Sgd())
        for _ in range(steps):
            slope = slopes(mixed(alpha, v, own), x, y)
            v, own = (
                first.step(v, {name: alpha * slope[name] for name in NAMES}),
                second.step(own, slopes(own, x, y)),
            )
        return own, (v, alpha), mixed(alpha, v, own)

    def own(self, w, memory, x, y):
        v, alpha = self.kept(memory)
        return mixed(alpha, v, w)


@pytest.mark.parametrize("adaptive", [False, True])
def test_rounds_by_hand(adaptive, tmp_path):
    federation, _ = check(tmp_path, Apfl(adaptive=adaptive), of(APFLClient, alpha=ALPHA, adaptive=adaptive))
    found = {float(federation.store.get(k).memory.alpha) for k in range(3)}
    assert len(found) == (3 if adaptive else 1)


@pytest.mark.parametrize("part", [2, 3])
def test_alpha_does_not_depend_on_the_parts_that_examples_are_passed_in(part, tmp_path, monkeypatch):
    monkeypatch.setattr(apfl, "_PART", part)
    check(tmp_path, Apfl(adaptive=True), of(APFLClient, alpha=ALPHA, adaptive=True))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_global_track_is_fedavg_bit_for_bit(alpha, tmp_path):
    assert_global_track_is_fedavgs(tmp_path, of(APFLClient, alpha=alpha))


@pytest.mark.parametrize("network", [{}, {"build_model": normed}], ids=["plain", "batch norm"])
def test_with_alpha_0_the_own_model_is_fedavgs(network, tmp_path):
    """Its running statistics too, of who was absent for rounds or has never taken part."""
    federation = federation_of(tmp_path, of(APFLClient, alpha=0.0), **HARD | network)
    records = federation.run()[1]
    for record in records:
        for row in record.clients:
            assert (row.personal_acc, row.personal_loss) == (row.global_acc, row.global_loss)
    assert len({record.metrics["global/loss"] for record in records}) == ROUNDS + 1


def test_with_alpha_1_clients_learn_alone_bit_for_bit(tmp_path):
    assert_learns_alone(tmp_path, of(APFLClient, alpha=1.0))


def test_alpha_stays_between_0_and_1(tmp_path):
    """A rate at which it would leave."""
    federation = federation_of(tmp_path, of(APFLClient, adaptive=True), lr=30.0, momentum=0.0)
    federation.run()
    found = [float(federation.store.get(k).memory.alpha) for k in federation.store]
    assert all(0 <= alpha <= 1 for alpha in found)
    assert {0.0, 1.0} & set(found)


@pytest.mark.parametrize("adaptive", [False, True])
def test_messages_are_those_of_fedavg_and_the_work_is_twice_as_much(adaptive, tmp_path):
    """43 numbers of 8 bytes each way; 170 FLOPs for each model, once more for an adaptive alpha."""
    last = federation_of(tmp_path, of(APFLClient, adaptive=adaptive)).run()[1][-1].metrics
    seen = sum(SIZES[k] for t in range(ROUNDS) for k in sample_cohort(0, t, 3, 2))
    assert last["comm/down_bytes"] == last["comm/up_bytes"] == ROUNDS * 2 * 43 * 8
    assert last["compute/flops"] == (2 * EPOCHS + adaptive) * seen * 170


@pytest.mark.parametrize("adaptive", [False, True])
def test_turns_are_stacked_as_they_are_alone(adaptive, tmp_path):
    assert_stacks(tmp_path, of(APFLClient, alpha=ALPHA, adaptive=adaptive))


def test_a_run_goes_on_from_its_middle_with_what_clients_keep(tmp_path):
    assert_resumes(tmp_path, of(APFLClient, alpha=ALPHA, adaptive=True))


ADD = WeightedMean.add
RECEIVE, UPLOAD, MIXED, MOVE = (
    APFLClient.receive,
    APFLClient.upload,
    APFLClient._mixed,
    APFLClient._move_alpha,
)


def swapped(self, alpha=None):
    share = self.mix.alpha if alpha is None else alpha
    return MIXED(self, 1 - share)


def straight(self, alpha=None):
    """Without the factor alpha in the gradient."""
    found, own = MIXED(self, alpha), self.own.named_tensors()
    if alpha is not None:
        return found
    return {name: tensor.detach() + own[name] - own[name].detach() for name, tensor in found.items()}


def first_alpha(self, turn, tensors):
    payload, memory = UPLOAD(self, turn, tensors)
    return payload, MixedModel(memory.params, self._initial.alpha)


def uphill(self, turn):
    MOVE(self, turn._replace(lr=-turn.lr))


BUGS = {
    "shares swapped": [(APFLClient, "_mixed", swapped)],
    "gradient without alpha": [(APFLClient, "_mixed", straight)],
    "memory forgotten": [(APFLClient, "receive", lambda self, payload, memory: RECEIVE(self, payload, None))],
    "alpha forgotten": [(APFLClient, "upload", first_alpha)],
    "alpha uphill": [(APFLClient, "_move_alpha", uphill)],
    "own part scored alone": [(APFLClient, "predict", lambda self, inputs: self.own(inputs))],
    "mean without weights": [(WeightedMean, "add", lambda self, params, weight: ADD(self, params, 1))],
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    for owner, attribute, mutant in BUGS[bug]:
        monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        check(tmp_path, Apfl(adaptive=True), of(APFLClient, alpha=ALPHA, adaptive=True))


def test_alpha_is_never_of_half_precision():
    """Around .5 bfloat16 has no number within .001, and a usual step is smaller."""
    mix = apfl._Mix(0.501)
    assert [float(mix.to(dtype).alpha) for dtype in (torch.bfloat16, torch.float16)] == [
        pytest.approx(0.501)
    ] * 2
    assert mix.alpha.dtype == torch.float32
    assert mix.to(torch.float64).alpha.dtype == torch.float64
    assert mix.to("meta").alpha.is_meta
