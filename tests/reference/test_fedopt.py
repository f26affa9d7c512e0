"""FedAvgM, FedAdagrad, FedAdam and FedYogi: by hand in NumPy, as FedAvg, around other halves, and planted bugs."""

from functools import partial

import grouped_rounds
import numpy as np
import pytest
import torch
from cut_runs import assert_goes_on
from float64_runs import assert_same
from float64_runs import run as run_configured
from harness import SIZES, assert_close, averaged, network_of, params_of, parties, zeros
from torch import nn

from fedfeat import tree
from fedfeat.algorithms import fedopt
from fedfeat.algorithms.fed2 import Fed2Server
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedfusion import FedFusionClient, FedFusionServer
from fedfeat.algorithms.fedopt import (
    FedAdagradServer,
    FedAdamServer,
    FedAvgMServer,
    FedYogiServer,
)
from fedfeat.client import ClientModule
from fedfeat.errors import ClientError
from fedfeat.models.mlp import mlp
from fedfeat.types import Federation, Update, Weights

ROUNDS = 5
PLAN = {"num_rounds": ROUNDS, "local_epochs": 2, "cohort_size": 2}
ADAM = {"beta1": 0.8, "beta2": 0.9, "tau": 0.03, "lr": 0.05}

SETTINGS = {
    "avgm": (FedAvgMServer, {"beta": 0.6, "lr": 0.7}),
    "adagrad": (FedAdagradServer, {"beta1": 0.0, "tau": 0.03, "lr": 0.05}),
    "adagrad with momentum": (FedAdagradServer, {"beta1": 0.5, "tau": 0.03, "lr": 0.05, "v_init": 0}),
    "adam": (FedAdamServer, ADAM),
    "adam of the code": (FedAdamServer, ADAM | {"v_init": 0, "bias_correction": True}),
    "yogi": (FedYogiServer, ADAM),
    "yogi of the code": (FedYogiServer, ADAM | {"v_init": 0, "bias_correction": True}),
}


class ByHand:
    """One of the optimizers on any arrays, in the form of Kingma and Ba: moments, not the rate, are corrected."""

    def __init__(self, kind, arguments):
        self.kind, self.a = kind, {"v_init": "tau2", "bias_correction": False} | arguments
        self.m, self.t = 0.0, 0
        self.v = self.a["tau"] ** 2 if self.a["v_init"] == "tau2" and "tau" in self.a else 0.0

    def change(self, delta):
        a, self.t = self.a, self.t + 1
        if self.kind is FedAvgMServer:
            self.m = a["beta"] * self.m + delta
            return a["lr"] * self.m
        self.m = self.m + (1 - a["beta1"]) * (delta - self.m)
        square = delta**2
        if self.kind is FedAdagradServer:
            self.v = self.v + square
        elif self.kind is FedAdamServer:
            self.v = self.v + (1 - a["beta2"]) * (square - self.v)
        else:
            towards = np.where(square > self.v, 1.0, np.where(square < self.v, -1.0, 0.0))
            self.v = self.v + (1 - a["beta2"]) * towards * square
        if not a["bias_correction"]:
            return a["lr"] * self.m / (np.sqrt(self.v) + a["tau"])
        m, v = self.m / (1 - a["beta1"] ** self.t), self.v / (1 - a["beta2"] ** self.t)
        return a["lr"] * m / (np.sqrt(v) + a["tau"] / np.sqrt(1 - a["beta2"] ** self.t))


def softmax_params(progress):
    return params_of(progress._replace(state=progress.state.average))


def check(name, store_dir, weighting="samples"):
    """Five rounds of two of three unequal clients in float64, against NumPy; give states and optimizers."""
    kind, arguments = SETTINGS[name]
    server = kind(average=FedAvgServer(weighting), **arguments)
    federation = parties(store_dir, server=server, precision="64-true", **PLAN)
    progress, records = federation.run()
    x, optimizers = zeros(), [ByHand(kind, arguments) for _ in range(2)]
    for step, record in zip(progress[1:], records[1:], strict=True):
        weights = [SIZES[k] for k in record.cohort] if weighting == "samples" else None
        mean = averaged(x, federation.data, record.cohort, weights, num_steps=2)
        x = tuple(old + one.change(new - old) for one, old, new in zip(optimizers, x, mean, strict=True))
        assert_close(softmax_params(step), x, 1e-12)
    assert len({record.cohort for record in records[1:]}) > 1
    return progress, optimizers


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_of_some_of_unequal_clients_by_hand(name, weighting, tmp_path):
    progress, optimizers = check(name, tmp_path, weighting)
    for moments, one in zip(progress[-1].state.moments.values(), optimizers, strict=True):
        np.testing.assert_allclose(moments.m.numpy(), one.m, rtol=0, atol=1e-12)
        assert moments.steps.unique().tolist() == [ROUNDS]
        if name == "avgm":
            assert moments.v is None
        else:
            np.testing.assert_allclose(moments.v.numpy(), one.v, rtol=0, atol=1e-12)


def normed():
    torch.manual_seed(4)
    return network_of(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def final(store_dir, server, **plan):
    arguments = PLAN | {"build_model": normed, "batch_size": 2, "momentum": 0.9, "local_epochs": 1}
    return parties(store_dir, server=server, **(arguments | plan)).run()


def plain(beta=0.0, lr=1.0, average=None):
    return FedAvgMServer(average=average or FedAvgServer(), beta=beta, lr=lr)


def test_no_momentum_and_a_rate_of_one_are_fedavg_bit_for_bit(tmp_path):
    """Batch norm's buffers, its integers among them, too."""
    states = [final(tmp_path / str(i), one)[0][-1].state for i, one in enumerate((FedAvgServer(), plain()))]
    found, expected = states[1].average.params, states[0].params
    assert list(found) == list(expected)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("setting", [{}, {"trim": True}, {"boundary": "paired", "personal": ("head.fc2",)}])
def test_so_they_are_fed2_where_that_averages(setting, tmp_path):
    setting = grouped_rounds.Setting(cohort_size=1, **setting)
    hashes = {
        tree.sha256(server.params(steps[-1].state))
        for i, server in enumerate((Fed2Server(), plain(average=Fed2Server())))
        for steps, _ in [grouped_rounds.federation_of(setting, tmp_path / str(i), server=server).run()]
    }
    assert len(hashes) == 1


def test_a_huge_tau_and_rate_are_fedavg(tmp_path):
    """eta m / (sqrt(v) + tau) is near Delta where both are 1e8 and v starts at 0."""
    server = FedAdamServer(average=FedAvgServer(), beta1=0.0, tau=1e8, lr=1e8, v_init=0)
    runs = [parties(tmp_path / str(i), server=one, precision="64-true", **PLAN).run()[0][-1]
            for i, one in enumerate((server, FedAvgServer()))]  # fmt: skip
    assert_close(softmax_params(runs[0]), params_of(runs[1]), 1e-6)
    assert np.abs(params_of(runs[1])[0]).max() > 0.1


def one_step(server, delta, before=1.0):
    """One round on one number, from one client; give the new state."""
    network = network_of(nn.Linear(4, 3))
    counts = np.ones((1, 3), dtype=np.int64)
    federation = Federation(1, counts.sum(1), counts, dict.fromkeys(network.state_dict(), "shared"), None)
    start = server.init(network, federation)
    params = {key: torch.full_like(w, before) for key, w in server.params(start).items()}
    start = server.with_params(start, params)
    sent = {key: w + delta for key, w in params.items()}
    return start, server.aggregate(start, [Update(0, 3, Weights(sent), None, {})])


def test_from_zero_the_first_step_of_yogi_is_that_of_adam_and_the_second_is_not():
    states = []
    for kind in (FedAdamServer, FedYogiServer):
        server = kind(average=FedAvgServer(), **ADAM, v_init=0)
        _, first = one_step(server, 0.3)
        params = {key: w - 0.1 for key, w in server.params(first).items()}
        states.append((first, server.aggregate(first, [Update(0, 3, Weights(params), None, {})])))
    assert tree.sha256(states[0][0]) == tree.sha256(states[1][0])
    assert tree.sha256(states[0][1]) != tree.sha256(states[1][1])


def test_without_a_change_nothing_moves():
    for kind, arguments in SETTINGS.values():
        start, after = one_step(kind(average=FedAvgServer(), **arguments), 0.0)
        assert tree.sha256(start.average) == tree.sha256(after.average)


def test_a_state_is_a_value_and_a_round_without_updates_changes_nothing():
    server = FedAdamServer(average=FedAvgServer(), **ADAM)
    start, after = one_step(server, 0.5)
    digest = tree.sha256(after)
    server.aggregate(
        after, [Update(0, 3, Weights({k: 2 * w for k, w in server.params(after).items()}), None, {})]
    )
    assert tree.sha256(after) == digest != tree.sha256(start)
    assert server.aggregate(after, []) == after


def test_messages_are_those_of_fedavg_and_clients_keep_nothing(tmp_path):
    """15 numbers of 4 bytes in either direction, of two clients in each of five rounds."""
    server = FedYogiServer(average=FedAvgServer(), **ADAM)
    federation = parties(tmp_path, server=server, **PLAN)
    progress, records = federation.run()
    assert (
        records[-1].metrics["comm/down_bytes"] == records[-1].metrics["comm/up_bytes"] == 15 * 4 * 2 * ROUNDS
    )
    assert not len(federation.store)
    payload = server.broadcast(progress[-1].state, 0)
    assert type(payload) is Weights
    assert tree.sha256(payload) == tree.sha256(server.global_payload(progress[-1].state))


def frozen_first():
    network = normed()
    network.head.all[0].weight.requires_grad_(False)
    return network


def test_only_what_trains_and_is_sent_makes_steps(tmp_path):
    """Buffers have FedAvg's mean, integers its maximum; a frozen layer stays; a personal one never enters."""
    server = FedAdamServer(average=FedAvgServer(), **ADAM)
    client = partial(ClientModule, personal=["last"])
    options = {"build_model": frozen_first, "client": client, "num_rounds": 1}
    found = final(tmp_path / "a", server, **options)[0][-1].state
    expected = final(tmp_path / "b", FedAvgServer(), **options)[0][-1].state
    steps = ["head.all.0.bias", "head.all.1.weight", "head.all.1.bias"]
    assert sorted(found.moments) == sorted(steps)
    assert "head.all.3.weight" not in found.average.params
    for key, mean in expected.params.items():
        assert torch.equal(found.average.params[key], mean) == (key not in steps)
    assert found.average.params["head.all.1.num_batches_tracked"] > 0
    assert server.global_payload(found) is None
    assert list(server.newcomer_payload(found).params) == list(expected.params)


def group_numbers(server, name, class_map, store_dir):
    """Fed2 with one client a round; compare every group with an optimizer of its own, which rests where it does."""
    kind, arguments = SETTINGS[name]
    setting = grouped_rounds.Setting(class_map=class_map, cohort_size=1)
    federation = grouped_rounds.federation_of(
        setting, store_dir, server=server, num_rounds=9, seed=1, precision="64-true"
    )
    progress, records = federation.run()
    groups = progress[0].state.average.group_of_row
    counts = federation.data.class_counts
    ones = {key: {} for key in progress[0].state.moments}
    absent = 0
    for before, after, record in zip(progress, progress[1:], records[1:], strict=False):
        (client,) = record.cohort
        held = [any(counts[client, c] for c in classes) for classes in class_map]
        absent += held.count(False)
        update = federation.executor.worker.fit(
            federation.plan.task(
                record.round_idx - 1,
                client,
                2,
                server.broadcast(before.state, client),
                federation.store.get(client),
            )
        )
        for key, by_group in ones.items():
            old, new = (one.state.average.params[key].numpy() for one in (before, after))
            rows = groups[key].numpy() if key in groups else np.zeros(len(old), dtype=int)
            for g in np.unique(rows):
                mine = rows == g
                if key in groups and not held[g]:
                    np.testing.assert_array_equal(new[mine], old[mine])
                    continue
                one = by_group.setdefault(g, ByHand(kind, arguments))
                delta = update.payload.params[key].numpy()[mine] - old[mine]
                np.testing.assert_allclose(new[mine], old[mine] + one.change(delta), rtol=0, atol=1e-10)
                assert set(after.state.moments[key].steps.numpy()[mine]) == {one.t}
    assert absent > 2
    made = {g: one.t for g, one in ones["head.fc1.linear.weight"].items()}
    assert len(set(made.values())) == len(made) == len(class_map)


@pytest.mark.parametrize("class_map", [grouped_rounds.ONE_EACH, grouped_rounds.PAIR_AND_ONE])
@pytest.mark.parametrize("name", ["avgm", "adam of the code", "yogi"])
def test_a_group_that_nobody_sends_keeps_its_value_and_its_moments(name, class_map, tmp_path):
    kind, arguments = SETTINGS[name]
    group_numbers(kind(average=Fed2Server(), **arguments), name, class_map, tmp_path)


def test_fedfusion_around_fedadam_smooths_lambda_after_its_step(tmp_path):
    inner = FedAdamServer(average=FedAvgServer(), **ADAM)
    server = FedFusionServer(inner, ema=0.75)
    client = partial(FedFusionClient, op="multi", lambda_init=0.3)
    federation = parties(
        tmp_path, client=client, server=server, build_model=partial(mlp, (4,), 3, hidden=[5]), num_rounds=1
    )
    start = federation.start().state
    tasks = [federation.plan.task(0, k, 2, server.broadcast(start, k), None) for k in range(3)]
    updates = list(map(federation.executor.worker.fit, tasks))
    stepped = inner.params(inner.aggregate(start.average, updates))
    found = inner.params(server.aggregate(start, updates).average)
    key = "fusion.operator.lambdas"
    torch.testing.assert_close(found[key], 0.75 * inner.params(start.average)[key] + 0.25 * stepped[key])
    assert not torch.equal(stepped[key], inner.params(start.average)[key])
    assert all(torch.equal(found[other], stepped[other]) for other in found if other != key)


CONFIGURED = {
    "fedavgm": (),
    "fedadagrad": ("algorithm/client=fedprox",),
    "fedadam_code": ("federation.cohort_size=2",),
    "fedyogi": ("algorithm.client.personal=[last]",),
    "fed2_fedadam": ("structure.norm_shared=none", "federation.cohort_size=1", "federation.num_rounds=4"),
    "fedfusion": ("algorithm/server@algorithm.server.average=fedadam",),
}


@pytest.mark.parametrize("name", CONFIGURED)
def test_stacked_clients_give_what_single_ones_give(name, tmp_path):
    chosen = (f"algorithm={name}", *CONFIGURED[name])
    alone = run_configured(tmp_path / "serial", *chosen)
    assert_same(run_configured(tmp_path / "stacked", *chosen, "executor=vectorized"), alone)


@pytest.mark.parametrize("name", ["fedavgm", "fedadam_code", "fed2_fedadam"])
def test_a_run_goes_on_from_its_middle_with_moments_and_counts(name, cli, small, tmp_path, caplog):
    more = (
        ["model.hidden=[8,6]", "partition=n_classes", "partition.classes_per_client=1"]
        if "fed2" in name
        else []
    )
    words = [*small, f"algorithm={name}", "federation.cohort_size=2", *more]
    assert_goes_on(cli, words, tmp_path / "run", caplog)


BASE, ADAPTIVE = fedopt.FedOptServer, fedopt.AdaptiveServer
STEP, AGGREGATE = ADAPTIVE.step, BASE.aggregate


def forgetful(self, state, updates):
    """Moments are lost between rounds."""
    lost = {key: self.start(old.m) for key, old in state.moments.items()}
    return AGGREGATE(self, state._replace(moments=lost), updates)


def from_the_mean(self, state, updates):
    """The change is added to the mean instead of x."""
    kept = list(updates)
    after = AGGREGATE(self, state, kept)
    before, moved = self.params(state), self.params(after)
    means = self.average.params(self.average.aggregate(state.average, kept))
    return self.with_params(after, {key: means[key] + w - before[key] for key, w in moved.items()})


def inside_the_root(self, delta, old):
    """tau under the root."""
    change, new = STEP(self, delta, old)
    return change * (new.v.sqrt() + self.tau) / (new.v + self.tau).sqrt(), new


def late(t, beta1, beta2):
    """Corrected as in the step after this one."""
    return (1 - beta2 ** (t + 1)).sqrt() / (1 - beta1 ** (t + 1))


BUGS = {
    "the other sign": ("avgm", FedAvgMServer, "step", lambda self, delta, old: STEP_M(self, -delta, old)),
    "damped": ("avgm", FedAvgMServer, "step", lambda self, delta, old: STEP_M(self, (1 - self.beta) * delta, old)),
    "moments forgotten": ("avgm", BASE, "aggregate", forgetful),
    "from the mean": ("adam", BASE, "aggregate", from_the_mean),
    "tau inside the root": ("adagrad", ADAPTIVE, "step", inside_the_root),
    "v from 0": ("adam", ADAPTIVE, "start", lambda self, like: BASE.start(self, like)._replace(v=0 * like)),
    "yogi's sign": ("yogi", FedYogiServer, "second_moment", lambda self, v, square: (
        v + (1 - self.beta2) * square * (v - square).sign())),
    "yogi is adam": ("yogi", FedYogiServer, "second_moment", FedAdamServer.second_moment),
    "corrected late": ("adam of the code", fedopt, "correction", late),
    "not corrected": ("yogi of the code", fedopt, "correction", lambda t, *betas: t**0),
}  # fmt: skip
STEP_M = FedAvgMServer.step


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    name, owner, attribute, mutant = BUGS[bug]
    monkeypatch.setattr(owner, attribute, mutant)
    # A negative v has no root.
    with pytest.raises(ClientError if bug == "yogi's sign" else AssertionError):
        check(name, tmp_path)


@pytest.mark.parametrize("rows", ["nobody is absent", "moments go on"])
def test_a_group_that_moves_in_its_absence_would_be_noticed(rows, tmp_path, monkeypatch):
    if rows == "nobody is absent":
        everything = lambda self, state, cohort: dict.fromkeys(state.params, torch.tensor(True))  # noqa: E731
        monkeypatch.setattr(Fed2Server, "covered", everything)
    else:
        monkeypatch.setattr(fedopt, "_some", lambda rows, new, old: new)
    with pytest.raises(AssertionError):
        group_numbers(
            FedAvgMServer(average=Fed2Server(), **SETTINGS["avgm"][1]), "avgm", [[0], [1], [2]], tmp_path
        )
