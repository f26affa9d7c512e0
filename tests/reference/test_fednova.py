"""FedNova: its rounds in NumPy, FedAvg where all make the same steps, and the optimum where they do not."""

from functools import partial

import numpy as np
import pytest
import torch
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
from fedfeat.algorithms.effective_steps import Solver, effective_steps
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fednova import FedNovaClient, FedNovaServer, Normalised
from fedfeat.algorithms.fedprox import FedProxClient
from fedfeat.client import ClientModule, joined
from fedfeat.errors import ConfigError
from fedfeat.models.mlp import mlp
from fedfeat.rounds.sampling import sample_stragglers, straggler_steps
from fedfeat.types import Federation, Update

DOUBLE = {"precision": "64-true"}
FED2 = "algorithm/server@algorithm.server.average=fed2"


def two_layers():
    torch.manual_seed(1)
    return mlp((4,), 3, hidden=[5])


def server(weighting="samples"):
    return FedNovaServer(FedAvgServer(weighting))


def federation_of(folder, *, weighting="samples", mu=0.0, decay=0.0, nesterov=False, **plan):
    """Two of three unequal clients a round, 4 full-batch steps each, fewer for stragglers."""

    def client(**arguments):
        sgd = arguments["optimizer"]
        optimizer = partial(torch.optim.SGD, **sgd.keywords, weight_decay=decay, nesterov=nesterov)
        halves, more = ([FedNovaClient, FedProxClient], {"mu": mu}) if mu else ([FedNovaClient], {})
        return joined(halves, **(arguments | {"optimizer": optimizer}), **more)

    arguments = {
        "num_rounds": 4,
        "local_epochs": 4,
        "cohort_size": 2,
        "straggler_fraction": 0.5,
        "client": client,
    }
    return parties(folder, server=server(weighting), **(arguments | DOUBLE | plan))


def by_hand(federation, cohorts, *, weighting="samples", mu=0.0, **solver):
    """x after each cohort: a step along the mean of the clients' mean gradients."""
    x, data, plan, found = ZERO, federation.data, federation.plan, []
    rule = {name: value for name, value in solver.items() if name != "decay"}
    for round_idx, cohort in enumerate(cohorts):
        lr = LR * plan.lr_factor(round_idx, plan.num_rounds)
        late = sample_stragglers(0, round_idx, cohort, plan.straggler_fraction)
        counts = {k: straggler_steps(0, round_idx, k, 4, 1) if k in late else 4 for k in cohort}
        weights = np.array([SIZES[k] if weighting == "samples" else 1 for k in cohort], dtype=float)
        directions, reaches = [], []
        for k in cohort:
            gradients = Steps(data, k, x, counts[k], lr=lr, mu=mu, **solver).gradients
            directions.append(mean(gradients, coefficients(counts[k], lr=lr, mu=mu, **rule)))
            reaches.append(sum(coefficients(counts[k], lr=lr, **rule)))
        tau = np.average(reaches, weights=weights)
        x = added((1, x), (-lr * tau, mean(directions, weights)))
        found.append(x)
        yield x, counts


SETTINGS = {
    "the paper's": {},
    "uniform": {"weighting": "uniform"},
    "momentum": {"momentum": 0.9},
    "Nesterov's momentum and decay": {"momentum": 0.5, "nesterov": True, "decay": 0.1},
    "proximal": {"mu": 0.6},
    "proximal with momentum": {"mu": 0.6, "momentum": 0.7},
}


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_of_some_of_unequal_clients_by_hand(name, scheduled, tmp_path):
    plan = {"lr_factor": lambda round_idx, _: 1 / (1 + round_idx)} if scheduled else {}
    federation = federation_of(tmp_path, **SETTINGS[name], **plan)
    steps, records = federation.run()
    cohorts = [record.cohort for record in records[1:]]
    expected = list(by_hand(federation, cohorts, **SETTINGS[name]))
    assert any(len(set(counts.values())) > 1 for _, counts in expected)
    for step, (x, _) in zip(steps[1:], expected, strict=True):
        assert_pairs(step.state.average.params, x)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize(
    "solver",
    [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}],
    ids=["plain", "momentum", "Nesterov"],
)
def test_with_equal_steps_it_is_fedavg(solver, weighting, tmp_path):
    """Mini-batches of unequal clients, but as many for everyone."""

    def options(half):
        def client(**arguments):
            return half(**(arguments | {"optimizer": partial(torch.optim.SGD, lr=0.1, **solver)}))

        return {"client": client, "build_model": two_layers, "batch_size": 2, "local_epochs": None, "local_steps": 5,
                "cohort_size": 2, "num_rounds": 4, **DOUBLE}  # fmt: skip

    found = parties(tmp_path / "a", server=server(weighting), **options(FedNovaClient)).run()[0][-1]
    expected = parties(tmp_path / "b", server=FedAvgServer(weighting), **options(ClientModule)).run()[0][-1]
    for key, tensor in expected.state.params.items():
        torch.testing.assert_close(found.state.average.params[key], tensor, rtol=0, atol=1e-13)


class QuadraticNova(FedNovaClient, Quadratic):
    """The same, which says how far it goes."""


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_one_and_five_steps_end_in_the_optimum_and_not_beside_it(weighting, tmp_path):
    """Clients of 2 and 10 examples in batches of 2; all of a client's examples are the same."""
    data = make_data((2, 10))
    centres = []
    for k in range(2):
        own = data.split.train.of(k)
        data.dataset.train.inputs[own] = data.dataset.train.inputs[own[0]].clone()
        centres.append(data.dataset.train.inputs[own[0]].double())
    weights = (2, 10) if weighting == "samples" else (1, 1)
    optimum = sum(w * centre for w, centre in zip(weights, centres, strict=True)) / sum(weights)
    plan = {"data": data, "batch_size": 2, "num_rounds": 120, "lr": 0.1, "eval_every": 120} | DOUBLE
    ends = {}
    for name, client, half in (("nova", QuadraticNova, server), ("avg", Quadratic, FedAvgServer)):
        state = parties(tmp_path / name, client=client, server=half(weighting), **plan).run()[0][-1].state
        params = state.average.params if name == "nova" else state.params
        ends[name] = next(iter(params.values()))
    # The steps' own shrinking, .1 a step, is left of the inconsistency: the mean of a client's gradients is not at x.
    gaps = {
        name: float((end - optimum).norm() / (centres[0] - centres[1]).norm()) for name, end in ends.items()
    }
    assert gaps["nova"] < gaps["avg"] / 2
    inverse = [w * (1 if k == 0 else (1 - 0.9**5) / 0.5) for k, w in enumerate(weights)]
    fixed = sum(w * centre for w, centre in zip(inverse, centres, strict=True)) / sum(inverse)
    torch.testing.assert_close(ends["nova"], fixed.expand(3, 4), rtol=0, atol=1e-9)


def test_messages_are_those_of_fedavg_and_two_numbers_up(tmp_path):
    federation = parties(tmp_path, client=FedNovaClient, server=server(), cohort_size=2, num_rounds=3)
    steps, records = federation.run()
    assert records[-1].metrics["comm/down_bytes"] == 3 * 2 * 15 * 4
    assert records[-1].metrics["comm/up_bytes"] == 3 * 2 * (15 * 4 + 2 * 8)
    assert len(federation.store) == 0
    assert federation.server.broadcast(steps[-1].state, 0).norm is None


@pytest.mark.filterwarnings("ignore:Total length of:UserWarning")
def test_a_client_without_a_step_is_left_out(tmp_path):
    """Also of uniform means, in which FedAvg counts the model that it sends back."""
    federation = parties(
        tmp_path, data=make_data((4, 0, 5)), client=FedNovaClient, server=server("uniform"), num_rounds=1
    )
    start = federation.start()
    tasks = [
        federation.plan.task(0, k, 3, federation.server.broadcast(start.state, k), None) for k in range(3)
    ]
    updates = list(federation.executor.map("fit", tasks))
    assert [float(update.payload.norm) for update in updates] == [3, 0, 3]
    found = federation.server.aggregate(start.state, iter(updates))
    expected = federation.server.aggregate(start.state, iter([updates[0], updates[2]]))
    assert tree.sha256(found) == tree.sha256(expected) != tree.sha256(start.state)
    assert tree.sha256(federation.server.aggregate(start.state, iter([updates[1]]))) == tree.sha256(
        start.state
    )
    assert tree.sha256(federation.server.aggregate(start.state, iter([]))) == tree.sha256(start.state)


def test_statistics_are_averaged_and_what_is_personal_stays(tmp_path):
    federation = parties(
        tmp_path,
        build_model=with_batch_norm,
        client=partial(FedNovaClient, personal=["last"]),
        server=server(),
        num_rounds=1,
    )
    state = federation.run()[0][-1].state
    assert state.trained == ("head.all.0.weight", "head.all.0.bias")
    _, pooled = means_of(federation.data)
    torch.testing.assert_close(state.average.params["head.all.0.running_mean"], 0.1 * pooled.float())
    assert state.average.params["head.all.0.num_batches_tracked"].item() == 1
    assert federation.server.global_payload(state) is None
    assert set(federation.server.newcomer_payload(state).params) == {
        f"head.all.0.{name}"
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


def test_a_run_goes_on_from_its_middle(tmp_path):
    assert goes_on(partial(federation_of, momentum=0.5, num_rounds=5), tmp_path / "cut", tmp_path / "whole")


STACKED = {
    "stragglers": ("scenario=stragglers", "partition=quantity_skew"),
    "proximal": ("algorithm/client=fednova_fedprox", "algorithm.client.mu=0.1", "scenario=stragglers"),
    "groups": (FED2, "structure=grouped", "structure.norm_shared=gn1"),
}


@pytest.mark.parametrize("name", STACKED)
def test_whole_runs_of_stacked_clients_are_those_of_serial(name, tmp_path):
    options = ("algorithm=fednova", "federation.cohort_size=3", "federation.local_epochs=2", *STACKED[name])
    assert_stacks(tmp_path, *options)


@pytest.mark.parametrize("structure", ["grouped", "trimmed"])
def test_each_group_goes_as_far_as_those_who_count_in_it(structure, tmp_path, monkeypatch):
    """One round in which one client of two is late; rows of groups that nobody holds stay where they are."""
    seen = []
    directions = FedNovaServer._directions

    def noting(self, state, updates, noted):
        return directions(self, state, (seen.append(u) or u for u in updates), noted)

    monkeypatch.setattr(FedNovaServer, "_directions", noting)
    options = (FED2, f"structure={structure}", "federation.num_rounds=1", "federation.cohort_size=2",
               "scenario.straggler_fraction=0.5", "federation.local_epochs=3")  # fmt: skip
    experiment, steps = steps_of(tmp_path, "algorithm=fednova", *options)
    before, after = (steps[t][0].state.average for t in (0, 1))
    counts, groups = experiment.data.class_counts, before.group_of_row
    assert len({float(update.payload.norm) for update in seen}) > 1
    still = 0
    for key, x in before.params.items():
        if key not in steps[0][0].state.trained:
            continue
        if key not in groups:
            p = np.array([update.num_examples for update in seen], dtype=float)
            p /= p.sum()
            tau = sum(w * float(update.payload.reach) for w, update in zip(p, seen, strict=True))
            d = sum(
                w * (update.payload.params[key] - x) / update.payload.norm
                for w, update in zip(p, seen, strict=True)
            )
            torch.testing.assert_close(after.params[key], x + tau * d, rtol=0, atol=1e-12)
            continue
        for row, group in enumerate(groups[key].tolist()):
            classes = list(before.class_sets[group])
            counting = [update for update in seen if counts[update.client_id][classes].sum()]
            if not counting:
                assert torch.equal(after.params[key][row], x[row])
                still += 1
                continue
            total = sum(update.num_examples for update in counting)
            tau = sum(update.num_examples / total * float(update.payload.reach) for update in counting)
            d = torch.zeros_like(x[row])
            for update in counting:
                places = [
                    r for r, g in enumerate(groups[key].tolist())
                    if structure == "grouped" or counts[update.client_id][list(before.class_sets[g])].sum()
                ]  # fmt: skip
                y = update.payload.params[key][places.index(row)]
                d += update.num_examples / total * (y - x[row]) / float(update.payload.norm)
            torch.testing.assert_close(after.params[key][row], x[row] + tau * d, rtol=0, atol=1e-12)
    assert still


def refused(folder, *overrides):
    with pytest.raises(ConfigError) as caught:
        run_config(folder, "algorithm=fednova", *overrides)
    return str(caught.value)


def test_steps_that_are_no_sums_of_gradients_are_refused(tmp_path):
    assert refused(tmp_path, "optimizer=adam").startswith(
        "optimizer must be SGD, alike for all parameters, for algorithm"
    )
    assert refused(tmp_path, "+optimizer.maximize=true") == (
        "optimizer.maximize must be false for algorithm=fednova, which takes what was moved for a sum of gradients, "
        "but it is True."
    )
    assert refused(tmp_path, "federation.opt_state=keep").startswith(
        "federation.opt_state must be reset for algorithm="
    )
    assert refused(tmp_path, "callbacks=weight_averaging") == (
        "callbacks must average no weights for algorithm=fednova, which divides what was moved by the steps that have "
        "moved it, but one of them does."
    )
    found = refused(tmp_path, "algorithm/client=fednova_fedprox", "algorithm.client.mu=2")
    assert found.startswith("algorithm.client.mu must be at most 0.263 for algorithm=fednova")


def test_a_payload_says_nothing_of_steps_on_its_way_down(tmp_path):
    federation = parties(tmp_path, client=FedNovaClient, server=server())
    state = federation.start().state
    assert isinstance(federation.server.global_payload(state), Normalised)
    assert tree.num_bytes(federation.server.broadcast(state, 0)) == 15 * 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_small_moves_of_long_fits_are_moves_in_half_precision_too(dtype):
    """Equal clients of 1,000 steps with momentum, where it is FedAvg; each weight moves by 2e-4 of at most .05."""
    model = nn.Linear(20, 20, bias=False)
    x = {"weight": (torch.rand(20, 20, generator=torch.Generator().manual_seed(0)) * 0.05).to(dtype)}
    model.to(dtype).load_state_dict(x)
    federation = Federation(2, np.ones(2, int), np.ones((2, 1), int), {"weight": "shared"}, None)
    y = {"weight": x["weight"] + torch.tensor(2e-4, dtype=dtype)}
    norm = torch.tensor(effective_steps(Solver(0.9), 1000, 0.1), dtype=torch.float64)
    one = server()
    updates = [Update(k, 1, Normalised(y, norm, norm), None, {}) for k in range(2)]
    found = one.aggregate(one.init(model, federation), updates)
    moved = one.global_payload(found).params["weight"]
    assert moved.dtype == dtype
    torch.testing.assert_close(moved, y["weight"], rtol=2 * torch.finfo(dtype).eps, atol=0)
    assert (moved != x["weight"]).float().mean() > 0.9
