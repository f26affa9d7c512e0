"""FedHeNN through the real loop: by hand, where it is another method, and planted bugs."""

import math
from functools import partial

import pytest
import torch
from harness import SIZES, parties, turn_of
from henn_rounds import (
    LR,
    NAMES,
    RAD,
    ROUNDS,
    SETTINGS,
    STEPS,
    Setting,
    build,
    check,
    federation_of,
    pooled,
    seeded,
    shared_inputs,
)

from fedfeat import tree
from fedfeat.algorithms import fedhenn_hetero
from fedfeat.algorithms import shared_inputs as shared
from fedfeat.algorithms.fedhenn import AlignedWeights, FedHeNNClient
from fedfeat.algorithms.fedhenn_hetero import FedHeNNHeteroServer
from fedfeat.algorithms.shared_inputs import SharedInputsServer
from fedfeat.client import ClientModule
from fedfeat.features import alignment
from fedfeat.features.alignment import AlignmentTerm
from fedfeat.features.cka import Target, cka
from fedfeat.features.kernels import Kernel, KernelMean, gaussian_kernel, kernel_of
from fedfeat.models.cnn import digits_cnn
from fedfeat.models.network import Network
from fedfeat.params import WeightedMean, copy_into

PLAN = {"lr": LR, "num_rounds": ROUNDS, "local_epochs": STEPS, "cohort_size": 2}


@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_by_hand(name, tmp_path):
    check(SETTINGS[name], tmp_path)


def test_the_cohorts_of_these_rounds_leave_clients_out(tmp_path):
    """Otherwise nothing above would say what becomes of a client that has not been sampled yet."""
    federation = federation_of(SETTINGS["heterogeneous, one by one"], tmp_path)
    _, records = federation.run()
    cohorts = [record.cohort for record in records[1:]]
    assert len(set(cohorts)) > 1
    assert len(set().union(*cohorts[:-1])) < 3


def test_without_weight_alike_clients_are_fedavg_bit_for_bit(tmp_path):
    options = {"batch_size": 2, "momentum": 0.9}
    henn = federation_of(Setting(dropout=0.3), tmp_path / "a", eta0=0.0, **options).run()
    fedavg = parties(
        tmp_path / "b", build_model=lambda: seeded(lambda: build("small", 0.3)), **(PLAN | options)
    ).run()
    assert tree.sha256(henn[0][-1].state.average.params) == tree.sha256(fedavg[0][-1].state.params)
    for ours, theirs in zip(henn[1], fedavg[1], strict=True):
        for name in ("global/loss", "train/loss", "comm/total_bytes", "compute/flops"):
            assert ours.metrics.get(name) == theirs.metrics.get(name), name
    assert len({record.metrics["global/loss"] for record in henn[1]}) == ROUNDS + 1


def test_without_weight_unequal_clients_learn_alone_bit_for_bit(tmp_path):
    options = {"batch_size": 2, "momentum": 0.9}
    henn = federation_of(Setting(hetero=True), tmp_path / "a", eta0=0.0, **options)
    local = parties(
        tmp_path / "b",
        client=lambda **more: ClientModule(personal=["all"], **more),
        networks=pooled(),
        **(PLAN | options),
    )
    found, expected = henn.run()[1], local.run()[1]
    assert list(henn.store) == list(local.store) == [0, 1, 2]
    for k in range(3):
        assert tree.sha256(henn.store.get(k).memory.params) == tree.sha256(local.store.get(k).personal)
    for ours, theirs in zip(found, expected, strict=True):
        for name in ("personal/acc_mean", "train/loss", "comm/down_bytes", "compute/flops"):
            assert ours.metrics.get(name) == theirs.metrics.get(name), name
    # The paper's clients upload their weights, which local ones do not; 43 and 73 numbers.
    sizes = {"small": 4 * 5 + 5 + 5 * 3 + 3, "deep": 4 * 6 + 6 + 6 * 4 + 4 + 4 * 3 + 3}
    sent = sum(4 * sizes[NAMES[k]] for record in found for k in record.cohort)
    assert found[-1].metrics["comm/up_bytes"] == sent > 0 == expected[-1].metrics["comm/up_bytes"]


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("sqrt", [0, 1, math.sqrt(2)]),
        ("linear", [0, 1, 2]),
        ("const", [1, 1, 1]),
        ("log", [0, math.log(2), math.log(3)]),
    ],
)
def test_the_weight_over_the_rounds(schedule, values):
    server = FedHeNNHeteroServer(eta0=3.0, eta_schedule=schedule)
    assert [server.eta(t) for t in range(3)] == pytest.approx([3 * value for value in values])
    assert [server.survey(None, t) is None for t in range(3)] == [value == 0 for value in values]


@pytest.mark.parametrize("hetero", [False, True])
def test_bytes_are_inputs_target_and_weights(hetero, tmp_path):
    """From round 1 on: 7 inputs of 4 numbers, and factors of the mean kernel of 7 inputs, 5 + 6 + 5 > 7 wide, or K."""
    federation = federation_of(Setting(hetero=hetero, cohort_size=3), tmp_path)
    before, last = (record.metrics for record in federation.run()[1][-2:])
    down = 3 * 4 * (7 * 4 + 7 * 7 if hetero else 7 * 4 + 43)
    up = 4 * (43 + 73 + 43 if hetero else 3 * 43)
    assert last["comm/down_bytes"] - before["comm/down_bytes"] == down
    assert last["comm/up_bytes"] - before["comm/up_bytes"] == up


@pytest.mark.parametrize(("rad_batch", "rad_every", "terms"), [(None, 1, 7 * 3), (5, 2, 5 * 2)])
def test_flops_of_both_kinds(rad_batch, rad_every, terms, tmp_path):
    """Forward 2 (4 5 + 5 3) = 70; back to the weights as much, to the hidden layer 2 5 3 = 30; the deep one 120, 72.

    Alike each client represents the 7 inputs once by the received model; else every client does, by its own.
    """
    small, deep = 70 + 70 + 30, 120 + 120 + 72
    for hetero, per_step in ((False, [small] * 3), (True, [small, deep, small])):
        setting = Setting(hetero=hetero, rad_batch=rad_batch, rad_every=rad_every, cohort_size=3)
        records = federation_of(setting, tmp_path / str(hetero)).run()[1]
        first, second = (records[i + 1].metrics["compute/flops"] for i in range(2))
        trained = sum(STEPS * size * cost for size, cost in zip(SIZES, per_step, strict=True))
        asked = 7 * (70 + 120 + 70) if hetero else 3 * 7 * 70
        assert first == trained
        assert second - first == trained + asked + terms * sum(per_step)


def test_a_small_step_with_the_term_alone_brings_the_representations_closer(tmp_path):
    federation = federation_of(Setting(hetero=True, cohort_size=3), tmp_path, eta0=1.0, num_rounds=1, lr=0.01)
    worker = federation.executor.worker
    rad = shared_inputs(federation.data, 1).float()
    mean = KernelMean()
    for k in range(3):
        mean.add(kernel_of(worker.module_of(k).represent(rad).detach()))
    payload = AlignedWeights({}, rad, mean.result(), eta=1e4)
    module = worker.module_of(1)
    module.receive(payload, None)
    module.begin_turn(turn_of(payload))
    module.prepare(None)

    def distance():
        return module.term.distance(module.represent)

    before = distance()
    before.backward()
    with torch.no_grad():
        for parameter in module.model.parameters():
            parameter -= 0 if parameter.grad is None else 0.01 * parameter.grad
    assert module.model.last_layer.weight.grad is None
    assert 0 < distance() < before < 1


def test_a_state_is_a_value_and_holds_no_inputs_between_rounds(tmp_path):
    federation = federation_of(Setting(), tmp_path)
    steps, _ = federation.run()
    digests = [tree.sha256(step.state) for step in steps]
    again, _ = federation_of(Setting(), tmp_path / "again").run(steps[1])
    assert [tree.sha256(step.state) for step in steps] == digests
    assert tree.sha256(again[-1].state) == digests[-1]
    assert all(step.state.inputs is step.state.target is None for step in steps)
    assert [step.state.round_idx for step in steps] == list(range(ROUNDS + 1))


def test_nothing_shared_outlives_a_turn(tmp_path):
    """Modules of a pool wait long for their next turn, and a target is m x m."""
    federation = federation_of(Setting(hetero=True), tmp_path)
    federation.run()
    for k in range(3):
        module = federation.executor.worker.module_of(k)
        term = module.term
        assert tree.num_bytes((module._sent, term._inputs)) == 0
        assert term._target_of is term._fixed is None


PARTS = ["homogeneous", "homogeneous, rbf", "heterogeneous", "heterogeneous, some inputs"]


@pytest.mark.parametrize("name", PARTS)
def test_inputs_pass_in_parts(name, tmp_path, monkeypatch):
    """7 inputs as 3, 3 and 1, and 5 as 3 and 2: the rounds by hand, which know no parts."""
    sizes, represent = set(), FedHeNNClient.represent

    def noted(self, inputs):
        sizes.add(len(inputs))
        return represent(self, inputs)

    monkeypatch.setattr(alignment, "PART", 3)
    monkeypatch.setattr(FedHeNNClient, "represent", noted)
    check(SETTINGS[name], tmp_path)
    assert sizes == ({3, 2, 7} if "some" in name else {3, 1} if "homo" in name else {3, 1, 7})


@pytest.mark.parametrize(("norm", "sizes"), [("bn", [7]), ("gn", [3, 3, 1])])
def test_inputs_that_meet_in_a_layer_stay_together(norm, sizes, monkeypatch):
    seen, represent = [], FedHeNNClient.represent
    monkeypatch.setattr(alignment, "PART", 3)
    monkeypatch.setattr(FedHeNNClient, "represent", lambda self, x: seen.append(len(x)) or represent(self, x))
    network = digits_cnn((1, 8, 8), 10, norm=norm)
    module = FedHeNNClient(model=network, optimizer=partial(torch.optim.SGD, lr=0.1))
    inputs = torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    found = module.term._in_parts(module.represent, inputs)
    assert seen == sizes
    torch.testing.assert_close(found, network.representation(inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rad_batch", "made"), [(None, 2), (RAD, 2), (5, 0)])
def test_a_target_of_all_inputs_is_made_once_per_turn(rad_batch, made, tmp_path, monkeypatch):
    """Rounds 1 and 2 of one client each have the term in 3 steps, round 0 has none."""
    targets = []
    monkeypatch.setattr(alignment, "Target", lambda *both: targets.append(both) or Target(*both))
    setting = Setting(hetero=True, cohort_size=1, rad_batch=rad_batch)
    federation_of(setting, tmp_path, num_rounds=3).run()
    assert len(targets) == made


def distance_to(target):
    def distance(self, represent):
        own = kernel_of(represent(self._inputs))
        return 1.0 - cka(own, target(self, own), self._hsic)

    return distance


PREPARE, RECEIVE, ADD = FedHeNNClient.prepare, FedHeNNClient.receive, WeightedMean.add
SURVEY, AGGREGATE = SharedInputsServer.survey, FedHeNNHeteroServer.aggregate
HETERO, RESTRICT, REPRESENT = FedHeNNHeteroServer.__init__, Kernel.restrict, FedHeNNClient.represent


def target_in_training_mode(self, batches):
    self.eval = self.train
    return PREPARE(self, batches)


def over(whom):
    """A server half that asks others for their kernels than the configuration says."""

    def init(self, *arguments, **more):
        HETERO(self, *arguments, **more)
        self.kbar_over = whom

    return init


def first_ones_for_ever(self, state, updates):
    found = AGGREGATE(self, state, updates)
    return found._replace(trained=state.trained or found.trained)


def mixed_memories(self, payload, memory):
    copy_into(self.model, payload.params)


def from_the_beginning(self, payload, memory):
    RECEIVE(self, payload, None)


def other_rows(self, rows):
    return RESTRICT(self, rows.flip(0))


def first_target_for_ever():
    kept = {}
    return lambda kernel, estimator: kept.setdefault(kernel.num_instances, Target(kernel, estimator))


def no_gradient(self, inputs):
    return REPRESENT(self, inputs).detach()


def after_dropout(self, inputs):
    """Representations after the dropout in front of the last layer."""
    return self.network.last_input(inputs)


def width_of_the_default(representation, kernel, sigma_factor):
    return kernel_of(representation, kernel)


def not_after_the_last_round(self, state, round_idx):
    return SURVEY(self, state, round_idx) if round_idx < ROUNDS else None


BUGS = {
    "gradient through the target": (
        "homogeneous",
        [(AlignmentTerm, "distance", distance_to(lambda self, own: own))],
    ),
    "target of the new model": (
        "homogeneous",
        [(AlignmentTerm, "distance", distance_to(lambda self, own: Kernel(own.values.detach(), own.dense)))],
    ),
    "no gradient": ("heterogeneous", [(FedHeNNClient, "represent", no_gradient)]),
    "target in training mode": (
        "homogeneous, dropout",
        [(FedHeNNClient, "prepare", target_in_training_mode)],
    ),
    "term in round 0": ("heterogeneous", [(shared, "ETA_SCHEDULES", {"sqrt": lambda t: math.sqrt(t + 1)})]),
    "weight without the root": ("homogeneous", [(shared, "ETA_SCHEDULES", {"sqrt": float})]),
    "mean over participants": ("heterogeneous", [(FedHeNNHeteroServer, "__init__", over("participants"))]),
    "mean over all": ("heterogeneous, participants", [(FedHeNNHeteroServer, "__init__", over("all"))]),
    "this round's instead of the last": (
        "heterogeneous, last participants",
        [(FedHeNNHeteroServer, "__init__", over("participants"))],
    ),
    "last instead of this round's": (
        "heterogeneous, participants",
        [(FedHeNNHeteroServer, "__init__", over("last_participants"))],
    ),
    "the first participants for ever": (
        "heterogeneous, last participants, one by one",
        [(FedHeNNHeteroServer, "aggregate", first_ones_for_ever)],
    ),
    "memories mixed": ("heterogeneous", [(FedHeNNClient, "receive", mixed_memories)]),
    "memories forgotten": ("heterogeneous", [(FedHeNNClient, "receive", from_the_beginning)]),
    "mean without weights": (
        "homogeneous",
        [(WeightedMean, "add", lambda self, params, weight: ADD(self, params, 1))],
    ),
    "personal model is the average": (
        "homogeneous",
        [(FedHeNNClient, "recall", lambda self, payload, memory: self.receive(payload, None))],
    ),
    "target of the turn before": ("homogeneous", [(alignment, "Target", first_target_for_ever())]),
    "representation after dropout": ("homogeneous, dropout", [(FedHeNNClient, "represent", after_dropout)]),
    "penultimate instead of features": (
        "heterogeneous, features",
        [(Network, "feature_vector", Network.representation)],
    ),
    "logits of the public code without dropout": (
        "homogeneous, swapped",
        [(Network, "last_input", Network.representation)],
    ),
    "a client's own width": (
        "homogeneous, rbf of 0.8",
        [(alignment, "kernel_of", width_of_the_default)],
    ),
    "the clients' own width": (
        "heterogeneous, rbf of 0.8",
        [(alignment, "kernel_of", width_of_the_default)],
    ),
    "the server's own width": (
        "heterogeneous, rbf of 0.8",
        [(fedhenn_hetero, "gaussian_kernel", lambda linear, sigma_factor: gaussian_kernel(linear, 0.4))],
    ),
    "no term after the last round": (
        "homogeneous, then all",
        [(SharedInputsServer, "survey", not_after_the_last_round)],
    ),
    "no target after the last round": (
        "heterogeneous, then all",
        [(SharedInputsServer, "survey", not_after_the_last_round)],
    ),
    "rows of the target mixed up": ("heterogeneous, some inputs", [(Kernel, "restrict", other_rows)]),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    name, mutants = BUGS[bug]
    for owner, attribute, mutant in mutants:
        monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        check(SETTINGS[name], tmp_path)
