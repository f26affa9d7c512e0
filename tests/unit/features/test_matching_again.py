"""Matching that starts from former assignments: nothing moves without sweeps, and sweeps move what was wrong."""

from functools import partial

import numpy as np
import pytest
import torch

from fedfeat.features.matching import BBPMap, match_rows
from fedfeat.features.matching_records import Prior
from fedfeat.features.neurons import Layer
from fedfeat.features.one_shot import pfnm

ONE = torch.ones(1, dtype=torch.float64)
PRIOR = Prior(torch.zeros(2, dtype=torch.float64), ONE)
NO_GROWTH = partial(BBPMap, gamma=1e-9, shrink=False)


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def again(clients, how, former, seed=0):
    return match_rows(clients, [ONE] * len(clients), PRIOR, np.random.default_rng(seed), how, former)


def lists(assignments):
    return [assignment.tolist() for assignment in assignments]


CLIENTS = [rows([9.0, 0.0], [0.0, 5.0]), rows([7.0, 0.0], [0.0, 3.0]), rows([0.0, 1.0])]
CROSSED = [torch.tensor([0, 2]), torch.tensor([2, 1]), torch.tensor([1])]


def test_without_sweeps_the_former_assignments_come_back():
    """Atoms: (9, 0) alone; (0, 3) and (0, 1); (0, 5) and (7, 0)."""
    found = again(CLIENTS, NO_GROWTH(sweeps=0), CROSSED)
    assert lists(found.assignments) == lists(CROSSED)
    assert found.counts.tolist() == [1, 2, 2]
    torch.testing.assert_close(found.rows, rows([9.0, 0.0], [0.0, 2.0], [3.5, 2.5]))
    # The MAP estimate of variances 1 and prior mean 0: sums over counts + 1.
    shrunk = again(CLIENTS, BBPMap(sweeps=0), CROSSED)
    torch.testing.assert_close(shrunk.rows, rows([4.5, 0.0], [0.0, 4 / 3], [7 / 3, 5 / 3]))


def test_sweeps_put_right_what_was_crossed_and_leave_the_start_as_it_was():
    found = again(CLIENTS, NO_GROWTH(), CROSSED)
    first, second, third = lists(found.assignments)
    assert first == second
    assert third == first[1:]
    assert found.counts.tolist() in ([2, 3], [3, 2])
    assert lists(CROSSED) == [[0, 2], [2, 1], [1]]


def test_what_has_settled_stays():
    draw = torch.Generator().manual_seed(0)
    clients = [torch.randn(6, 2, generator=draw, dtype=torch.float64) for _ in range(5)]
    settled = again(clients, NO_GROWTH(sweeps=1000), None)
    for seed in range(3):
        found = again(clients, NO_GROWTH(), settled.assignments, seed)
        assert lists(found.assignments) == lists(settled.assignments)
        torch.testing.assert_close(found.rows, settled.rows)


@pytest.mark.parametrize("sweeps", [0, 5])
def test_pfnm_starts_every_layer_from_its_own_assignments(sweeps):
    """Two hidden layers of 3 and 2 neurons, two clients whose copies are reversed, all at first in their own order."""
    draw = torch.Generator().manual_seed(0)
    shapes = ((4, 3), (3, 2), (2, 3))
    net = [
        Layer(5 * torch.randn(out, into, generator=draw), torch.randn(out, generator=draw))
        for into, out in shapes
    ]
    copy = [
        Layer(net[0].weight.flip(0), net[0].bias.flip(0)),
        Layer(net[1].weight.flip(0, 1), net[1].bias.flip(0)),
        Layer(net[2].weight.flip(1), net[2].bias),
    ]
    former = [[torch.arange(width)] * 2 for width in (3, 2)]
    found = pfnm([net, copy], torch.ones(2, 3), np.random.default_rng(0), NO_GROWTH(sweeps=sweeps), former)
    orders = [[a.tolist() for a in layer] for layer in found.assignments]
    if not sweeps:
        assert orders == [[[0, 1, 2]] * 2, [[0, 1]] * 2]
        torch.testing.assert_close(found.layers[0].weight, (net[0].weight + copy[0].weight) / 2)
    else:
        assert [one == other[::-1] for one, other in orders] == [True, True]
        torch.testing.assert_close(found.layers[0].weight[orders[0][0]], net[0].weight)
