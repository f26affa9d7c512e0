"""One Lightning fit of many clients, each with weights of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedfeat.client import ClientModule, QuickModule
from fedfeat.stacking import DropoutCall, DropoutMasks, Objective, narrow, restack, stacked_losses

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
        client: The client half. What all clients have in common is in it.
        stack: What they do not, (K, *), under the names of its `Objective`; all that trains is among it. Changed in
            place by the fit.
        sizes: Examples of each client's batches (K, steps), 0 after its last one, which comes no later than that of
            the client before.
        calls: The dropout of one forward pass.
        seeds: Where each client's dropout starts.
    """

    def __init__(
        self,
        client: ClientModule,
        stack: Params,
        sizes: Sequence[Sequence[int]],
        calls: Sequence[DropoutCall] = (),
        seeds: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.objective = Objective(client)
        trained = {name: nn.Parameter(stack.pop(name)) for name in trainable(client)}
        self._names = list(trained)
        self.weights = nn.ParameterList(trained.values())
        self._fixed = dict(stack)
        self._sizes, self._calls, self._seeds = sizes, calls, seeds
        self._full: dict[nn.Parameter, Tensor] = {}
        self._counts = self._loss_sums = torch.empty(0)
        self._masks: DropoutMasks | None = None

    def configure_optimizers(self) -> Optimizer:
        """Lightning hook: the client half's optimizer, on stacked parameters."""
        client = self.objective.client
        optimizer = client.configure_optimizers()
        restack(optimizer, dict(zip(trainable(client).values(), self.weights, strict=True)))
        return optimizer

    def on_train_start(self) -> None:
        """Lightning hook: ready what steps need, on the device."""
        self._full = {parameter: parameter.data for parameter in self.weights}
        self._fixed = {name: tensor.to(self.device) for name, tensor in self._fixed.items()}
        self._counts = torch.tensor(self._sizes, dtype=torch.float32, device=self.device)
        self._loss_sums = torch.zeros(len(self._sizes), device=self.device)
        self._masks = DropoutMasks(self._calls, self._seeds, self.device)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Lightning hook: one step of all clients that have one."""
        inputs, labels = batch
        active = len(labels)
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        if active < len(self.weights[0]):
            narrow(optimizer, self._full, active)
        optimizer.zero_grad()
        assert self._masks is not None
        masks = self._masks.draw([sizes[batch_idx] for sizes in self._sizes[:active]]) if self._calls else []
        losses = self.losses(inputs, labels, masks)
        self.manual_backward(losses.sum())
        optimizer.step()
        self._loss_sums[:active].addcmul_(losses.detach(), self._counts[:active, batch_idx])

    def losses(self, inputs: Tensor, labels: Tensor, masks: Iterable[Tensor]) -> Tensor:
        """Losses (K,) of the first K clients on inputs (K, B, ...) and labels (K, B)."""
        fixed = {name: tensor[: len(labels)] for name, tensor in self._fixed.items()}
        stack = dict(zip(self._names, self.weights, strict=True)) | fixed
        return stacked_losses(self.objective, stack, inputs, labels, self._calls, list(masks))

    def on_train_end(self) -> None:
        """Lightning hook: show the tensors of all clients again."""
        for parameter, tensor in self._full.items():
            parameter.grad = None
            parameter.data = tensor

    def fitted(self) -> Params:
        """Give the tensors (K, *) of the clients' models, on the CPU."""
        model = f"{PREFIX}model."
        trained = dict(zip(self._names, (parameter.data for parameter in self.weights), strict=True))
        found = trained | self._fixed
        return {k.removeprefix(model): v.cpu() for k, v in found.items() if k.startswith(model)}

    def loss_sums(self) -> list[float]:
        """Give each client's sum of losses over the examples that it has seen."""
        return self._loss_sums.tolist()
