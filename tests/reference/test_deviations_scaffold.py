"""SCAFFOLD beside what public codes make of it, which docs/deviations.md names: ours in runs, theirs in NumPy."""

import numpy as np
import pytest
import torch
from deviating import STEPS, Quadratic, gap, pair_of, rounds_of
from harness import LR, SIZES, make_data
from linear_rounds import ZERO, Steps, added, coefficients, mean

from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.scaffold import ScaffoldClient, ScaffoldServer

DATA = make_data()


def ours(folder, *, weighting="uniform", eta_g=1.0, client=ScaffoldClient, **plan):
    """Give x and c after each round, the c_k at the end, and the cohorts."""
    server = ScaffoldServer(FedAvgServer(weighting), eta_g)
    federation, states, cohorts = rounds_of(folder, client=client, server=server, **plan)
    own = {k: pair_of(federation.store.get(k).memory.control) for k in federation.store}
    return [(pair_of(state.average.params), pair_of(state.control)) for state in states], own, cohorts


def theirs(
    cohorts, *, first=ZERO, pull=lambda c, own, k: added((1, c), (-1, own)), renew=None, keep=True,
    lrs=(LR,) * 8, share=(1.0, 1.0, 1.0), momentum=0.0, behind=False, factor=1.0,
):  # fmt: skip
    """Algorithm 1 with option II, but for what is said.

    Args:
        first: Of all controls.
        pull: What is added to gradients.
        renew: c_k+ of ``c, c_k, x, y`` and the round's learning rate; else Eq. 4 with it and the number of steps.
        keep: Whether a client's control is kept.
        lrs: Rates of the rounds.
        share: Weights of controls in c, times N.
        momentum: Of the steps.
        behind: Whether ``pull`` is added behind the step of the optimizer.
        factor: Of the mean of models.
    """
    x, c, own, found = ZERO, first, dict.fromkeys(range(3), first), []
    for round_idx, cohort in enumerate(cohorts):
        lr, ends, changes = lrs[round_idx], [], []
        for k in cohort:
            added_to = pull(c, own[k], k)
            if behind:
                end = steps_and_corrections(k, x, lr, momentum, added_to)
            else:
                end = Steps(DATA, k, x, STEPS, lr=lr, momentum=momentum, further=lambda y, p=added_to: p).end
            ends.append(end)
            a = 1 / (STEPS * lr)
            new = renew(c, own[k], x, end, lr) if renew else added((1, own[k]), (-1, c), (a, x), (-a, end))
            changes.append((share[k] / 3, added((1, new), (-1, own[k]))))
            if keep:
                own[k] = new
        x = added((factor, mean(ends, [1] * len(cohort))))
        c = added((1, c), *changes)
        found.append((x, c))
    return found, own


def steps_and_corrections(k, x, lr, momentum, pull):
    """Momentum of gradients alone, and the correction behind each step."""
    y, velocity = x, ZERO
    for _ in range(STEPS):
        velocity = added((momentum, velocity), (1, Steps(DATA, k, y, 1, lr=lr).gradients[0]))
        y = added((1, y), (-lr, velocity), (-lr, pull))
    return y


ALL = [(0, 1, 2)] * 8
DECAYED = {"lr_factor": lambda round_idx, _: 0.5**round_idx}
HALVED = [LR * 0.5**round_idx for round_idx in range(8)]


def by_rate(rate):
    """Give Eq. 4 with another learning rate than that of the steps, and with their number."""

    def renew(c, own, x, y, lr):
        a = 1 / (STEPS * rate(lr))
        return added((1, own), (-1, c), (a, x), (-a, y))

    return renew


def apart(mine, its):
    """The distances of x after each round."""
    return [gap(x, other) for (x, _), (other, _) in zip(mine, its, strict=False)]


def size(pair):
    return float(np.linalg.norm(np.concatenate([part.ravel() for part in pair])))


def test_without_a_deviation_the_rule_is_ours(tmp_path):
    """Also TsingZ0/PFLlib's at a constant learning rate."""
    found, own, cohorts = ours(tmp_path, cohort_size=2)
    expected, controls = theirs(cohorts)
    assert max(apart(found, expected)) < 1e-12
    assert max(gap(own[k], controls[k]) for k in own) < 1e-12


def test_controls_that_are_sent_as_zeros_add_up(tmp_path):
    """c is then the sum of the mean gradients of all rounds, and no client is corrected."""
    found, own, _ = ours(tmp_path, num_rounds=5)
    expected, _ = theirs(ALL[:5], keep=False)
    assert apart(found, expected)[0] < 1e-12
    assert gap(mean(list(own.values()), (1, 1, 1)), found[-1][1]) < 1e-12
    assert [size(c) for _, c in (found[-1], expected[-1])] == pytest.approx([0.080, 0.396], abs=1e-3)
    assert apart(found, expected)[-1] == pytest.approx(1.157, abs=1e-3)


def test_controls_that_start_from_a_random_network(tmp_path):
    """With everyone in every round they cancel; else a client is pulled by what those who are absent started from."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3, dtype=torch.float64)
    first = pair_of({"weight": layer.weight.detach(), "bias": layer.bias.detach()})
    found, _, cohorts = ours(tmp_path / "all")
    assert max(apart(found, theirs(cohorts, first=first)[0])) < 1e-12
    found, _, cohorts = ours(tmp_path / "one", cohort_size=1, num_rounds=6)
    distances = apart(found, theirs(cohorts, first=first)[0])
    assert distances[0] < 1e-12
    assert distances[-1] == pytest.approx(0.718, abs=1e-3)


def test_the_correction_behind_the_step_has_no_momentum(tmp_path):
    found, _, cohorts = ours(tmp_path, momentum=0.9)
    expected, _ = theirs(cohorts, momentum=0.9, behind=True)
    assert apart(found, expected)[0] < 1e-12
    assert apart(found, expected)[1] == pytest.approx(0.042, abs=1e-3)


def test_a_count_of_steps_with_momentum_makes_controls_too_large(tmp_path):
    """Of momentum .5 four steps go as far as 6.125 of plain SGD."""
    found, _, cohorts = ours(tmp_path, momentum=0.5)
    expected, _ = theirs(cohorts, momentum=0.5)
    assert sum(coefficients(STEPS, momentum=0.5)) == 6.125
    assert size(expected[0][1]) / size(found[0][1]) == pytest.approx(6.125 / 4)
    assert apart(found, expected)[1] == pytest.approx(0.033, abs=1e-3)


RATES = [
    ("the first one's", lambda lr: LR, 0.099, 0.042),
    ("the next one's", lambda lr: lr / 2, 0.440, 0.323),
]


@pytest.mark.parametrize(("name", "rate", "second", "third"), RATES)
def test_another_learning_rate_than_that_of_the_steps(name, rate, second, third, tmp_path):
    """The rates of the rounds are .5, .25 and .125, so controls come out too small or too large."""
    found, _, cohorts = ours(tmp_path, **DECAYED)
    expected, _ = theirs(cohorts, lrs=HALVED, renew=by_rate(rate))
    assert [size(c) for _, c in found[1:]] == pytest.approx([0.198, 0.170], abs=1e-3)
    assert [size(c) for _, c in expected[1:]] == pytest.approx([second, third], abs=1e-3)


def test_shares_of_c_by_size_leave_no_mean_of_gradients(tmp_path):
    """A client of w_k times the mean size steps with c / w_k - c_k, but keeps its mean gradient + c / w_k - c."""
    relative = np.array(SIZES) / np.mean(SIZES)
    found, own, cohorts = ours(tmp_path, weighting="samples")
    pull = lambda c, own, k: added((1 / relative[k], c), (-1, own))  # noqa: E731
    expected, controls = theirs(cohorts, pull=pull, share=relative)
    assert max(gap(own[k], controls[k]) for k in own) == pytest.approx(0.075, abs=1e-3)
    assert apart(found, expected)[0] == pytest.approx(0.100, abs=1e-3)


class ScaffoldQuadratic(ScaffoldClient, Quadratic):
    """SCAFFOLD of the quadratic objective."""


def test_weights_of_the_model_and_none_of_c_end_in_the_optimum_without_weights(tmp_path):
    """Two weightings, two objectives: ours has one for both, and ends in that one's optimum."""
    centres = [DATA.dataset.train.inputs[DATA.split.train.of(k)].double().mean(0).numpy() for k in range(3)]
    optima = {
        name: np.average(centres, axis=0, weights=w) for name, w in (("samples", SIZES), ("uniform", None))
    }
    plan = {"client": ScaffoldQuadratic, "num_rounds": 24, "eval_every": 24}
    for name, optimum in optima.items():
        found, _, _ = ours(tmp_path / name, weighting=name, **plan)
        assert np.abs(found[-1][0][0] - optimum).max() < 1e-6
    x, c, own = np.zeros(4), np.zeros(4), [np.zeros(4)] * 3
    for _ in range(24):
        ends, before = [], list(own)
        for k, centre in enumerate(centres):
            y = x
            for _ in range(STEPS):
                y = y - LR * (y - centre - own[k] + c)
            own[k] = own[k] - c + (x - y) / (STEPS * LR)
            ends.append(y)
        x = np.average(ends, axis=0, weights=SIZES)
        c = c + sum(new - old for new, old in zip(own, before, strict=True)) / 3
    assert np.abs(x - optima["uniform"]).max() < 1e-6
    assert np.abs(optima["samples"] - optima["uniform"]).max() == pytest.approx(0.147, abs=1e-3)


def test_a_server_step_as_a_factor_of_the_weights_multiplies_the_model(tmp_path):
    """x <- eta_g * mean of y_k in place of x + eta_g * (mean of y_k - x): the first round from 0 is the same."""
    found, _, cohorts = ours(tmp_path, eta_g=2.0, num_rounds=6)
    expected, _ = theirs(cohorts, factor=2.0)
    assert apart(found, expected)[0] < 1e-12
    assert [float(np.abs(x[0]).max()) for x, _ in (found[-1], expected[-1])] == pytest.approx(
        [0.993, 17.061], abs=1e-3
    )
