"""The client half of a method: a LightningModule in which clients take turns."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from fedfeat.params import copy_into, snapshot
from fedfeat.policy import PERSONAL, SHARED, keys_with, tensor_policies

Batch = tuple[Tensor, Tensor]


class Weights(NamedTuple):
    """Payload of weight-averaging methods.

    Attributes:
        params: The shared tensors of the model under their names, each of its layer's shape.
    """

    params: dict[str, Tensor]


class ClientModule(pl.LightningModule):
    """A model with its local objective; by default that of FedAvg.

    A method overrides `loss` and, where something else crosses the wire, `receive`, `upload` and `payload_type`.

    Args:
        model: The network.
        optimizer: Makes the optimizer from parameters and ``lr``.
        personal: What stays with the client, see `policy.tensor_policies`.
        channels_last: Keep images and filters in the channels-last layout.
    """

    payload_type: ClassVar[type] = Weights

    def __init__(
        self,
        model: nn.Module,
        optimizer: partial[Optimizer],
        personal: Sequence[str] = (),
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self.model = model.to(memory_format=torch.channels_last) if channels_last else model
        # Hydra's own partial checks its target again at every call (0.3 ms).
        self.optimizer_factory = partial(optimizer.func, *optimizer.args, **optimizer.keywords)
        self.channels_last = channels_last
        self.policies = tensor_policies(model, personal)
        self.shared_keys = keys_with(self.policies, SHARED)
        self.personal_keys = keys_with(self.policies, PERSONAL)
        self.lr_factor = 1.0
        self.optimizer_memory: dict[str, Tensor] = {}
        self._initial_personal = snapshot(model, self.personal_keys)
        self._loss_sum: Tensor | float = 0.0
        self._num_seen = 0.0

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign as any module does, but Lightning's note of the running hook (44 per step) without a search."""
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def receive(self, payload: Any, memory: dict[str, Tensor] | None) -> None:
        """Become one client: shared tensors from the server, personal ones from memory or the initial model."""
        copy_into(self.model, payload.params)
        copy_into(self.model, memory if memory else self._initial_personal)

    def loss(self, batch: Batch) -> Tensor:
        """Local objective on a batch of inputs (B, ...) and labels (B,); a scalar."""
        inputs, labels = batch
        return functional.cross_entropy(self(inputs), labels)

    def upload(self) -> tuple[Any, dict[str, Tensor] | None]:
        """Give the payload for the server and the memory to keep (None where nothing is personal)."""
        memory = snapshot(self.model, self.personal_keys) if self.personal_keys else None
        return Weights(snapshot(self.model, self.shared_keys)), memory

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, num_classes) of inputs (B, ...)."""
        if self.channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return self.model(inputs)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Lightning hook: the local objective, its mean kept for ``train/loss``."""
        loss = self.loss(batch)
        count = len(batch[1])
        # A tensor on the model's device: reading it out here would wait for the GPU at every step.
        self._loss_sum = self._loss_sum + loss.detach() * count
        self._num_seen += count
        return loss

    def on_train_end(self) -> None:
        """Lightning hook: put the devices of this fit together."""
        if self.trainer.world_size > 1:
            seen = torch.tensor([float(self._loss_sum), self._num_seen], device=self.device)
            self._loss_sum, self._num_seen = self.trainer.strategy.reduce(seen, reduce_op="sum").tolist()

    def configure_optimizers(self) -> Optimizer:
        """Lightning hook: a fresh optimizer at the round's learning rate."""
        trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        base = self.optimizer_factory.keywords["lr"]
        optimizer = self.optimizer_factory(trainable, lr=base * self.lr_factor)
        if self.optimizer_memory:
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in self.optimizer_memory.items():
                _, index, name = key.split("/")
                state.setdefault(int(index), {})[name] = value
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        return optimizer

    def begin_turn(self, lr_factor: float) -> None:
        """Reset what one local fit accumulates."""
        self.lr_factor = lr_factor
        self._loss_sum, self._num_seen = 0.0, 0.0

    def turn_metrics(self) -> dict[str, float]:
        """Mean training loss over the examples seen in this turn, and their number."""
        return {"train/loss": float(self._loss_sum) / max(self._num_seen, 1.0), "examples": self._num_seen}
