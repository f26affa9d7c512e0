"""Matching of one layer: hand-computed benefits, brute force, permutations undone, unequal widths, determinism."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from fedfeat.config.arguments import check_targets
from fedfeat.errors import ConfigError
from fedfeat.features import matching
from fedfeat.features.matching import Atoms, BBPMap, Evidence, Prior, benefits, match_layer, match_rows

# So little mass that a new global neuron is opened only where no other is left.
NO_GROWTH = BBPMap(gamma=1e-9, shrink=False)


def generator(seed=0):
    return np.random.default_rng(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def evidence(rows, precision=1.0):
    return Evidence(torch.tensor(rows, dtype=torch.float64), torch.tensor([precision], dtype=torch.float64))


def by_definition(client, atoms, start, num_clients, how, max_new):
    """The sums over d as they are written, one pair at a time."""
    columns = [
        (s, p, how.popularity_coef * math.log(min(int(n), 10) / (num_clients - min(int(n), 10))))
        for s, p, n in zip(*atoms, strict=True)
    ]
    columns += [
        (start.sums, start.precision, 2 * math.log(how.gamma / num_clients) - 2 * math.log(m))
        for m in range(1, max_new + 1)
    ]
    return torch.stack(
        [
            torch.stack(
                [((s + v) ** 2 / (p + client.precision) - s**2 / p).sum() + extra for s, p, extra in columns]
            )
            for v in client.sums
        ]
    )


def test_benefits_of_two_rows_and_two_atoms_by_hand():
    # J = 3, gamma = 3, so that log(gamma / J) = 0; all variances 1; prior mean 0 and bias .1, hence S = (0, .1) anew.
    # Row (1, 0) with atom S = (1, .1), P = 2, n = 1: (2^2 + .1^2) / 3 - (1 + .1^2) / 2 + log(1/2).
    # Row (1, 0) with atom S = (0, 2.1), P = 3, n = 2: (1 + 2.1^2) / 4 - 2.1^2 / 3 + log(2/1).
    # Row (1, 0) anew: (1 + .1^2) / 2 - .1^2 - 2 log m.
    client = evidence([[1.0, 0.0], [0.0, 2.0]])
    atoms = Atoms(
        torch.tensor([[1.0, 0.1], [0.0, 2.1]], dtype=torch.float64),
        torch.tensor([[2.0], [3.0]], dtype=torch.float64),
        torch.tensor([1, 2]),
    )
    start = Evidence(torch.tensor([0.0, 0.1], dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    found = benefits(client, atoms, start, 3, BBPMap(gamma=3.0))
    log2 = math.log(2)
    expected = [
        [4.01 / 3 - 1.01 / 2 - log2, 5.41 / 4 - 4.41 / 3 + log2, 0.495, 0.495 - 2 * log2],
        [5.41 / 3 - 1.01 / 2 - log2, 16.81 / 4 - 4.41 / 3 + log2, 2.195, 2.195 - 2 * log2],
    ]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("per_entry", [False, True])
def test_benefits_are_those_of_the_definition(per_entry):
    size = 5 if per_entry else 1
    client = Evidence(normal(3, 5), normal(size, seed=1).abs())
    atoms = Atoms(normal(4, 5, seed=2), normal(4, size, seed=3).abs() + 0.1, torch.tensor([1, 4, 10, 15]))
    start = Evidence(normal(5, seed=4), normal(size, seed=5).abs() + 0.1)
    how = BBPMap(gamma=2.0, popularity_coef=2.0)
    found = benefits(client, atoms, start, 16, how)
    torch.testing.assert_close(found, by_definition(client, atoms, start, 16, how, max_new=3))


@pytest.mark.parametrize(
    ("rows", "atoms", "new"), [(3, 4, 3), (3, 698, 2), (3, 900, 1), (705, 2, 703), (705, 0, 705)]
)
def test_layers_of_700_grow_one_by_one_but_every_row_finds_a_place(rows, atoms, new):
    known = Atoms(torch.zeros(atoms, 1), torch.ones(atoms, 1), torch.ones(atoms, dtype=torch.int64))
    found = benefits(
        Evidence(torch.zeros(rows, 1), torch.ones(1)),
        known,
        Evidence(torch.zeros(1), torch.ones(1)),
        2,
        BBPMap(),
    )
    assert found.shape == (rows, atoms + new)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 1000), st.sampled_from([0.1, 1.0, 7.0]))
@settings(max_examples=25, deadline=None)
def test_a_single_addition_is_the_best_of_all_assignments(width_a, width_b, seed, gamma):
    wide, narrow = sorted((width_a, width_b), reverse=True)
    first, second = 2 * normal(wide, 3, seed=seed), 2 * normal(narrow, 3, seed=seed + 1)
    how = BBPMap(gamma=gamma, sweeps=0)
    prior = torch.tensor([4.0, -3.0, 2.0], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    found = match_rows([first, second], [one, one], Prior(prior, one), generator(), how)
    atoms = Atoms(first + prior, torch.full((wide, 1), 2.0), torch.ones(wide, dtype=torch.int64))
    table = by_definition(Evidence(second, one), atoms, Evidence(prior, one), 2, how, max_new=narrow)
    totals = {
        columns: float(sum(table[row, column] for row, column in enumerate(columns)))
        for columns in itertools.permutations(range(wide + narrow), narrow)
    }
    best = max(totals.values())
    assert found.assignments[0].tolist() == list(range(wide))
    chosen = found.assignments[1].tolist()
    new = sorted(c for c in chosen if c >= wide)
    assert new == list(range(wide, wide + len(new)))
    assert totals[tuple(chosen)] == pytest.approx(best)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.integers(0, 1000),
    st.sampled_from([1e-3, 1.0, 50.0]),
)
@settings(max_examples=40, deadline=None)
def test_assignments_are_injective_and_counts_and_rows_follow_from_them(widths, seed, gamma):
    rows = [normal(width, 3, seed=seed + j) for j, width in enumerate(widths)]
    found = match_layer(rows, generator(seed), BBPMap(gamma=gamma))
    num_global = len(found.rows)
    assert max(widths) <= num_global <= sum(widths)
    sums = torch.tensor([0, 0, 0.1], dtype=torch.float64).repeat(num_global, 1)
    counts = torch.zeros(num_global, dtype=torch.int64)
    for own, assignment in zip(rows, found.assignments, strict=True):
        assert assignment.shape == (len(own),)
        assert len(set(assignment.tolist())) == len(own)
        for row, place in zip(own, assignment.tolist(), strict=True):
            sums[place] += row
            counts[place] += 1
    assert counts.tolist() == found.counts.tolist()
    assert counts.min() >= 1
    # MAP with all variances 1: what n rows and the prior add up to, over n + 1.
    torch.testing.assert_close(found.rows, sums / (counts + 1)[:, None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matching_undoes_permutations_and_gives_the_plain_mean(dtype):
    truth = 3 * normal(8, 6)
    noisy = [(truth + 0.1 * normal(8, 6, seed=j)).to(dtype) for j in range(1, 5)]
    orders = [torch.from_numpy(generator(j).permutation(8)) for j in range(4)]
    found = match_layer(
        [rows[order] for rows, order in zip(noisy, orders, strict=True)], generator(), NO_GROWTH
    )
    assert found.counts.tolist() == [4] * 8
    assert found.rows.dtype == dtype
    # Neuron n of the truth has one place for all clients.
    places = [
        assignment[order.argsort()] for assignment, order in zip(found.assignments, orders, strict=True)
    ]
    assert all(place.equal(places[0]) for place in places)
    torch.testing.assert_close(found.rows[places[0]], torch.stack(noisy).mean(0))


def test_variances_and_shrinkage_by_hand():
    # Precisions 1 / .5 of each of two rows and 1 / 4 of the prior with mean (0, .1).
    rows = [torch.tensor([[2.0, 4.0]]), torch.tensor([[4.0, 2.0]])]
    how = {"gamma": 1e-9, "sigma2": 0.5, "sigma02": 4.0}
    shrunk = match_layer(rows, generator(), BBPMap(**how))
    plain = match_layer(rows, generator(), BBPMap(**how, shrink=False))
    torch.testing.assert_close(shrunk.rows, torch.tensor([[12 / 4.25, (12 + 0.025) / 4.25]]))
    torch.testing.assert_close(plain.rows, torch.tensor([[3.0, 3.0]]))
    without_bias = match_layer(rows, generator(), BBPMap(**how), bias=False)
    torch.testing.assert_close(without_bias.rows, torch.tensor([[12 / 4.25, 12 / 4.25]]))


def test_where_no_client_knows_an_entry_the_prior_mean_stands():
    prior = Prior(torch.tensor([0.0, 0.7]), torch.ones(2))
    nothing = [torch.tensor([1.0, 0.0])] * 2
    for shrink in (True, False):
        how = BBPMap(gamma=1e-9, shrink=shrink)
        found = match_rows([torch.tensor([[3.0, 5.0]])] * 2, nothing, prior, generator(), how)
        torch.testing.assert_close(found.rows, torch.tensor([[2.0 if shrink else 3.0, 0.7]]))


def test_distinct_neurons_make_the_global_layer_wider_than_any_client():
    directions = 10 * torch.eye(5)
    found = match_layer([directions[:3], directions[2:4], directions[[4, 0]]], generator(), BBPMap(gamma=1.0))
    assert len(found.rows) == 5
    assert sorted(found.counts.tolist()) == [1, 1, 1, 2, 2]
    wide, middle, last = (assignment.tolist() for assignment in found.assignments)
    assert wide[2] == middle[0]
    assert wide[0] == last[1]
    assert len({*wide, *middle, *last}) == 5


def test_sweeps_never_lower_the_posterior_and_mend_what_the_order_of_addition_has_spoilt():
    # Widths are equal, nothing grows and popularity does not count: every rematch is a step up in what the rows
    # add to the atoms they are with, sum_d S^2 / P.
    def log_posterior(rows, sweeps):
        found = match_layer(rows, generator(), BBPMap(gamma=1e-9, popularity_coef=0, sweeps=sweeps))
        assert len(found.rows) == 6
        return float((found.rows.square() * (found.counts + 1)[:, None]).sum())

    clients = [[normal(6, 2, seed=10 * case + j) for j in range(5)] for case in range(10)]
    gains = [log_posterior(rows, 5) - log_posterior(rows, 0) for rows in clients]
    assert min(gains) > -1e-9
    assert max(gains) > 0.1


def test_once_sweeps_have_ended_no_client_could_be_matched_better():
    how = BBPMap(gamma=1e-9, sweeps=1000)
    start = Evidence(torch.tensor([0, 0, 0.1], dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    for case in range(10):
        rows = [normal(8, 3, seed=10 * case + j) for j in range(8)]
        found = match_layer(rows, generator(case), how)
        for own, assignment in zip(rows, found.assignments, strict=True):
            sums = found.rows * 9
            sums[assignment] -= own
            counts = torch.full((8,), 7)
            gain = benefits(
                Evidence(own, start.precision), Atoms(sums, counts[:, None] + 1.0, counts), start, 8, how
            )
            best = gain.numpy()[linear_sum_assignment(gain.numpy(), maximize=True)].sum()
            assert float(gain[torch.arange(8), assignment].sum()) == pytest.approx(best)


def test_the_widest_client_is_the_first():
    found = match_layer([normal(2, 3), normal(4, 3, seed=1)], generator(), BBPMap(gamma=1e-9, sweeps=0))
    assert found.assignments[1].tolist() == [0, 1, 2, 3]
    assert len(found.rows) == 4


def test_one_client_keeps_its_neurons_and_their_order():
    rows = normal(5, 4)
    found = match_layer([rows], generator(), BBPMap(shrink=False))
    assert found.assignments[0].tolist() == [0, 1, 2, 3, 4]
    torch.testing.assert_close(found.rows, rows)
    assert found.counts.tolist() == [1] * 5


def test_the_generator_alone_decides_and_inputs_stay_as_they_were():
    rows = [0.3 * normal(6, 2, seed=j) for j in range(6)]
    copies = [own.clone() for own in rows]
    results = [match_layer(rows, generator(seed), BBPMap(gamma=5.0)) for seed in (0, 0, 1, 2, 3)]
    assert all(own.equal(copy) for own, copy in zip(rows, copies, strict=True))
    assert results[0].rows.equal(results[1].rows)
    assert all(a.equal(b) for a, b in zip(results[0].assignments, results[1].assignments, strict=True))
    assert any(len(results[0].rows) != len(r.rows) or not results[0].rows.equal(r.rows) for r in results[2:])


def test_sweeps_end_once_no_neuron_moves(monkeypatch):
    calls = []
    solve = matching.linear_sum_assignment
    monkeypatch.setattr(
        matching, "linear_sum_assignment", lambda *args, **kwargs: calls.append(1) or solve(*args, **kwargs)
    )
    rows = [5 * torch.eye(4)] * 3
    match_layer(rows, generator(), BBPMap(gamma=1.0, sweeps=100))
    # Three additions and one sweep over three clients, which finds everything in its place.
    assert len(calls) == 6


@pytest.mark.parametrize("key", ["gamma", "sigma2", "sigma02", "sweeps", "popularity_coef"])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_hyperparameters_out_of_range_are_refused(key, value):
    with pytest.raises(ConfigError, match=rf"^matching\.{key} must be .*, but it is {value}"):
        check_targets({"matching": {"_target_": "fedfeat.features.matching.BBPMap", key: value}})


def test_half_precision_is_matched_as_what_it_holds():
    rows = [torch.randn(5, 4, generator=torch.Generator().manual_seed(seed)).bfloat16() for seed in range(3)]
    found = match_layer(rows, np.random.default_rng(0))
    expected = match_layer([own.float() for own in rows], np.random.default_rng(0))
    assert all(torch.equal(*pair) for pair in zip(found.assignments, expected.assignments, strict=True))
    assert torch.equal(found.rows, expected.rows.bfloat16())
