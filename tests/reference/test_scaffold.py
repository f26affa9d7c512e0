"""SCAFFOLD: Algorithm 1 in NumPy, what it is when controls are zero, and what holds of c in every round."""

from functools import partial

import numpy as np
import pytest
import torch
from executor_cases import CASES
from executor_cases import run as run_case
from float64_runs import assert_stacks, steps_of
from float64_runs import run as run_config
from harness import LR, SIZES, make_data, parties
from linear_rounds import (
    ZERO,
    Quadratic,
    Steps,
    added,
    assert_pairs,
    coefficients,
    goes_on,
    mean,
    means_of,
    with_batch_norm,
)
from torch import nn

from fedfeat import tree
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedprox import FedProxClient
from fedfeat.algorithms.scaffold import Control, Controlled, ScaffoldClient, ScaffoldServer
from fedfeat.client import joined
from fedfeat.errors import ConfigError
from fedfeat.models.mlp import mlp
from fedfeat.rounds.sampling import sample_stragglers, straggler_steps
from fedfeat.types import Federation, Kept, Update

DOUBLE = {"precision": "64-true"}
FED2 = "algorithm/server@algorithm.server.average=fed2"


def two_layers(dropout=0.0):
    torch.manual_seed(1)
    return mlp((4,), 3, hidden=[5], dropout=dropout)


def server(weighting="samples", eta_g=1.0):
    return ScaffoldServer(FedAvgServer(weighting), eta_g)


def federation_of(
    folder,
    *,
    option="II",
    weighting="samples",
    eta_g=1.0,
    mu=0.0,
    decay=0.0,
    nesterov=False,
    clip=None,
    **plan,
):
    """Two of three unequal clients a round, 4 full-batch steps each, fewer for stragglers."""

    def client(**arguments):
        sgd = arguments["optimizer"]
        optimizer = partial(torch.optim.SGD, **sgd.keywords, weight_decay=decay, nesterov=nesterov)
        halves, more = ([ScaffoldClient, FedProxClient], {"mu": mu}) if mu else ([ScaffoldClient], {})
        return joined(halves, **(arguments | {"optimizer": optimizer}), option=option, **more)

    arguments = {"num_rounds": 4, "local_epochs": 4, "cohort_size": 2, "client": client}
    found = parties(folder, server=server(weighting, eta_g), **(arguments | DOUBLE | plan))
    found.executor.worker.lightning.gradient_clip_val = clip
    return found


def by_hand(federation, cohorts, *, option="II", weighting="samples", eta_g=1.0, **solver):
    """Algorithm 1: x, c and all c_k after each cohort. With option II c_k is the mean of the gradients themselves."""
    x, c, own = ZERO, ZERO, dict.fromkeys(range(len(SIZES)), ZERO)
    data, plan, found = federation.data, federation.plan, []
    weights = np.array(SIZES if weighting == "samples" else (1, 1, 1), dtype=float)
    for round_idx, cohort in enumerate(cohorts):
        lr = LR * plan.lr_factor(round_idx, plan.num_rounds)
        late = sample_stragglers(0, round_idx, cohort, plan.straggler_fraction)
        ends, before = [], dict(own)
        for k in cohort:
            count = straggler_steps(0, round_idx, k, 4, 1) if k in late else 4
            pull = added((1, c), (-1, own[k]))
            steps = Steps(data, k, x, count, lr=lr, further=lambda y, pull=pull: pull, **solver)
            ends.append(steps.end)
            rule = {name: value for name, value in solver.items() if name not in ("decay", "clip")}
            a = coefficients(count, lr=lr, **rule)
            own[k] = steps.gradients[0] if option == "I" else mean(steps.gradients, a)
        to = mean(ends, weights[list(cohort)])
        x = added((1 - eta_g, x), (eta_g, to))
        changes = [(weights[k] / weights.sum(), added((1, own[k]), (-1, before[k]))) for k in cohort]
        c = added((1, c), *changes)
        found.append((x, c, dict(own)))
    return found


SETTINGS = {
    "the paper's": {"weighting": "uniform"},
    "sample weights": {},
    "option I": {"option": "I", "weighting": "uniform"},
    "option I with decay": {"option": "I", "decay": 0.1},
    "server step": {"eta_g": 1.7},
    "momentum": {"momentum": 0.9, "weighting": "uniform"},
    "Nesterov's momentum and decay": {"momentum": 0.5, "nesterov": True, "decay": 0.1},
    "clipped before it is corrected": {"clip": 0.2, "decay": 0.1},
    "proximal term": {"mu": 0.6},
    "proximal term and momentum": {"mu": 0.6, "momentum": 0.7},
}
PLANS = {
    "stragglers": {"straggler_fraction": 0.5},
    "learning rate": {"lr_factor": lambda round_idx, _: 1 / (1 + round_idx)},
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_of_some_of_unequal_clients_by_hand(name, plan, tmp_path):
    setting = SETTINGS[name]
    federation = federation_of(tmp_path, **setting, **PLANS[plan])
    steps, records = federation.run()
    cohorts = [record.cohort for record in records[1:]]
    assert len(set(cohorts)) > 1
    expected = by_hand(federation, cohorts, **setting)
    for step, (x, c, _) in zip(steps[1:], expected, strict=True):
        assert_pairs(step.state.average.params, x)
        assert_pairs(step.state.control, c)
    for k in federation.store:
        kept = federation.store.get(k)
        assert isinstance(kept.memory, Control)
        assert kept.personal == kept.optimizer == {}
        assert_pairs(kept.memory.control, expected[-1][2][k])


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("option", ["I", "II"])
def test_the_first_round_is_fedavg_bit_for_bit(option, weighting, tmp_path):
    plan = {
        "build_model": partial(two_layers, 0.3),
        "batch_size": 2,
        "num_rounds": 1,
        "local_epochs": 2,
        "momentum": 0.9,
    }
    found = parties(
        tmp_path / "a", client=partial(ScaffoldClient, option=option), server=server(weighting), **plan
    )
    expected = parties(tmp_path / "b", server=FedAvgServer(weighting), **plan)
    left, right = found.run(), expected.run()
    assert tree.sha256(left[0][-1].state.average.params) == tree.sha256(right[0][-1].state.params)
    for name in ("train/loss", "global/loss"):
        assert left[1][-1].metrics[name] == right[1][-1].metrics[name]


def test_one_client_is_alone_in_every_round(tmp_path):
    """Its c_k is c, so nothing is corrected."""
    plan = {"data": make_data((9,)), "build_model": two_layers, "batch_size": 2, "num_rounds": 5} | DOUBLE
    found = parties(tmp_path / "a", client=ScaffoldClient, server=server(), **plan).run()[0]
    expected = parties(tmp_path / "b", **plan).run()[0]
    for left, right in zip(found, expected, strict=True):
        for key, tensor in left.state.average.params.items():
            torch.testing.assert_close(tensor, right.state.params[key], rtol=0, atol=1e-12)
    assert max(float(c.abs().max()) for c in found[-1].state.control.values()) > 0.01


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize(("precision", "atol"), [("64-true", 1e-13), ("bf16-true", 1e-6)])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_c_is_the_mean_of_all_c_k_after_every_round(weighting, precision, atol, option, tmp_path):
    """Of five clients two take part; those that never have are zero. In half precision controls are in full."""
    data = make_data((3, 5, 8, 2, 6))
    plan = {
        "data": data,
        "build_model": two_layers,
        "batch_size": 2,
        "cohort_size": 2,
        "num_rounds": 5,
        "precision": precision,
    }
    client = partial(ScaffoldClient, option=option)
    federation = parties(tmp_path, client=client, server=server(weighting), **plan)
    weights = [data.num_examples(k) if weighting == "samples" else 1 for k in range(5)]
    seen = set()
    for step, record in federation.rounds():
        seen |= set(record.cohort)
        for key, tensor in step.state.control.items():
            kept = [(weights[k], federation.store.get(k).memory.control[key]) for k in federation.store]
            expected = sum((w * c for w, c in kept), start=torch.zeros_like(tensor)) / sum(weights)
            torch.testing.assert_close(tensor, expected, rtol=0, atol=atol)
        if len(record.cohort):
            assert set(federation.store) == seen
    assert len(seen) > 2


class QuadraticScaffold(ScaffoldClient, Quadratic):
    """The same, corrected."""


def test_nothing_moves_from_the_optimum_with_the_right_controls(tmp_path):
    """Unequal clients and steps; without controls the optimum is left at once."""
    plan = {
        "num_rounds": 3,
        "local_epochs": 3,
        "straggler_fraction": 0.5,
        "cohort_size": 2,
        "lr": 0.2,
    } | DOUBLE
    federation = parties(tmp_path, client=QuadraticScaffold, server=server(), **plan)
    centres, optimum = means_of(federation.data)
    start = federation.start()
    weight, bias = start.state.average.params
    best = {weight: optimum.repeat(3, 1), bias: torch.zeros(3, dtype=torch.float64)}
    state = start.state._replace(average=start.state.average._replace(params=best))
    first = federation.executor.worker.fit(
        federation.plan.task(0, 0, 3, federation.server.broadcast(state, 0), None)
    )
    assert (first.payload.params[weight] - best[weight]).abs().max() > 0.01
    for k, centre in enumerate(centres):
        own = {weight: best[weight] - centre, bias: best[bias]}
        federation.store.put(k, 0, Kept(memory=Control(own)))
    for step in federation.run(start._replace(state=state))[0]:
        torch.testing.assert_close(step.state.average.params[weight], best[weight], rtol=0, atol=1e-14)
        assert step.state.control[weight].abs().max() < 1e-14


def test_a_memory_waits_for_its_client(tmp_path):
    federation = federation_of(tmp_path, num_rounds=6, cohort_size=1)
    waited = 0
    kept: dict[int, str] = {}
    for _, record in federation.rounds():
        for k in set(kept) - set(record.cohort):
            assert tree.sha256(federation.store.get(k)) == kept[k]
            waited += 1
        kept |= {k: tree.sha256(federation.store.get(k)) for k in record.cohort}
    assert waited > 3
    assert len(kept) > 1


def test_messages_are_twice_those_of_fedavg_and_hold_what_is_trained_and_shared(tmp_path):
    plan = {"build_model": two_layers, "cohort_size": 2, "num_rounds": 2}
    sizes = {}
    for name, options in (("scaffold", {"client": ScaffoldClient, "server": server()}), ("fedavg", {})):
        records = parties(tmp_path / name, **plan, **options).run()[1]
        sizes[name] = [records[-1].metrics[f"comm/{way}_bytes"] for way in ("up", "down")]
    assert sizes["scaffold"] == [2 * count for count in sizes["fedavg"]] == [2 * 2 * 2 * 43 * 4] * 2


def test_nothing_personal_and_no_statistics_have_a_control(tmp_path):
    federation = parties(
        tmp_path,
        build_model=with_batch_norm,
        client=partial(ScaffoldClient, personal=["last"]),
        server=server(),
        local_epochs=2,
    )
    sent = []
    aggregate = federation.server.aggregate
    federation.server.aggregate = lambda state, updates: aggregate(
        state, (sent.append(u) or u for u in updates)
    )
    steps, records = federation.run()
    scales = {"head.all.0.weight", "head.all.0.bias"}
    statistics = {f"head.all.0.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    for payload in (federation.server.broadcast(steps[-1].state, 0), *(update.payload for update in sent)):
        assert isinstance(payload, Controlled)
        assert set(payload.params) == scales | statistics
        assert set(payload.control) == scales
    assert federation.server.global_payload(steps[-1].state) is None
    assert set(federation.store.get(0).personal) == {"head.all.1.weight", "head.all.1.bias"}
    _, pooled = means_of(federation.data)
    # Two full batches a round: the mean of the batches has .9^2 and .1 + .09.
    torch.testing.assert_close(
        steps[1].state.average.params["head.all.0.running_mean"], 0.19 * pooled.float()
    )
    assert records[-1].metrics["personal/acc_mean"] >= 0


@pytest.mark.filterwarnings("ignore:Total length of:UserWarning")
@pytest.mark.parametrize("option", ["I", "II"])
def test_a_client_that_makes_no_step_changes_nothing_of_c(option, tmp_path):
    federation = parties(
        tmp_path,
        data=make_data((4, 0, 5)),
        client=partial(ScaffoldClient, option=option),
        server=server("uniform"),
    )
    federation.run()
    assert all(not c.any() for c in federation.store.get(1).memory.control.values())
    assert all(c.any() for c in federation.store.get(2).memory.control.values())


def test_a_run_goes_on_from_its_middle_with_the_memories(tmp_path):
    build = partial(federation_of, momentum=0.5, num_rounds=5)
    assert goes_on(build, tmp_path / "cut", tmp_path / "whole")


def test_option_i_is_the_same_in_forked_processes(tmp_path):
    """The gradient at x draws nothing."""
    case = [*CASES["scaffold"], "algorithm.client.option=I"]
    expected = run_case(tmp_path / "serial", case, "serial")
    assert run_case(tmp_path / "forked", case, "processes", "executor.num_processes=2") == expected


STACKED = {
    "plain": (),
    "option I": ("algorithm.client.option=I", "partition=quantity_skew"),
    "proximal": ("algorithm/client=scaffold_fedprox", "algorithm.client.mu=0.1", "scenario=stragglers"),
    "groups": (FED2, "structure=grouped", "structure.norm_shared=gn1"),
    "trimmed": (
        *(FED2, "structure=trimmed", "structure.norm_shared=gn1", "federation.cohort_size=4"),
        *("partition=subsets", "partition.classes=[[0,1],[0,1],[5,6],[5,6]]"),
    ),
}


@pytest.mark.parametrize("name", STACKED)
def test_whole_runs_of_stacked_clients_are_those_of_serial(name, tmp_path):
    options = ("algorithm=scaffold", "federation.cohort_size=3", "federation.local_epochs=2", *STACKED[name])
    assert_stacks(tmp_path, *options)


def test_groups_that_everyone_averages_are_a_grouped_network(tmp_path):
    """Fed2's mean over all clients by their examples is FedAvg's."""
    options = ("algorithm=scaffold", "structure=grouped", "federation.cohort_size=2")
    plain = steps_of(tmp_path / "a", *options)[1][-1][0].state
    fed2 = steps_of(tmp_path / "b", *options, FED2, "algorithm.server.average.pairing=all")[1][-1][0].state
    pairs = [(plain.control, fed2.control), (plain.average.params, fed2.average.params)]
    for expected, found in pairs:
        assert expected.keys() == found.keys()
        for key, tensor in expected.items():
            torch.testing.assert_close(found[key], tensor, rtol=0, atol=1e-12)


def holds(experiment, client_id, classes):
    """Whether a client has an example of some classes."""
    return experiment.data.class_counts[client_id][list(classes)].sum() > 0


@pytest.mark.parametrize("structure", ["grouped", "trimmed"])
def test_each_group_of_c_is_the_mean_over_those_who_count_in_it(structure, tmp_path):
    """By examples; a trimmed client has the rows of its groups alone."""
    options = (FED2, f"structure={structure}", "federation.cohort_size=2", "federation.num_rounds=4")
    experiment, steps = steps_of(tmp_path, "algorithm=scaffold", *options)
    state, data = steps[-1][0].state, experiment.data
    groups, sets, rows_seen = state.average.group_of_row, state.average.class_sets, 0
    kept = {k: experiment.store.get(k).memory.control for k in experiment.store}
    assert len(kept) > 2
    for key, found in state.control.items():
        if key not in groups:
            total = sum(data.num_examples(k) * c[key] for k, c in kept.items())
            torch.testing.assert_close(found, total / data.class_counts.sum(), rtol=0, atol=1e-13)
            continue
        places = {k: [g for g, classes in enumerate(sets) if holds(experiment, k, classes)] for k in kept}
        for row, group in enumerate(groups[key].tolist()):
            everyone = [k for k in range(4) if holds(experiment, k, sets[group])]
            total = torch.zeros_like(found[row])
            for k in set(everyone) & set(kept):
                own = groups[key].tolist()
                mine = [r for r, g in enumerate(own) if structure == "grouped" or g in places[k]]
                total += data.num_examples(k) * kept[k][key][mine.index(row)]
            if everyone:
                weight = sum(data.num_examples(k) for k in everyone)
                torch.testing.assert_close(found[row], total / weight, rtol=0, atol=1e-13)
                rows_seen += 1
    assert rows_seen > 20


def with_controls(federation, numbers):
    """Where a run stands before the first round if c and all c_k are not zero but the weights of a network."""
    start = federation.start()
    keys = list(start.state.control)
    first = {key: torch.tensor(part) for key, part in zip(keys, numbers, strict=True)}
    for k in range(len(SIZES)):
        federation.store.put(k, 0, Kept(memory=Control(first)))
    return start._replace(state=start.state._replace(control=first))


@pytest.mark.parametrize("cohort_size", [2, 3])
def test_controls_that_start_as_niid_bench_has_them(cohort_size, tmp_path):
    """As the weights of a network (experiments.py): where all take part the first round makes good for it, else not."""
    draw = np.random.default_rng(0)
    weights = (draw.normal(size=(3, 4)), draw.normal(size=3))
    plan = {"cohort_size": cohort_size, "num_rounds": 3}
    expected = federation_of(tmp_path / "zero", **plan).run()[0]
    found = federation_of(tmp_path / "weights", **plan)
    found = found.run(with_controls(found, weights))[0][1:]
    pairs = [
        (f.state.average.params, e.state.average.params) for f, e in zip(found, expected[1:], strict=True)
    ]
    gaps = [
        max(float((left[key] - tensor).abs().max()) for key, tensor in right.items()) for left, right in pairs
    ]
    assert gaps[0] < 1e-14
    assert max(gaps[1:]) < 1e-12 if cohort_size == 3 else min(gaps[1:]) > 0.1


@pytest.mark.parametrize(("relative", "decay"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.5)])
def test_the_control_of_feddyns_code_is_the_mean_gradient_of_equal_clients_at_a_constant_rate_alone(
    relative, decay
):
    """It steps with c / (relative size), but takes c off, and divides by the first round's rate (utils_methods.py)."""
    data, start = make_data(), (np.full((3, 4), 0.1), np.zeros(3))
    c, own = (np.full((3, 4), 0.3), np.full(3, -0.2)), (np.full((3, 4), -0.1), np.full(3, 0.4))
    pull = added((1 / relative, c), (-1, own))
    steps = Steps(data, 2, start, 4, lr=decay * LR, further=lambda y: pull)
    theirs = added((1, own), (-1, c), (1 / (4 * LR), start), (-1 / (4 * LR), steps.end))
    true = mean(steps.gradients, np.ones(4))
    gap = max(np.abs(left - right).max() for left, right in zip(theirs, true, strict=True))
    assert (gap < 1e-13) == (relative == decay == 1.0)
    assert gap < 1e-13 or gap > 0.05


def refused(folder, *overrides):
    with pytest.raises(ConfigError) as caught:
        run_config(folder, "algorithm=scaffold", *overrides)
    return str(caught.value)


def test_steps_that_are_no_sums_of_gradients_are_refused(tmp_path):
    assert refused(tmp_path, "optimizer=adam") == (
        "optimizer must be SGD, alike for all parameters, for algorithm=scaffold: no other's steps are known sums of "
        "gradients, but it is 'Adam'."
    )
    assert refused(tmp_path, "federation.opt_state=keep") == (
        "federation.opt_state must be reset for algorithm=scaffold, as momentum of earlier rounds is no gradient of "
        "this one, but it is 'keep'."
    )
    assert refused(tmp_path, "callbacks=weight_averaging").startswith(
        "callbacks must average no weights for algo"
    )
    assert refused(tmp_path, "algorithm/client=scaffold_fedprox", "algorithm.client.mu=0.3") == (
        "algorithm.client.mu must be at most 0.263 for algorithm=scaffold with this optimizer.lr and momentum, as with "
        "more some gradients would count against the others, but it is 0.3."
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_c_of_many_clients_is_their_mean_in_half_precision_too(dtype):
    """700 clients whose c_k are 1: a sum of 700 shares in bfloat16 stands still at a half."""
    model = nn.Linear(1, 1, bias=False).to(dtype)
    federation = Federation(700, np.ones(700, int), np.ones((700, 1), int), {"weight": "shared"}, None)
    one = ScaffoldServer(FedAvgServer("uniform"))
    state, tensor = one.init(model, federation), torch.ones(1, 1, dtype=dtype)
    updates = (Update(k, 1, Controlled({"weight": tensor}, {"weight": tensor}), None, {}) for k in range(700))
    state = one.aggregate(state, updates)
    assert float(state.control["weight"]) == pytest.approx(1, abs=1e-3)
    sent = one.broadcast(state, 0)
    assert sent.control["weight"].dtype == sent.params["weight"].dtype == dtype
