"""FedAvgM and FedAdam beside what public codes make of them, which docs/deviations.md names."""

import numpy as np
import pytest
from deviating import STEPS, gap, pair_of, rounds_of
from harness import SIZES, make_data
from linear_rounds import ZERO, Steps, added, mean

from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedopt import FedAdamServer, FedAvgMServer

DATA = make_data()
LR, BETA1, BETA2, TAU = 0.1, 0.9, 0.99, 1e-9


def ours(folder, server):
    return [pair_of(state.average.params) for state in rounds_of(folder, server=server)[1]]


def theirs(step, num_rounds=3):
    """Give x after each round of ``step``, which has Delta, the number of the round from 1, and its own memory."""
    x, memory = ZERO, {}
    for number in range(1, num_rounds + 1):
        delta = added((1, mean([Steps(DATA, k, x, STEPS).end for k in range(3)], SIZES)), (-1, x))
        x = added((1, x), (1, step(delta, number, memory)))
        yield x


def adam(exponent):
    """Adam with v from 0, and as exponent of its correction the number of the round and something."""

    def step(delta, number, memory):
        squares = tuple(part**2 for part in delta)
        m = memory["m"] = added((BETA1, memory.get("m", ZERO)), (1 - BETA1, delta))
        v = memory["v"] = added((BETA2, memory.get("v", ZERO)), (1 - BETA2, squares))
        power = number + exponent
        rate = LR * np.sqrt(1 - BETA2**power) / (1 - BETA1**power) if exponent is not None else LR
        return tuple(rate * top / (np.sqrt(under) + TAU) for top, under in zip(m, v, strict=True))

    return step


def momentum(share):
    """FedAvgM's with Delta in a share."""

    def step(delta, number, memory):
        memory["m"] = added((BETA1, memory.get("m", ZERO)), (share, delta))
        return memory["m"]

    return step


def distances(found, expected):
    return [gap(mine, its) for mine, its in zip(found, expected, strict=True)]


def test_a_correction_for_one_step_more_than_were_made(tmp_path):
    """Its first step is .74 of eta, where Adam's is eta in every number."""
    server = FedAdamServer(
        average=FedAvgServer(), lr=LR, beta1=BETA1, beta2=BETA2, tau=TAU, v_init=0, bias_correction=True
    )
    found = ours(tmp_path, server)
    assert max(distances(found, theirs(adam(0)))) < 1e-9
    by_code = list(theirs(adam(1)))
    assert np.abs(found[0][0]).max() == pytest.approx(LR, abs=1e-6)
    assert np.abs(by_code[0][0]).max() == pytest.approx(0.742 * LR, abs=1e-4)
    assert distances(found, by_code) == pytest.approx([0.026, 0.040, 0.049], abs=1e-3)


def test_momentum_of_a_share_of_the_change(tmp_path):
    """With 1 - beta before Delta the first step is a tenth of FedAvg's."""
    found = ours(tmp_path, FedAvgMServer(average=FedAvgServer(), beta=BETA1))
    assert max(distances(found, theirs(momentum(1.0)))) < 1e-12
    by_code = list(theirs(momentum(1 - BETA1)))
    assert np.linalg.norm(by_code[0][0]) / np.linalg.norm(found[0][0]) == pytest.approx(0.1)
    assert distances(found, by_code) == pytest.approx([0.230, 0.561, 0.882], abs=1e-3)
