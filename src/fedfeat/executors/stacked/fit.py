"""One fit of many clients, each with weights of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedfeat.client import ClientModule
from fedfeat.executors.stacked.clipping import Clip
from fedfeat.executors.stacked.dropout import DropoutMasks
from fedfeat.executors.stacked.stacking import Objective, gradients, narrow, restack
from fedfeat.executors.stacked.states import StateRows, load_states

if TYPE_CHECKING:
    from fedfeat.types import Params

PREFIX = "client."
"""What an `Objective` puts before the names of its client half's tensors."""


def trainable(client: ClientModule) -> dict[str, nn.Parameter]:
    """Give a client half's parameters that train, by the names of its `Objective`."""
    return {f"{PREFIX}{name}": p for name, p in client.named_parameters() if p.requires_grad}


class StackedClients:
    """Clients of one architecture side by side; a step is one of every client that still has one.

    Lightning's Trainer has no part in it: what it would do beside a step is refused where clients are stacked
    (`stackable`), and it would take the weights back to host memory after every fit.

    Args:
        objective: Around the client half, on the device. What all clients have in common is in it.
        stack: What they do not, (K, *), under the names of its `Objective`; all that trains is among it. Changed in
            place by the fit, where it is.
        sizes: Examples of each step's batches (steps, K), 0 after a client's last one, which comes no later than that
            of the client before, in each phase.
        ends: The step with which each phase of the fits ends.
        seeds: Where each client's dropout starts.
        kept: The states that the clients' optimizers go on from, all of one `states.clock`; None where none is kept.
        clip: What is done to each client's gradients before a step.
        differentiate: `executors.stacked.stacking.gradients`, or a compiled one.
    """

    def __init__(
        self,
        objective: Objective,
        stack: Params,
        sizes: Sequence[Sequence[int]],
        ends: Sequence[int],
        seeds: Sequence[int] = (),
        kept: Sequence[Params] | None = None,
        clip: Clip | None = None,
        differentiate: Callable[..., tuple[Params, Tensor, Params]] = gradients,
    ) -> None:
        self.objective = objective
        single = trainable(objective.client)
        self._names, self.weights = list(single), [nn.Parameter(stack[name]) for name in single]
        self._fixed = {name: tensor for name, tensor in stack.items() if name not in single}
        self._sizes, self._ends = sizes, ends
        self._differentiate, self._clip = differentiate, clip
        self._phase, self._trained = -1, self._trains_now()
        self._full = {parameter: parameter.data for parameter in self.weights}
        first = self.weights[0]
        dtype, device = torch.promote_types(first.dtype, torch.float32), first.device
        self._counts = torch.tensor(sizes, dtype=dtype, device=device)
        self._loss_sums = torch.zeros(len(first), dtype=dtype, device=device)
        self._masks = DropoutMasks(objective.calls, seeds, device)
        self._optimizer = objective.client.configure_optimizers()
        restack(self._optimizer, dict(zip(single.values(), self.weights, strict=True)))
        self.states: StateRows | None = None
        if kept is not None:
            load_states(self._optimizer, kept)
            self.states = StateRows(self._optimizer, len(kept))

    def fit(
        self, batches: Iterable[tuple[Tensor, Tensor]], precision: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Take the steps.

        Args:
            batches: Inputs and labels of each, on the device.
            precision: Gives the context of a step.
        """
        for step, batch in enumerate(batches):
            with precision():
                self._step(step, *batch)
        for parameter, tensor in self._full.items():
            parameter.grad = None
            parameter.data = tensor

    @torch.no_grad()
    def _step(self, step: int, inputs: Tensor, labels: Tensor) -> None:
        sizes = self._sizes[step][: len(labels)]
        active = sum(size > 0 for size in sizes)
        if len(self._ends) > 1:
            self._begin_phase_of(step, self._optimizer)
        if active != len(self.weights[0]):
            if self.states is not None:
                self.states.note(active)
            narrow(self._optimizer, self._full, active)
        losses = self._set_gradients(inputs, labels, sizes, active)
        if self._clip is not None:
            self._clip_gradients(self._clip, active)
        self._optimizer.step()
        self._loss_sums[:active].addcmul_(losses, self._counts[step, :active])

    def _clip_gradients(self, clip: Clip, active: int) -> None:
        stepped = zip(self._names, self.weights, strict=True)
        found = {name.removeprefix(PREFIX): p.grad for name, p in stepped if p.grad is not None}
        fixed = {name.removeprefix(PREFIX): tensor[:active] for name, tensor in self._fixed.items()}

        def bound(chosen: Iterable[str]) -> None:
            clip.together([found[name] for name in chosen])

        self.objective.client.clip(found, bound, self.objective.client.state_dict() | fixed)

    def _begin_phase_of(self, step: int, optimizer: Optimizer) -> None:
        phase = bisect_right(self._ends, step)
        if phase != self._phase:
            self._phase = phase
            self.objective.client.begin_phase(phase, optimizer)
            self._trained = self._trains_now()
            for parameter in self.weights:
                parameter.grad = None

    def _trains_now(self) -> frozenset[str]:
        return frozenset(trainable(self.objective.client)) - self.objective.unused

    def _set_gradients(self, inputs: Tensor, labels: Tensor, sizes: Sequence[int], active: int) -> Tensor:
        """Give the first clients' weights their gradients, and return their losses (active,)."""
        count = len(labels)
        masks = self._masks.draw(sizes, labels.shape[1])
        fixed = {name: tensor[:count] for name, tensor in self._fixed.items()}
        parameters = dict(zip(self._names, self.weights, strict=True))
        stack = {name: self._full[p][:count] for name, p in parameters.items()}
        own = {name: tensor for name, tensor in stack.items() if name in self._trained}
        fixed |= {name: tensor for name, tensor in stack.items() if name not in self._trained}
        with self.objective.stacked_forms():
            found, losses, moved = self._differentiate(self.objective, own, fixed, inputs, labels, masks)
        for name, gradient in found.items():
            parameters[name].grad = gradient[:active]
        for name, tensor in moved.items():
            fixed[name].copy_(tensor)
        return losses[:active]

    def fitted(self) -> Params:
        """Give the tensors (K, *) of the clients, under the names of the client half's and in its order."""
        trained = dict(zip(self._names, self._full.values(), strict=True))
        found = {key.removeprefix(PREFIX): tensor for key, tensor in (trained | self._fixed).items()}
        return {key: found[key] for key in self.objective.client.state_dict() if key in found}

    def loss_sums(self) -> list[float]:
        """Give each client's sum of losses over the examples that it has seen."""
        return self._loss_sums.tolist()
