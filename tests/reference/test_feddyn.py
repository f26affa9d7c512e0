"""FedDyn: Algorithm 1 in NumPy, FedAvg at alpha = 0, exact minimisers, and what holds of h in every round."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from float64_runs import assert_stacks, steps_of
from float64_runs import run as run_config
from harness import LR, SIZES, make_data, parties, turn_of
from linear_rounds import (
    ZERO,
    Quadratic,
    Steps,
    added,
    assert_pairs,
    goes_on,
    mean,
    means_of,
    with_batch_norm,
)
from torch import nn

from fedfeat import tree
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.feddyn import Dual, FedDynClient, FedDynServer
from fedfeat.algorithms.fedprox import FedProxClient
from fedfeat.client import joined
from fedfeat.errors import UserError
from fedfeat.models.mlp import mlp
from fedfeat.rounds.sampling import sample_stragglers, straggler_steps
from fedfeat.types import Federation, Update, Weights

DOUBLE = {"precision": "64-true"}
FED2 = "algorithm/server@algorithm.server.average=fed2"


def two_layers(dropout=0.0):
    torch.manual_seed(1)
    return mlp((4,), 3, hidden=[5], dropout=dropout)


def halves(alpha, weighting="samples"):
    return {
        "client": partial(FedDynClient, alpha=alpha),
        "server": FedDynServer(FedAvgServer(weighting), alpha),
    }


def federation_of(folder, *, alpha=0.3, weighting="samples", **plan):
    """Two of three unequal clients a round, 4 full-batch steps each, fewer for stragglers."""
    arguments = {"num_rounds": 5, "local_epochs": 4, "cohort_size": 2, "straggler_fraction": 0.5}
    return parties(folder, **(halves(alpha, weighting) | arguments | DOUBLE | plan))


def by_hand(federation, cohorts, *, alpha=0.3, weighting="samples", **solver):
    """Algorithm 1: theta, the mean of the participants, h and all g_k after each cohort."""
    theta, h, own = ZERO, ZERO, dict.fromkeys(range(len(SIZES)), ZERO)
    data, plan = federation.data, federation.plan
    weights = np.array(SIZES if weighting == "samples" else (1, 1, 1), dtype=float)
    for round_idx, cohort in enumerate(cohorts):
        lr = LR * plan.lr_factor(round_idx, plan.num_rounds)
        late = sample_stragglers(0, round_idx, cohort, plan.straggler_fraction)
        ends = {}
        for k in cohort:
            count = straggler_steps(0, round_idx, k, 4, 1) if k in late else 4
            minus = added((-1, own[k]))
            ends[k] = Steps(
                data, k, theta, count, lr=lr, mu=alpha, further=lambda y, g=minus: g, **solver
            ).end
            own[k] = added((1, own[k]), (-alpha, ends[k]), (alpha, theta))
        steps = [(-alpha * weights[k] / weights.sum(), added((1, ends[k]), (-1, theta))) for k in cohort]
        h = added((1, h), *steps)
        among = mean(list(ends.values()), weights[list(cohort)])
        theta = added((1, among), (-1 / alpha, h))
        yield theta, among, h, dict(own)


SETTINGS = {
    "the paper's": {"weighting": "uniform"},
    "sample weights": {},
    "another alpha": {"alpha": 1.3},
    "momentum": {"momentum": 0.6, "weighting": "uniform"},
}


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_of_some_of_unequal_clients_by_hand(name, scheduled, tmp_path):
    plan = {"lr_factor": lambda round_idx, _: 1 / (1 + round_idx)} if scheduled else {}
    federation = federation_of(tmp_path, **SETTINGS[name], **plan)
    steps, records = federation.run()
    cohorts = [record.cohort for record in records[1:]]
    assert len(set(cohorts)) > 1
    expected = list(by_hand(federation, cohorts, **SETTINGS[name]))
    for step, (theta, among, h, _) in zip(steps[1:], expected, strict=True):
        assert_pairs(step.state.theta, theta)
        assert_pairs(federation.server.global_payload(step.state).params, theta)
        assert_pairs(step.state.average.params, among)
        assert_pairs(step.state.dual, h)
    for k in federation.store:
        kept = federation.store.get(k)
        assert isinstance(kept.memory, Dual)
        assert kept.personal == kept.optimizer == {}
        assert_pairs(kept.memory.gradient, expected[-1][-1][k])


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_alpha_0_is_fedavg_bit_for_bit(weighting, tmp_path):
    plan = {
        "build_model": partial(two_layers, 0.3),
        "batch_size": 2,
        "num_rounds": 3,
        "cohort_size": 2,
        "momentum": 0.9,
    }
    found = parties(tmp_path / "a", **halves(0.0, weighting), **plan)
    left, right = found.run(), parties(tmp_path / "b", server=FedAvgServer(weighting), **plan).run()
    for mine, its in zip(left[0], right[0], strict=True):
        params = found.server.broadcast(mine.state, 0).params
        assert tree.sha256(params) == tree.sha256(its.state.params)
    assert len(found.store) == 0
    names = ("train/loss", "global/loss", "comm/total_bytes")
    for mine, its in zip(left[1][1:], right[1][1:], strict=True):
        assert [mine.metrics[name] for name in names] == [its.metrics[name] for name in names]
        assert mine.metrics["global/cohort_mean_loss"] == its.metrics["global/loss"]


def test_a_small_alpha_is_not_fedavg(tmp_path):
    """h / alpha, the sum of all drifts over N, does not depend on it."""
    plan = {"num_rounds": 2, "local_epochs": 2} | DOUBLE
    tiny = parties(tmp_path / "a", **halves(1e-9), **plan).run()[0][-1].state.theta
    plain = parties(tmp_path / "b", **plan).run()[0][-1].state.params
    assert max(float((tiny[key] - tensor).abs().max()) for key, tensor in plain.items()) > 0.05


class QuadraticDyn(FedDynClient, Quadratic):
    """The same, regularised."""


def test_exact_minimisers_have_their_gradients_for_duals_and_lead_to_the_optimum(tmp_path):
    """A step of 1 / (1 + alpha) leads from anywhere to the minimum of a regularised quadratic."""
    alpha = 0.7
    plan = {"lr": 1 / (1 + alpha), "num_rounds": 60, "cohort_size": 2, "eval_every": 60} | DOUBLE
    federation = parties(tmp_path, **(halves(alpha) | {"client": partial(QuadraticDyn, alpha=alpha)}), **plan)
    centres, optimum = means_of(federation.data)
    ends = {}
    aggregate = federation.server.aggregate

    def noting(state, updates):
        return aggregate(state, (ends.update({u.client_id: u.payload.params}) or u for u in updates))

    federation.server.aggregate = noting
    for progress, record in federation.rounds():
        theta = progress.state.theta
        for k in record.cohort:
            gradient = federation.store.get(k).memory.gradient
            weight, bias = ends[k]
            torch.testing.assert_close(gradient[weight], ends[k][weight] - centres[k], rtol=0, atol=1e-12)
            torch.testing.assert_close(gradient[bias], ends[k][bias], rtol=0, atol=1e-12)
    torch.testing.assert_close(theta[weight], optimum.repeat(3, 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_h_is_the_mean_of_all_duals_after_every_round(weighting, tmp_path):
    """Of five clients two take part; those that never have are zero."""
    data = make_data((3, 5, 8, 2, 6))
    plan = {
        "data": data,
        "build_model": two_layers,
        "batch_size": 2,
        "cohort_size": 2,
        "num_rounds": 5,
    } | DOUBLE
    federation = parties(tmp_path, **halves(0.4, weighting), **plan)
    weights = [data.num_examples(k) if weighting == "samples" else 1 for k in range(5)]
    seen = set()
    for step, record in federation.rounds():
        seen |= set(record.cohort)
        assert set(federation.store) == seen
        for key, tensor in step.state.dual.items():
            kept = [(weights[k], federation.store.get(k).memory.gradient[key]) for k in federation.store]
            expected = sum((w * g for w, g in kept), start=torch.zeros_like(tensor)) / sum(weights)
            torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-13)
    assert len(seen) > 2


def loss_of(federation, params):
    """Mean cross-entropy on the test set of a softmax regression."""
    weight, bias = (tensor.double() for tensor in params.values())
    test = federation.data.dataset.test
    return float(nn.functional.cross_entropy(test.inputs.double() @ weight.T + bias, test.labels))


def test_theta_and_the_mean_of_the_participants_are_scored(tmp_path):
    federation = federation_of(tmp_path)
    for step, record in federation.rounds():
        theta, among = step.state.theta, step.state.average.params
        assert record.metrics["global/loss"] == pytest.approx(loss_of(federation, theta), abs=1e-12)
        assert record.metrics["global/cohort_mean_loss"] == pytest.approx(
            loss_of(federation, among), abs=1e-12
        )
        assert 0 <= record.metrics["global/cohort_mean_acc"] <= 1
    assert abs(record.metrics["global/loss"] - record.metrics["global/cohort_mean_loss"]) > 1e-3


def test_so_they_are_on_validation_data_and_not_where_a_part_is_personal(tmp_path):
    plan = ("algorithm=feddyn", "federation.num_rounds=1")
    _, records = run_config(tmp_path / "a", *plan, "partition.val_fraction=0.2")
    names = {
        "global/cohort_mean_acc",
        "global/cohort_mean_loss",
        "val/cohort_mean_acc",
        "val/cohort_mean_loss",
    }
    for record in records:
        assert {name for name in record.metrics if "cohort_mean" in name} == names
    assert records[0].metrics["val/cohort_mean_loss"] == records[0].metrics["val/loss"]
    assert records[1].metrics["val/cohort_mean_loss"] != records[1].metrics["val/loss"]
    _, records = run_config(tmp_path / "b", *plan, "algorithm.client.personal=[last]")
    assert not any("global" in name for name in records[-1].metrics)


def test_messages_are_those_of_fedavg(tmp_path):
    federation = parties(tmp_path, **halves(0.2), cohort_size=2, num_rounds=3)
    _, records = federation.run()
    assert records[-1].metrics["comm/up_bytes"] == records[-1].metrics["comm/down_bytes"] == 3 * 2 * 15 * 4
    assert all(tree.num_bytes(federation.store.get(k)) == 15 * 4 for k in federation.store)


def test_statistics_are_averaged_and_have_no_dual(tmp_path):
    arguments = halves(0.5) | {"client": partial(FedDynClient, alpha=0.5, personal=["last"])}
    federation = parties(tmp_path, build_model=with_batch_norm, num_rounds=1, **arguments)
    state = federation.run()[0][-1].state
    scales = {"head.all.0.weight", "head.all.0.bias"}
    assert set(state.dual) == set(state.theta) == set(federation.store.get(0).memory.gradient) == scales
    assert set(federation.store.get(0).personal) == {"head.all.1.weight", "head.all.1.bias"}
    _, pooled = means_of(federation.data)
    sent = federation.server.broadcast(state, 0).params
    torch.testing.assert_close(sent["head.all.0.running_mean"], 0.1 * pooled.float())
    assert sent["head.all.0.num_batches_tracked"].item() == 1
    assert federation.server.global_payload(state) is None


def test_a_round_without_an_update_changes_nothing(tmp_path):
    federation = federation_of(tmp_path, num_rounds=2)
    state = federation.run()[0][-1].state
    assert tree.sha256(federation.server.aggregate(state, iter([]))) == tree.sha256(state)


def test_a_run_goes_on_from_its_middle_with_the_memories(tmp_path):
    assert goes_on(partial(federation_of, momentum=0.5), tmp_path / "cut", tmp_path / "whole")


STACKED = {
    "stragglers": ("scenario=stragglers", "partition=quantity_skew"),
    "Adam": ("optimizer=adam", "federation.local_epochs=1"),
    "groups": (FED2, "structure=grouped", "structure.norm_shared=gn1"),
}


@pytest.mark.parametrize("name", STACKED)
def test_whole_runs_of_stacked_clients_are_those_of_serial(name, tmp_path):
    options = ("algorithm=feddyn", "federation.cohort_size=3", "federation.local_epochs=2", *STACKED[name])
    # Adam divides by roots of tiny second moments.
    tolerance = 1e-8 if name == "Adam" else 1e-12
    assert_stacks(tmp_path, *options, tolerance=tolerance)


@pytest.mark.parametrize("structure", ["grouped", "trimmed"])
def test_each_group_of_h_is_the_mean_over_those_who_count_in_it(structure, tmp_path):
    """By examples; a group that nobody of a cohort holds stays where it is."""
    options = (FED2, f"structure={structure}", "federation.cohort_size=2", "federation.num_rounds=4")
    experiment, steps = steps_of(tmp_path, "algorithm=feddyn", "algorithm.client.alpha=0.3", *options)
    state, counts = steps[-1][0].state, experiment.data.class_counts
    groups, sets = state.average.group_of_row, state.average.class_sets
    kept = {k: experiment.store.get(k).memory.gradient for k in experiment.store}
    held = {k: [g for g, classes in enumerate(sets) if counts[k][list(classes)].sum()] for k in range(4)}
    still = 0
    for key, found in state.dual.items():
        rows = groups[key].tolist() if key in groups else [None] * len(found)
        for row, group in enumerate(rows):
            everyone = [k for k in range(4) if group is None or group in held[k]]
            total = torch.zeros_like(found[row])
            for k in set(everyone) & set(kept):
                whole = group is None or structure == "grouped"
                mine = [r for r, g in enumerate(rows) if whole or g in held[k]]
                total += counts[k].sum() * kept[k][key][mine.index(row)]
            if everyone:
                expected = total / sum(counts[k].sum() for k in everyone)
                torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-13)
            for (before, _), (after, record) in pairwise(steps):
                if not set(record.cohort) & set(everyone):
                    assert torch.equal(before.state.theta[key][row], after.state.theta[key][row])
                    assert torch.equal(before.state.theta[key][row], after.state.average.params[key][row])
                    still += 1
    assert still


def test_a_second_proximal_term_is_refused(tmp_path):
    half = partial(joined, [FedDynClient, FedProxClient], alpha=0.1, mu=0.1)
    federation = parties(tmp_path, client=half, server=halves(0.1)["server"])
    setting = federation.plan.setting("feddyn", False, federation.data)
    with pytest.raises(UserError) as caught:
        federation.executor.worker.module.check(setting)
    assert str(caught.value) == (
        "algorithm/client must have one proximal term for algorithm=feddyn, but it has FedProx's beside that of "
        "algorithm.client.alpha."
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_h_of_many_clients_is_their_sum_in_half_precision_too(dtype):
    """One of 700 a round, each 1 further than theta = 0, with alpha = 1: h is -1 after all of them."""
    model = nn.Linear(1, 1, bias=False).to(dtype)
    nn.init.zeros_(model.weight)
    federation = Federation(700, np.ones(700, int), np.ones((700, 1), int), {"weight": "shared"}, None)
    one = FedDynServer(FedAvgServer("uniform"), alpha=1.0)
    state, theta = one.init(model, federation), {"weight": torch.zeros(1, 1, dtype=dtype)}
    for client_id in range(700):
        update = Update(client_id, 1, Weights({"weight": torch.ones(1, 1, dtype=dtype)}), None, {})
        state = one.aggregate(state, [update])
        assert state.theta["weight"].dtype == dtype
        state = state._replace(theta=theta)
    assert float(state.dual["weight"]) == pytest.approx(-1, abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_g_of_many_rounds_is_their_sum_in_half_precision_too(dtype):
    """A client that ends 1 above theta = 0 in each of 700 rounds, with alpha = 1: g is -700, past 256 too."""
    model = mlp((1,), 2, hidden=[1]).to(dtype)
    half = FedDynClient(model=model, optimizer=partial(torch.optim.SGD, lr=0.1), alpha=1.0)
    names = [name for name, _ in model.named_parameters()]
    theta, memory = {name: torch.zeros_like(p) for name, p in model.named_parameters()}, None
    for _ in range(700):
        turn = turn_of(Weights(theta), memory, num_classes=2)
        _, memory = half.upload(turn, {"model": {name: torch.ones_like(theta[name]) for name in names}})
    assert all(float(memory.gradient[name].flatten()[0]) == -700 for name in names)
