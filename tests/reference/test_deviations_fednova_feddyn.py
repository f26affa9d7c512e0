"""FedNova and FedDyn beside what public codes make of them, which docs/deviations.md names."""

from functools import partial

import numpy as np
import pytest
from deviating import STEPS, gap, pair_of, rounds_of
from harness import LR, SIZES, examples_of, gradient, make_data
from linear_rounds import ZERO, Steps, added, mean

from fedfeat.algorithms.effective_steps import Solver, effective_steps
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.feddyn import FedDynClient, FedDynServer
from fedfeat.algorithms.fednova import FedNovaClient, FedNovaServer
from fedfeat.algorithms.fedprox import FedProxClient
from fedfeat.client import joined

DATA = make_data()


def norm_by_code(rho, lr_mu, num_steps):
    """The normalising scalar of JYWa/FedNova: both recursions of a step, one behind the other, on one number."""
    velocity = norm = 0.0
    for _ in range(num_steps):
        velocity = rho * velocity + 1
        norm += velocity if rho else 0
        norm = norm * (1 - lr_mu) + 1 if lr_mu else norm
        norm += 1 if not rho and not lr_mu else 0
    return norm


@pytest.mark.parametrize(
    ("rho", "lr_mu", "ratio"), [(0, 0, 1), (0.9, 0, 1), (0, 0.3, 1), (0.7, 0.02, 1.528), (0.9, 1e-4, 1.442)]
)
def test_the_norm_of_momentum_with_the_proximal_term_counts_steps_twice(rho, lr_mu, ratio):
    """Everywhere else it is ours."""
    found = effective_steps(Solver(rho), STEPS, lr=1.0, mu=lr_mu)
    assert norm_by_code(rho, lr_mu, STEPS) / found == pytest.approx(ratio, abs=1e-3)


def test_so_its_server_goes_less_far_than_its_clients(tmp_path):
    """With equal steps and so weak a term that it can be neglected, FedNova is FedAvg; the code's step is .31 of it."""
    rho, mu = 0.9, 1e-6

    def client(**arguments):
        return joined([FedNovaClient, FedProxClient], **arguments, mu=mu)

    plan = {"client": client, "momentum": rho, "num_rounds": 1}
    found = rounds_of(tmp_path, server=FedNovaServer(FedAvgServer()), **plan)[1][-1]
    ends = [Steps(DATA, k, ZERO, STEPS, momentum=rho, mu=mu).end for k in range(3)]
    assert gap(pair_of(found.average.params), mean(ends, SIZES)) < 1e-5
    by_code = added((STEPS / norm_by_code(rho, LR * mu, STEPS), mean(ends, SIZES)))
    assert np.linalg.norm(by_code[0]) / np.linalg.norm(mean(ends, SIZES)[0]) == pytest.approx(0.307, abs=1e-3)


def dyn(folder, alpha, weighting="uniform", **plan):
    """Ours: theta and the mean of the participants after each round, and the cohorts."""
    halves = {
        "client": partial(FedDynClient, alpha=alpha),
        "server": FedDynServer(FedAvgServer(weighting), alpha),
    }
    _, states, cohorts = rounds_of(folder, **halves, **plan)
    return [(pair_of(state.theta), pair_of(state.average.params)) for state in states], cohorts


def dyn_by_hand(cohorts, alpha, *, relative=(1, 1, 1), pull=None, clip=None):
    """Give theta, the mean of the participants and that of all last models after each round.

    Args:
        cohorts: Of the rounds.
        alpha: Weight of the regulariser.
        relative: What it is divided by for each client.
        pull: Gradient of the quadratic term at ``y - theta``; else alpha times that.
        clip: Largest norm of the gradient without that term's alpha * y.
    """
    theta, sums, last = ZERO, dict.fromkeys(range(3), ZERO), dict.fromkeys(range(3), ZERO)
    for cohort in cohorts:
        for k in cohort:
            own, y = alpha / relative[k], theta
            for _ in range(STEPS):
                away = added((1, y), (-1, theta))
                quadratic = pull(own, away) if pull else added((own, away))
                g = added((1, gradient(*y, *examples_of(DATA, k))), (own, sums[k]))
                if clip:
                    g = added((1, g), (-own, theta))
                    g = added((min(1, clip / np.sqrt(sum((part**2).sum() for part in g))), g))
                    quadratic = added((own, y))
                y = added((1, y), (-LR, g), (-LR, quadratic))
            last[k], sums[k] = y, added((1, sums[k]), (1, y), (-1, theta))
        among = mean([last[k] for k in cohort], [1] * len(cohort))
        theta = added((1, among), *[(1 / 3, total) for total in sums.values()])
        yield theta, among, mean(list(last.values()), (1, 1, 1))


def test_the_rule_without_a_deviation_is_ours(tmp_path):
    found, cohorts = dyn(tmp_path, 0.3, cohort_size=2)
    for mine, its in zip(found, dyn_by_hand(cohorts, 0.3), strict=True):
        assert max(gap(mine[0], its[0]), gap(mine[1], its[1])) < 1e-12


def test_a_norm_that_is_not_squared_pulls_with_a_constant_force(tmp_path):
    """By alpha / 2 whatever the distance is, while the dual is made for alpha times the distance."""

    def unit(alpha, away):
        length = np.sqrt(sum((part**2).sum() for part in away))
        return added((alpha / 2 / length if length else 0, away))

    found, cohorts = dyn(tmp_path, 0.3, cohort_size=2)
    expected = dyn_by_hand(cohorts, 0.3, pull=unit)
    distances = [gap(mine[0], its[0]) for mine, its in zip(found, expected, strict=True)]
    assert distances == pytest.approx([0.020, 0.074, 0.032], abs=1e-3)


@pytest.mark.parametrize(("weighting", "distance"), [("uniform", 0.044), ("samples", 0.118)])
def test_alpha_over_the_relative_size_and_a_mean_without_weights(weighting, distance, tmp_path):
    found, cohorts = dyn(tmp_path, 0.3, weighting, num_rounds=1)
    (expected,) = dyn_by_hand(cohorts, 0.3, relative=np.array(SIZES) / np.mean(SIZES))
    assert gap(found[0][0], expected[0]) == pytest.approx(distance, abs=1e-3)


def test_the_mean_of_all_last_models_is_another_than_that_of_the_participants(tmp_path):
    """One client of three a round; who was never drawn counts with the initial model."""
    found, cohorts = dyn(tmp_path, 0.3, cohort_size=1)
    plotted = [its[2] for its in dyn_by_hand(cohorts, 0.3)]
    for place, expected in ((0, [0.383, 0.528, 0.651]), (1, [0.256, 0.339, 0.463])):
        distances = [gap(mine[place], its) for mine, its in zip(found, plotted, strict=True)]
        assert distances == pytest.approx(expected, abs=1e-3)


def test_a_clip_that_does_not_see_the_quadratic_term(tmp_path):
    found, cohorts = dyn(tmp_path, 1.0, clip=0.2)
    expected = dyn_by_hand(cohorts, 1.0, clip=0.2)
    distances = [gap(mine[0], its[0]) for mine, its in zip(found, expected, strict=True)]
    assert distances == pytest.approx([0.091, 0.202, 0.264], abs=1e-3)
