"""How far local steps carry: the ||a||_1 of Wang et al., "Tackling the Objective Inconsistency Problem ...", 2020.

    A solver whose steps are sums of gradients moves by  x - y = lr * sum_k a_k g_k;  ||a||_1 = sum_k a_k

Run on a number under a gradient of 1, the solver moves by lr * ||a||_1, and that is how it is computed here: K for K
steps of SGD, (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho) with momentum rho, (1 - (1 - lr mu)^K) / (lr mu) with a
proximal term mu / 2 ||y - x||^2.
"""

import math
from typing import NamedTuple

from torch.optim import SGD

from fedfeat.algorithms.fedprox import FedProxClient
from fedfeat.client import ClientModule
from fedfeat.errors import ConfigError
from fedfeat.types import Setting


class Solver(NamedTuple):
    """An SGD, by what decides about its steps beside gradients and learning rate (`torch.optim.SGD`)."""

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False


def effective_steps(solver: Solver, num_steps: int, lr: float, mu: float = 0.0) -> float:
    """Give ||a||_1 of a number of steps.

    Args:
        solver: The optimizer.
        num_steps: K.
        lr: Learning rate, which matters with a proximal term alone.
        mu: Weight of that term.
    """
    moved = velocity = 0.0
    for step in range(num_steps):
        gradient = 1.0 - lr * mu * moved
        fresh = gradient if step == 0 else (1.0 - solver.dampening) * gradient
        velocity = solver.momentum * velocity + fresh
        moved += gradient + solver.momentum * velocity if solver.nesterov else velocity
    return moved


def largest_pull(solver: Solver) -> float:
    """Give the largest lr * mu with which no a_k is negative: up to there the pull back does not overshoot."""
    rho = solver.momentum
    return ((1.0 - rho) / (1.0 + rho)) ** 2 if solver.nesterov else (1.0 - math.sqrt(rho)) ** 2


def solver_of(client: ClientModule) -> Solver:
    """Give the optimizer of a client half, an SGD."""
    group = client.configure_optimizers().param_groups[0]
    momentum, dampening, nesterov = (group[name] for name in Solver._fields)
    # Without momentum the optimizer passes over dampening.
    return Solver(momentum, dampening if momentum else 0.0, nesterov)


def proximal_weight(client: ClientModule) -> float:
    """Give the weight of the proximal term in a client half's objective."""
    return client.mu if isinstance(client, FedProxClient) else 0.0


def check_solver(client: ClientModule, setting: Setting) -> None:
    """Refuse local work whose ||a||_1 is not known.

    Raises:
        ConfigError: Its optimizer, what is left of its momentum, its proximal term, or what averages its steps.
    """
    optimizer = client.configure_optimizers()
    groups = {tuple(group[name] for name in ("lr", *Solver._fields)) for group in optimizer.param_groups
              } if isinstance(optimizer, SGD) else set()  # fmt: skip
    if len(groups) != 1:
        rule = f"be SGD, alike for all parameters, for algorithm={setting.algorithm}: no other's steps are known sums"
        raise ConfigError.rule("optimizer", f"{rule} of gradients", type(optimizer).__name__)
    if any(group["maximize"] for group in optimizer.param_groups):
        rule = (
            f"be false for algorithm={setting.algorithm}, which takes what was moved for a sum of gradients"
        )
        raise ConfigError.rule("optimizer.maximize", rule, True)
    if setting.keeps_optimizer and solver_of(client).momentum:
        rule = f"be reset for algorithm={setting.algorithm}, as momentum of earlier rounds is no gradient of this one"
        raise ConfigError.rule("federation.opt_state", rule, "keep")
    if setting.averages_weights:
        raise ConfigError(
            f"callbacks must average no weights for algorithm={setting.algorithm}, which divides what was moved by the "
            "steps that have moved it, but one of them does."
        )
    mu, largest = proximal_weight(client), largest_pull(solver_of(client)) / client.base_lr
    if mu > largest:
        rule = (
            f"be at most {largest:.3g} for algorithm={setting.algorithm} with this optimizer.lr and momentum, as with "
            "more some gradients would count against the others"
        )
        raise ConfigError.rule("algorithm.client.mu", rule, mu)
