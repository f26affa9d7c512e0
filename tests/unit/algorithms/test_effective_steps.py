"""||a||_1 against PyTorch's own optimizer and against the paper's closed forms."""

from itertools import pairwise

import pytest
import torch

from fedfeat.algorithms.effective_steps import Solver, effective_steps, largest_pull

SOLVERS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "dampened": {"momentum": 0.9, "dampening": 0.3},
    "Nesterov": {"momentum": 0.9, "nesterov": True},
}


@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize("name", SOLVERS)
def test_it_is_how_far_the_optimizer_goes_under_a_gradient_of_one(name, mu):
    for num_steps in (0, 1, 2, 7, 40):
        y = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([y], lr=0.05, **SOLVERS[name])
        for _ in range(num_steps):
            optimizer.zero_grad()
            (y + 0.5 * mu * y**2).sum().backward()
            optimizer.step()
        found = effective_steps(Solver(**SOLVERS[name]), num_steps, 0.05, mu)
        assert found == pytest.approx(-y.item() / 0.05, rel=1e-13, abs=0)


@pytest.mark.parametrize("num_steps", [1, 2, 5, 30])
def test_closed_forms(num_steps):
    rho, lr, mu = 0.9, 0.02, 3.0
    assert effective_steps(Solver(), num_steps, lr) == num_steps
    momentum = (num_steps - rho * (1 - rho**num_steps) / (1 - rho)) / (1 - rho)
    assert effective_steps(Solver(rho), num_steps, lr) == pytest.approx(momentum, rel=1e-13)
    proximal = sum((1 - lr * mu) ** k for k in range(num_steps))
    assert effective_steps(Solver(), num_steps, lr, mu) == pytest.approx(proximal, rel=1e-13)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_up_to_the_largest_pull_no_gradient_counts_against_the_others(rho, nesterov):
    """A gradient of an early step counts for as much as the number grows with one more step."""
    solver = Solver(rho, nesterov=nesterov)

    def smallest(pull):
        found = [effective_steps(solver, k, 0.1, 10 * pull) for k in range(200)]
        return min(after - before for before, after in pairwise(found))

    assert smallest(largest_pull(solver)) > -1e-12
    assert smallest(1.3 * largest_pull(solver)) < -1e-9


@pytest.mark.parametrize(("rho", "mu", "num_steps"), [(0.9, 0.005, 100), (0.9, 0.5, 20), (0.5, 0.5, 10)])
def test_of_momentum_with_the_term_jywa_fednova_has_another_norm_than_its_steps_carry(rho, mu, num_steps):
    """Its term goes into the momentum buffer, and its recursion of the norm makes 1.1 to 1.7 times of it."""
    lr = 0.02
    moved = buffer = power = norm = 0.0
    for _ in range(num_steps):
        buffer = rho * buffer + 1 - lr * mu * moved
        moved += buffer
        power = rho * power + 1
        norm = (norm + power) * (1 - lr * mu) + 1
    assert moved == pytest.approx(effective_steps(Solver(rho), num_steps, lr, mu), rel=1e-12)
    assert 1.1 < norm / moved < 1.8
