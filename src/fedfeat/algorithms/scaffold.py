"""SCAFFOLD: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", 2020, Algorithm 1.

    server: x, c <- initial model, 0;  each round: S <- sample of the N clients
            for k in S:  send x, c;  receive y_k, c_k+ - c_k
            x <- x + eta_g * sum over S of w_k / (sum over S of w_j) * (y_k - x)
            c <- c + sum over S of w_k / (sum over all N of w_j) * (c_k+ - c_k)
    client: c_k comes from its memory, at first 0;  y <- x
            for K_k steps:  y <- y - lr * (g_k(y) - c_k + c)                                           (Eq. 3)
            c_k+ <- option I: grad F_k(x);  option II: c_k - c + (x - y) / (K_k * lr)                  (Eq. 4)
            keep c_k+;  return y, c_k+ - c_k

The paper's w_k are 1. With any weights c is the weighted mean of all c_k, those that have never taken part included.
With momentum or a proximal term, K_k is ||a_k||_1 (`algorithms.effective_steps`), with which option II remains a mean
of the gradients. The averaging is any weighted mean, for example Fed2's paired one.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedfeat.algorithms.around_mean import AroundMean, add_rows, full_zeros, shares
from fedfeat.algorithms.effective_steps import check_solver, effective_steps, proximal_weight, solver_of
from fedfeat.client import Batch, ClientModule
from fedfeat.config.conditions import Positive
from fedfeat.models.clipping import Bound
from fedfeat.models.frozen import FrozenCopy
from fedfeat.models.group_rows import take_rows
from fedfeat.params import full, select, trained_names, zeros_of
from fedfeat.server import AveragingServer
from fedfeat.types import Federation, Params, Setting, Tensors, Turn, Update, Weights

_BATCH = 256


class Controlled(NamedTuple):
    """Payload in both directions.

    Attributes:
        params: Down x, up y_k.
        control: Down c, up c_k+ - c_k, of what is trained and shared.
    """

    params: dict[str, Tensor]
    control: dict[str, Tensor]


class Control(NamedTuple):
    """A client's memory: its c_k."""

    control: dict[str, Tensor]


class ScaffoldClient(ClientModule):
    """FedAvg's client with corrected gradients.

    Args:
        option: How c_k is renewed: ``I`` by the gradient of all its examples at x, in eval mode and without
            augmentation, which is a pass more; ``II`` by the mean of the gradients of its steps.
        arguments: As in `ClientModule`.
    """

    payload_type: ClassVar[type] = Controlled
    keeps_tensors = True
    apart = None  # the correction is in the state dict, so turns can be stacked

    def __init__(self, *, option: Literal["I", "II"] = "II", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.option = option
        self.correction = FrozenCopy(self.model)
        if option == "I":
            self.gradient = FrozenCopy(self.model)
        self._trained = trained_names(self.model, self.shared_keys)
        self._examples_of_gradient = 0.0

    def check(self, setting: Setting) -> None:
        """Refuse steps that are no known sums of gradients."""
        super().check(setting)
        check_solver(self, setting)

    def begin_turn(self, turn: Turn) -> None:
        """Fix c - c_k, and with option I take the gradient at x."""
        super().begin_turn(turn)
        c, own = turn.payload.control, turn.memory.control if turn.memory else {}
        self.correction.fill({key: c[key] - own[key] if own else c[key] for key in self._trained})
        if self.option == "I":
            self.gradient.fill(self._gradient_of_all(turn))

    def loss(self, batch: Batch) -> Tensor:
        """``F_k(y)``, whose gradient is that of ``F_k(y) + <c - c_k, y>``."""
        loss = super().loss(batch)
        own, correction = dict(self.model.named_parameters()), self.correction.named_tensors()
        for name in self._trained:
            term = (own[name] * correction[name]).sum()
            loss = loss + (term - term.detach())
        return loss

    def clip(self, gradients: Params, bound: Bound, tensors: Params) -> None:
        """Clip the gradient of ``F_k`` alone; of a clipped correction c_k would know nothing."""
        added = {f"model.{name}": tensors[f"correction.network.{name}"] for name in self._trained}
        pairs = [(gradient, added[name]) for name, gradient in gradients.items() if name in added]
        for gradient, term in pairs:
            gradient.sub_(term)
        bound(gradients)
        for gradient, term in pairs:
            gradient.add_(term)

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[Controlled, Control]:
        """Give y_k and the change of c_k, and keep c_k."""
        self._examples_of_gradient = float(turn.class_counts.sum()) if self.option == "I" else 0.0
        y = select(tensors["model"], self.shared_keys)
        own = turn.memory.control if turn.memory else zeros_of(y, self._trained)
        if self.option == "I":
            found = tensors["gradient"]
            change = {key: (found[f"network.{key}"] - own[key]).to(y[key]) for key in self._trained}
        else:
            change = self._change(turn, y)
        # The server sums changes in full precision, so that c stays the mean of all c_k.
        return Controlled(y, change), Control(
            {key: full(own[key]) + full(change[key]) for key in self._trained}
        )

    def _change(self, turn: Turn, y: dict[str, Tensor]) -> dict[str, Tensor]:
        """Give ``(x - y) / (||a||_1 * lr) - c``; nothing has changed where no step was made."""
        x, c = turn.payload
        length = turn.lr * effective_steps(solver_of(self), turn.num_steps, turn.lr, proximal_weight(self))
        if not length:
            return zeros_of(y, self._trained)
        return {key: (x[key] - y[key]) / length - c[key] for key in self._trained}

    def _gradient_of_all(self, turn: Turn) -> dict[str, Tensor]:
        """Give the gradient of ``F_k`` at x over all of a client's examples; weight decay is a part of it."""
        named = dict(self.model.named_parameters())
        at = [named[name] for name in self._trained]
        sums, count = [torch.zeros_like(own, device=turn.device) for own in at], 0
        self.to(turn.device).eval()
        for batch in turn.batches(_BATCH):
            found = torch.autograd.grad(super().loss(batch), at, allow_unused=True, materialize_grads=True)
            torch._foreach_add_(sums, found, alpha=len(batch[1]))
            count += len(batch[1])
        self.train()
        groups = self.configure_optimizers().param_groups
        decay = {own: group["weight_decay"] for group in groups for own in group["params"]}
        return {
            name: total / max(count, 1) + decay[own] * own.detach()
            for name, own, total in zip(self._trained, at, sums, strict=True)
        }

    def turn_metrics(self) -> dict[str, float]:
        """As `ClientModule`, with the pass of option I."""
        metrics = super().turn_metrics()
        metrics["flops"] += self._examples_of_gradient * self.flops_per_example
        return metrics


class ScaffoldState(NamedTuple):
    """State of the server.

    Attributes:
        average: State of the server half that averages: x.
        control: c, in float32 at least: a sum of many shares in half precision stands still.
        totals: What all N clients weigh in the average, see `AveragingServer.weights`.
    """

    average: Any
    control: dict[str, Tensor]
    totals: dict[str, Tensor]


class ScaffoldServer(AroundMean):
    """Average weights, and move c by what the cohort's c_k have changed.

    Args:
        average: The server half that averages; what clients weigh in its mean they weigh in c.
        eta_g: Step towards the mean, of what is trained; running statistics become the mean.
    """

    payload_type: ClassVar[type] = Controlled

    def __init__(self, average: AveragingServer, eta_g: Positive = 1.0) -> None:
        super().__init__(average)
        self.eta_g = eta_g

    def init(self, model: nn.Module, federation: Federation) -> ScaffoldState:
        """Start from the common initial model and zeros."""
        average = self.average.init(model, federation)
        control = full_zeros(self.average.params(average), self.trained_keys(model, average))
        return ScaffoldState(average, control, select(self.total_weights(average, federation), control))

    def payload(self, state: ScaffoldState, weights: Weights, client_id: int | None = None) -> Controlled:
        """Put c beside x, in its types."""
        rows = None if client_id is None else self.average.rows(state.average, client_id)
        control = take_rows(state.control, rows)
        return Controlled(
            weights.params, {key: c.to(weights.params[key].dtype) for key, c in control.items()}
        )

    def aggregate(self, state: ScaffoldState, updates: Iterable[Update]) -> ScaffoldState:
        """Step towards the mean and renew c; a round without an update changes nothing."""
        control = {key: tensor.clone() for key, tensor in state.control.items()}
        average = self.average.aggregate(state.average, self._renewing(control, state, updates))
        before, after = self.average.params(state.average), self.average.params(average)
        steps = {key: torch.lerp(before[key], after[key], self.eta_g) for key in control}
        return state._replace(average=self.average.with_params(average, after | steps), control=control)

    def _renewing(
        self, control: dict[str, Tensor], state: ScaffoldState, updates: Iterable[Update]
    ) -> Iterator[Update]:
        """Pass the weights of updates on, and add to c, in place, what they say of it."""
        for update in updates:
            found = self.weights(state.average, update.client_id, update.num_examples)
            rows = self.average.rows(state.average, update.client_id)
            add_rows(control, update.payload.control, shares(select(found, control), state.totals), rows)
            yield update._replace(payload=Weights(update.payload.params))
