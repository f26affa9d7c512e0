"""FedOpt: Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithms 1 and 2; FedAvgM: Hsu et al., 2019.

    server: m <- 0;  v <- tau^2;  each round: S <- sample clients
            for k in S:  send x;  receive x_k
            Delta <- (the mean of x_k) - x                                the mean is another server half's
            FedAvgM:     m <- beta m + Delta;                x <- x + eta m
            the others:  m <- beta1 m + (1 - beta1) Delta;   x <- x + eta m / (sqrt(v) + tau)
                FedAdagrad:  v <- v + Delta^2
                FedAdam:     v <- beta2 v + (1 - beta2) Delta^2
                FedYogi:     v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)

Only what trains and is sent makes steps: buffers, integers among them, and frozen parameters have the plain mean. What
nobody of a cohort has sent (a group of Fed2's, a channel of HeteroFL's) keeps its value, its m and its v. The paper's
experiments ran on Keras' optimizers (google-research/federated): v starts at 0, beta2 is .999, and with
``bias_correction`` eta is multiplied by sqrt(1 - beta2^t) / (1 - beta1^t) in step t.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedfeat.config.conditions import Positive, Share
from fedfeat.params import full, trained_names
from fedfeat.server import Around, AveragingServer, noting
from fedfeat.types import Federation, Update


class Moments(NamedTuple):
    """What the server remembers of one tensor (n, *).

    Attributes:
        m: Mean of its changes, of its shape; for FedAvgM their decaying sum.
        v: That of their squares; None for FedAvgM.
        steps: How many steps each row has made, int64 (n,); each number, (n, *), where rows are averaged in parts.
    """

    m: Tensor
    v: Tensor | None
    steps: Tensor


class FedOptState(NamedTuple):
    """State of the server.

    Attributes:
        average: State of the server half that averages, with x in it.
        moments: For each tensor that makes steps.
    """

    average: Any
    moments: dict[str, Moments]


class FedOptServer(Around, AveragingServer):
    """Let another half average, and step from x by what it finds; what all methods here have in common.

    Args:
        average: The server half that averages.
        lr: eta, the server's learning rate.
    """

    def __init__(self, average: AveragingServer, lr: Positive) -> None:
        super().__init__(average)
        self.lr = lr

    @abstractmethod
    def step(self, delta: Tensor, old: Moments) -> tuple[Tensor, Moments]:
        """Give the change of x and the new moments by Delta (n, *) and the old ones, whose ``steps`` count this one."""

    def start(self, like: Tensor) -> Moments:
        """Give the moments before the first step."""
        return Moments(torch.zeros_like(like), None, torch.zeros(like.shape[:1], dtype=torch.int64))

    def init(self, model: nn.Module, federation: Federation) -> FedOptState:
        """Start as the average does, at rest."""
        average = self.average.init(model, federation)
        sent = self.average.params(average)
        names = trained_names(model, sent)
        return FedOptState(average, {name: self.start(full(sent[name])) for name in names})

    def aggregate(self, state: FedOptState, updates: Iterable[Update]) -> FedOptState:
        """Average, and step from x by the difference; a round without an update changes nothing of it."""
        cohort: list[tuple[int, int]] = []
        average = self.average.mean(state.average, noting(updates, cohort))
        if not cohort:
            return state._replace(average=average)
        before, means = self.params(state), self.average.params(average)
        averaged = self.average.covered(state.average, cohort)
        params, moments = dict(means), dict(state.moments)
        for key, old in state.moments.items():
            delta = full(means[key]) - full(before[key])
            change, new = self.step(delta, old._replace(steps=old.steps + 1))
            # Not x + change: where the change is Delta, as in FedAvg, the mean comes back bit for bit.
            stepped = (full(means[key]) + (change - delta)).to(means[key].dtype)
            params[key] = _where(averaged[key], stepped, before[key])
            moments[key] = _some(averaged[key], new, old)
        return FedOptState(self.average.with_params(average, params), moments)

    def covered(self, state: FedOptState, cohort: Iterable[tuple[int, int]]) -> dict[str, Tensor]:
        """Say what the average says."""
        return self.average.covered(state.average, cohort)

    def params(self, state: FedOptState) -> dict[str, Tensor]:
        """Give x, and beside it the tensors that make no steps."""
        return self.average.params(state.average)

    def with_params(self, state: FedOptState, params: dict[str, Tensor]) -> FedOptState:
        """Give the state with others of them and the same moments."""
        return state._replace(average=self.average.with_params(state.average, params))


class FedAvgMServer(FedOptServer):
    """Momentum. With beta = 0 and lr = 1 it is the average bit for bit.

    Args:
        beta: Share of the last step in the next one.
        lr: eta.
        arguments: As in `FedOptServer`.
    """

    def __init__(self, *, beta: Share = 0.9, lr: Positive = 1.0, **arguments: Any) -> None:
        super().__init__(lr=lr, **arguments)
        self.beta = beta

    def step(self, delta: Tensor, old: Moments) -> tuple[Tensor, Moments]:
        """Give ``eta m``."""
        m = self.beta * old.m + delta
        return self.lr * m, old._replace(m=m)


class AdaptiveServer(FedOptServer):
    """Steps that are scaled number by number; what FedAdagrad, FedAdam and FedYogi have in common.

    Args:
        beta1: Decay of m.
        tau: Degree of adaptivity: far below it the steps are those of SGD with eta / tau.
        v_init: First v: ``tau2``, tau squared, the least in the paper's box, or 0 as in google-research/federated.
        lr: eta, which has to be tuned.
        arguments: As in `FedOptServer`.
    """

    def __init__(
        self,
        *,
        beta1: Share = 0.9,
        tau: Positive = 0.001,
        v_init: Literal["tau2", 0] = "tau2",
        lr: Positive = 0.01,
        **arguments: Any,
    ) -> None:
        super().__init__(lr=lr, **arguments)
        self.beta1, self.tau = beta1, tau
        self.v_start = tau**2 if v_init == "tau2" else 0.0

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Give the new v from the one before and Delta squared."""

    def start(self, like: Tensor) -> Moments:
        """Give the moments before the first step."""
        return super().start(like)._replace(v=torch.full_like(like, self.v_start))

    def step(self, delta: Tensor, old: Moments) -> tuple[Tensor, Moments]:
        """Give ``eta m / (sqrt(v) + tau)``."""
        assert old.v is not None
        m = self.beta1 * old.m + (1 - self.beta1) * delta
        v = self.second_moment(old.v, delta.square())
        return self.lr * m / (v.sqrt() + self.tau), old._replace(m=m, v=v)


class FedAdagradServer(AdaptiveServer):
    """Squares add up, so steps become smaller and smaller; momentum is usually none (beta1 = 0)."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Give ``v + Delta^2``."""
        return v + square


class FedAdamServer(AdaptiveServer):
    """Squares are averaged with decay.

    Args:
        beta2: Decay of v.
        bias_correction: Multiply eta by what makes up for moments that have started at 0, as Keras does.
        arguments: As in `AdaptiveServer`.
    """

    def __init__(self, *, beta2: Share = 0.99, bias_correction: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.beta2, self.bias_correction = beta2, bias_correction

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Give ``beta2 v + (1 - beta2) Delta^2``."""
        return self.beta2 * v + (1 - self.beta2) * square

    def step(self, delta: Tensor, old: Moments) -> tuple[Tensor, Moments]:
        """As the others do, with eta corrected where that is wanted."""
        change, new = super().step(delta, old)
        if not self.bias_correction:
            return change, new
        factor = correction(old.steps.double(), self.beta1, self.beta2).to(change.dtype)
        return change * _with_dimensions(factor, change.dim()), new


class FedYogiServer(FedAdamServer):
    """As FedAdam, but v moves towards Delta squared by a step that does not depend on how large v is."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Give ``v - (1 - beta2) Delta^2 sign(v - Delta^2)``."""
        return v - (1 - self.beta2) * square * (v - square).sign()


def correction(t: Tensor, beta1: float, beta2: float) -> Tensor:
    """Give the factor of eta in the steps t, ``sqrt(1 - beta2^t) / (1 - beta1^t)``."""
    return (1 - beta2**t).sqrt() / (1 - beta1**t)


def _some(chosen: Tensor, new: Moments, old: Moments) -> Moments:
    v = None if new.v is None or old.v is None else _where(chosen, new.v, old.v)
    return Moments(_where(chosen, new.m, old.m), v, _where(chosen, new.steps, old.steps))


def _where(chosen: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """As `torch.where`, from the first dimension on."""
    chosen, new, old = (_with_dimensions(part, max(chosen.dim(), new.dim())) for part in (chosen, new, old))
    return torch.where(chosen, new, old)


def _with_dimensions(numbers: Tensor, dim: int) -> Tensor:
    return numbers.reshape(*numbers.shape, *[1] * (dim - numbers.dim()))
