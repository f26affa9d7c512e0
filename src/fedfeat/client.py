"""The client half of a method: a LightningModule in which clients take turns."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from fedfeat.clients.optimizer_state import optimizer_state
from fedfeat.errors import ConfigError
from fedfeat.models.class_map import kept_sets
from fedfeat.models.flops import forward_flops, training_flops
from fedfeat.models.grouped import GroupedNetwork
from fedfeat.models.network import Network
from fedfeat.models.policy import PERSONAL, keys_with, sent_keys, tensor_policies
from fedfeat.params import copy_into, select, snapshot

if TYPE_CHECKING:
    from fedfeat.types import Params

Batch = tuple[Tensor, Tensor]
SoftmaxScope = Literal["all", "kept_groups", "present_classes"]


class Weights(NamedTuple):
    """Payload of weight-averaging methods.

    Attributes:
        params: The shared tensors of the model under their names, each of its layer's shape.
    """

    params: dict[str, Tensor]


class QuickModule(pl.LightningModule):
    """A LightningModule that notes plain values without a search among its parameters and modules."""

    # Lightning notes the running hook 44 times a step; the others change at every step.
    _plain = frozenset({"_current_fx_name", "_loss_sum", "_num_seen"})

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign as any module does."""
        if name in self._plain:
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)


class ClientModule(QuickModule):
    """A model with its local objective; by default that of FedAvg.

    A method overrides `loss` and, where something else crosses the wire, `receive`, `upload` and `payload_type`.

    Args:
        model: The network.
        optimizer: Makes the optimizer from parameters and ``lr``.
        personal: What stays with the client, see `models.policy.tensor_policies`.
        channels_last: Keep images and filters in the channels-last layout.
        softmax_scope: Logits in the local softmax: ``all`` that the network has, those of ``present_classes`` of the
            client, or of ``kept_groups``, groups that hold one (METHODS 4.3e).

    Raises:
        ConfigError: ``kept_groups`` for a network without groups.
    """

    payload_type: ClassVar[type] = Weights
    fixed_inputs = False
    """Whether the method needs the same inputs in every epoch, hence data without augmentation."""
    resets_optimizer = False
    """Whether parameters freeze or change their shapes between turns, so that no momentum can be kept."""
    keeps_model = False
    """Whether a client keeps a whole model of its own, beside what is shared."""
    apart: str | None = None
    """Why clients cannot be stacked into one fit (`executor=vectorized`), as "it ..."; None where they can: all that
    tells their turns apart is in `state_dict` after `receive` and `begin_turn`, and `upload_from` gives what they
    send. A class that overrides more of a turn than `loss` has to have an ``apart`` of its own."""
    plain: Callable[[Tensor], Tensor]
    """From unlabelled inputs as the server sends them to what the network reads; set by the worker."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: partial[Optimizer],
        personal: Sequence[str] = (),
        channels_last: bool = False,
        softmax_scope: SoftmaxScope = "all",
    ) -> None:
        super().__init__()
        self.model = model.to(memory_format=torch.channels_last) if channels_last else model
        # Hydra's own partial checks its target again at every call (0.3 ms).
        self.optimizer_factory = partial(optimizer.func, *optimizer.args, **optimizer.keywords)
        self.channels_last = channels_last
        self.policies = tensor_policies(model, personal)
        self.shared_keys = sent_keys(self.policies)
        self.personal_keys = keys_with(self.policies, PERSONAL)
        if softmax_scope == "kept_groups" and not isinstance(model, GroupedNetwork):
            raise ConfigError.rule(
                "algorithm.client.softmax_scope",
                "be all or present_classes for a network without groups",
                softmax_scope,
            )
        self.softmax_scope = softmax_scope
        self._outside: Tensor | None
        self.register_buffer("_outside", None)
        self.lr_factor = 1.0
        self.optimizer_memory: dict[str, Tensor] = {}
        self._initial_personal = snapshot(model, self.personal_keys)
        self._loss_sum: Tensor | float = 0.0
        self._num_seen = 0.0

    def receive(self, payload: Any, memory: dict[str, Tensor] | None) -> None:
        """Become one client: shared tensors from the server, personal ones from memory or the initial model."""
        copy_into(self.model, payload.params)
        copy_into(self.model, memory if memory else self._initial_personal)

    def become(self, payload: Any, memory: dict[str, Tensor] | None) -> None:
        """Take a client's own model for evaluation: what it received with what it keeps."""
        self.receive(payload, memory)

    def represent(self, inputs: Tensor) -> Tensor:
        """Representation (B, d) of inputs (B, ...): what the last layer reads, without dropout."""
        return cast(Network, self.model).representation(self.laid_out(inputs))

    def loss(self, batch: Batch) -> Tensor:
        """Local objective on a batch of inputs (B, ...) and labels (B,); a scalar."""
        inputs, labels = batch
        return self.cross_entropy(self(inputs), labels)

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of logits (B, num_classes) over the softmax's scope."""
        if self._outside is not None:
            logits = logits.masked_fill(self._outside, -torch.inf)
        return functional.cross_entropy(logits, labels)

    def upload(self) -> tuple[Any, dict[str, Tensor] | None]:
        """Give the payload for the server and the memory to keep (None where nothing is personal)."""
        return self.upload_from(snapshot(self.model, (*self.shared_keys, *self.personal_keys)))

    def upload_from(self, state: "Params") -> tuple[Any, "Params | None"]:
        """Give payload and memory of a model with these tensors, shared and personal, which are not copied."""
        memory = select(state, self.personal_keys) if self.personal_keys else None
        return Weights(select(state, self.shared_keys)), memory

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, num_classes) of inputs (B, ...)."""
        return self.model(self.laid_out(inputs))

    def laid_out(self, inputs: Tensor) -> Tensor:
        """Give inputs (B, ...) in the memory layout of the model."""
        if self.channels_last and inputs.dim() == 4:
            return inputs.contiguous(memory_format=torch.channels_last)
        return inputs

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
            state = optimizer_state(self.optimizer_memory)
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        return optimizer

    def begin_turn(self, lr_factor: float, class_counts: np.ndarray, device: torch.device) -> None:
        """Ready the module for one local fit.

        Args:
            lr_factor: The round's factor on the learning rate.
            class_counts: The client's training examples per class (C,).
            device: Where the fit runs.
        """
        self.lr_factor = lr_factor
        self._outside = self._outside_scope(class_counts, device)
        self._loss_sum, self._num_seen = 0.0, 0.0

    def local_steps(self, num_steps: int) -> int:
        """Optimizer steps of this turn, of which the plan has ``num_steps``."""
        return num_steps

    def prepare(self, batches: Any) -> Any:
        """Give what the fit iterates over; here the batches as they are."""
        return batches

    def observe(self) -> dict[str, Tensor]:
        """Give quantities of the model that are worth watching over the rounds, each (n,)."""
        return {}

    def _outside_scope(self, class_counts: np.ndarray, device: torch.device) -> Tensor | None:
        """Mark the classes (C,) that the local softmax leaves out; None for none."""
        if self.softmax_scope == "all":
            return None
        inside = set(np.flatnonzero(class_counts).tolist())
        if self.softmax_scope == "kept_groups":
            assert isinstance(self.model, GroupedNetwork)
            counts = class_counts.tolist()
            inside = {c for classes in kept_sets(self.model.class_sets, counts) for c in classes}
        return torch.tensor([c not in inside for c in range(len(class_counts))], device=device)

    @cached_property
    def forward_flops_per_example(self) -> float:
        """FLOPs of one forward pass, per example."""
        return float(forward_flops(cast(Network, self.model)))

    @cached_property
    def flops_per_example(self) -> float:
        """FLOPs of a training step, per example."""
        return float(training_flops(cast(Network, self.model)))

    def turn_metrics(self) -> dict[str, float]:
        """Mean training loss over the examples seen in this turn, their number, and the FLOPs spent on them."""
        return {
            "train/loss": float(self._loss_sum) / max(self._num_seen, 1.0),
            "examples": self._num_seen,
            "flops": self._num_seen * self.flops_per_example,
        }


def joined(halves: Sequence[type[ClientModule]], **arguments: Any) -> ClientModule:
    """Make a client half of several, for example FedFusion's with FedProx's term.

    Args:
        halves: Their classes; what the first overrides comes first, and what it leaves to ``super()`` the next does.
        arguments: Those of all of them.
    """
    kind = type("And".join(half.__name__ for half in halves), tuple(halves), {})
    return kind(**arguments)
