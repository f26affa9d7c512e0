"""One Lightning fit of many clients, each with weights of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedfeat.client import ClientModule
from fedfeat.executors.stacked.clipping import Clip
from fedfeat.executors.stacked.dropout import DropoutMasks
from fedfeat.executors.stacked.stacking import Objective, gradients, narrow, restack
from fedfeat.executors.stacked.states import StateRows, load_states
from fedfeat.models.quick_module import QuickModule

if TYPE_CHECKING:
    from fedfeat.types import Params

PREFIX = "client."
"""What an `Objective` puts before the names of its client half's tensors."""


def trainable(client: ClientModule) -> dict[str, nn.Parameter]:
    """Give a client half's parameters that train, by the names of its `Objective`."""
    return {f"{PREFIX}{name}": p for name, p in client.named_parameters() if p.requires_grad}


class StackedClients(QuickModule):
    """Clients of one architecture side by side; a step is one of every client that still has one.

    Args:
        objective: Around the client half. What all clients have in common is in it.
        stack: What they do not, (K, *), under the names of its `Objective`; all that trains is among it. Changed in
            place by the fit.
        sizes: Examples of each step's batches (steps, K), 0 after a client's last one, which comes no later than that
            of the client before, in each phase.
        ends: The step with which each phase of the fits ends.
        seeds: Where each client's dropout starts.
        kept: The states that the clients' optimizers go on from, all of one `states.clock`; None where none is kept.
        clip: What is done to each client's gradients before a step.
        differentiate: `executors.stacked.stacking.gradients`, or a compiled one.
    """

    objective: Objective

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
        super().__init__()
        self.automatic_optimization = False
        # Not one of its modules: Lightning looks through them many times a fit, and moves them to and fro.
        self.__dict__["objective"] = objective
        trained = {name: nn.Parameter(stack.pop(name)) for name in trainable(objective.client)}
        self._names = list(trained)
        self.weights = nn.ParameterList(trained.values())
        self._fixed = dict(stack)
        self._sizes, self._ends = sizes, ends
        self._seeds, self._differentiate = seeds, differentiate
        self._phase, self._trained = -1, self._trains_now()
        self._kept, self._clip = kept, clip
        self._full: dict[nn.Parameter, Tensor] = {}
        self._counts = self._loss_sums = torch.empty(0)
        self._masks: DropoutMasks | None = None
        self.states: StateRows | None = None

    def configure_optimizers(self) -> Optimizer:
        """Lightning hook: the client half's optimizer, on stacked parameters."""
        client = self.objective.client
        optimizer = client.configure_optimizers()
        restack(optimizer, dict(zip(trainable(client).values(), self.weights, strict=True)))
        if self._kept is not None:
            load_states(optimizer, self._kept)
            self.states = StateRows(optimizer, len(self._kept))
        return optimizer

    def on_train_start(self) -> None:
        """Lightning hook: ready what steps need, on the device."""
        self.objective.to(self.device).train()
        self._full = {parameter: parameter.data for parameter in self.weights}
        self._fixed = {name: tensor.to(self.device) for name, tensor in self._fixed.items()}
        dtype = torch.promote_types(self.weights[0].dtype, torch.float32)
        self._counts = torch.tensor(self._sizes, dtype=dtype, device=self.device)
        self._loss_sums = torch.zeros(len(self.weights[0]), dtype=dtype, device=self.device)
        self._masks = DropoutMasks(self.objective.calls, self._seeds, self.device)

    @torch.no_grad()
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Lightning hook: one step of all clients that have one."""
        inputs, labels = batch
        sizes = self._sizes[batch_idx][: len(labels)]
        active = sum(size > 0 for size in sizes)
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        if len(self._ends) > 1:
            self._begin_phase_of(batch_idx, optimizer)
        if active != len(self.weights[0]):
            if self.states is not None:
                self.states.note(active)
            narrow(optimizer, self._full, active)
        losses = self._set_gradients(inputs, labels, sizes, active)
        if self._clip is not None:
            self._clip_gradients(self._clip, active)
        optimizer.step()
        self._loss_sums[:active].addcmul_(losses, self._counts[batch_idx, :active])

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
        assert self._masks is not None
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

    def on_train_end(self) -> None:
        """Lightning hook: show the tensors of all clients again."""
        for parameter, tensor in self._full.items():
            parameter.grad = None
            parameter.data = tensor

    def fitted(self) -> Params:
        """Give the tensors (K, *) of the clients, on the CPU, under the names of the client half's and in its order."""
        trained = dict(zip(self._names, (parameter.data for parameter in self.weights), strict=True))
        found = {key.removeprefix(PREFIX): tensor for key, tensor in (trained | self._fixed).items()}
        return {key: found[key].cpu() for key in self.objective.client.state_dict() if key in found}

    def loss_sums(self) -> list[float]:
        """Give each client's sum of losses over the examples that it has seen."""
        return self._loss_sums.tolist()
