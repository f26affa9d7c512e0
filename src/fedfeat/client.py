"""The client half of a method: a LightningModule in which clients take turns."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from fedfeat.config.conditions import Text
from fedfeat.models.counted import CountedModule
from fedfeat.models.policy import PERSONAL, keys_with, sent_keys, tensor_policies
from fedfeat.models.softmax_scope import SoftmaxScope, check_scope, in_scope, scope_terms
from fedfeat.params import copy_into, select, snapshot
from fedfeat.types import Params, Setting, Tensors, Turn, Weights

Batch = tuple[Tensor, Tensor]
"""Inputs (B, ...) as the network reads them, and labels (B,)."""


class ClientModule(CountedModule):
    """A model with its local objective; by default that of FedAvg.

    A method overrides `loss` and, where more than weights crosses the wire or is kept, `begin_turn`, `upload` and
    `payload_type`. Whatever modules it sets beside ``model`` follow the device and are stacked with it; those of their
    parameters that require gradients are trained.

    Args:
        model: The network.
        optimizer: Makes the optimizer from parameters and ``lr``.
        personal: What stays with the client, see `models.policy.tensor_policies`.
        channels_last: Keep images and filters in the channels-last layout.
        softmax_scope: Logits in the local softmax, see `models.softmax_scope`.

    Raises:
        ConfigError: ``kept_groups`` for a network without groups.
    """

    payload_type: ClassVar[type] = Weights
    keeps_model = False
    """Whether a client has a model of its own beside what is shared, which is scored as such (``personal/*``)."""
    keeps_tensors = False
    """Whether the memory of its last turn holds other tensors of the network's shapes."""
    runs_at_upload = False
    """Whether `upload` runs the trained modules, for example over ``turn.batches``."""
    apart: str | None = None
    """Why clients cannot be stacked into one fit (`executor=vectorized`), as "it ..."; None where all that tells turns
    apart is in `state_dict` after `receive` and `begin_turn`. Who overrides more than `loss` and `upload` needs one."""
    _outside: Tensor | None
    _prior: Tensor | None
    plain: Callable[[Tensor], Tensor]
    """From inputs as they are stored to what the network reads; set by the worker."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: partial[Optimizer],
        personal: Sequence[Text] = (),
        channels_last: bool = False,
        softmax_scope: SoftmaxScope = "all",
    ) -> None:
        super().__init__()
        self.model = model.to(memory_format=torch.channels_last) if channels_last else model
        # Hydra's own partial checks its target again at every call (0.3 ms).
        self.optimizer_factory = partial(optimizer.func, *optimizer.args, **optimizer.keywords)
        self.policies = tensor_policies(model, personal)
        self.shared_keys = sent_keys(self.policies)
        self.personal_keys = keys_with(self.policies, PERSONAL)
        check_scope(model, softmax_scope)
        self.channels_last, self.softmax_scope = channels_last, softmax_scope
        for name in ("_outside", "_prior"):
            self.register_buffer(name, None)
        self.lr, self.optimizer_state = self.base_lr, dict[int, dict[str, Tensor]]()
        self._initial_personal = snapshot(model, self.personal_keys)

    @property
    def base_lr(self) -> float:
        """The learning rate before the round's factor."""
        return float(self.optimizer_factory.keywords["lr"])

    def check(self, setting: Setting) -> None:
        """Refuse a course of the rounds that the method cannot work with.

        Raises:
            ConfigError: The key that does not fit.
        """

    def take_personal(self, personal: Params) -> None:
        """Take the personal tensors of a client; without any, those of the common initial model."""
        copy_into(self.model, personal or self._initial_personal)

    def receive(self, payload: Any, memory: Any) -> None:
        """Become a client that has its personal tensors already, for a turn; here memory is not looked at.

        Args:
            payload: What the server sends.
            memory: The method's record of the client's last turn, or None.
        """
        missing = [key for key in self.shared_keys if key not in payload.params]
        if missing:  # It would stay as the client before has left it.
            raise ValueError(f"payload must have every shared tensor, but it has no {missing[0]}")
        copy_into(self.model, payload.params)

    def recall(self, payload: Any, memory: Any) -> None:
        """Become a client as it is between its turns, for its own model to be scored or asked; as `receive`.

        Args:
            payload: What the server would send it; None where it is asked before the server sends.
            memory: As in `receive`.
        """
        if payload is None:
            raise ValueError("A client without its own model can only answer to what is sent (Survey.sends).")
        self.receive(payload, memory)

    def adapt(self, turn: Turn) -> None:
        """Make the client's own model by its data, where the method does: after `recall` or a fit, before `predict`.

        On the device, in eval mode, with gradients. ``turn`` has round 0 and neither payload nor memory.
        """

    def ready(self, turn: Turn) -> None:
        """Set what every method has anew in a turn; the worker's, before `begin_turn`."""
        self.lr = turn.lr
        self.scope_to(turn)
        self.begin_count()

    def scope_to(self, turn: Turn) -> None:
        """Take the softmax over what is the client's; the worker's, before `begin_turn` and before `adapt`."""
        terms = scope_terms(self.model, self.softmax_scope, turn.class_counts, turn.device)
        self._outside, self._prior = terms

    def begin_turn(self, turn: Turn) -> None:
        """Ready the method for one local fit, after `receive`."""

    def loss(self, batch: Batch) -> Tensor:
        """Local objective on a batch of inputs (B, ...) and labels (B,); a scalar.

        Where clients are stacked, rows of padding with the label `data.batches.PADDED` (-100) follow the examples of a
        shorter batch. Cross-entropy leaves them out; a term that mixes examples, such as a mean over the batch or a
        correlation, has to weigh them by ``labels != PADDED``, or the class says in `apart` that it is not stacked. A
        term that depends on them is found at the start. A batch may have a single example.
        """
        return self.cross_entropy(self(batch[0]), batch[1])

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of logits (B, num_classes) over the softmax's scope."""
        return functional.cross_entropy(in_scope(logits, self._outside, self._prior), labels)

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[Any, Any]:
        """Give the payload for the server and the method's record to keep, or None; personal tensors are kept anyway.

        A function of its arguments, which own their tensors: clients that trained together upload one by one.

        Args:
            turn: The turn, with what was received.
            tensors: The trained tensors of every part of this module, on the CPU: ``tensors["model"]`` for the network.
        """
        return Weights(select(tensors["model"], self.shared_keys)), None

    def answer(self, inputs: Tensor, part: int) -> Any:
        """Give the method's typed answer to a survey, by the client's own model in eval mode.

        Args:
            inputs: The survey's inputs as they are stored, (m, ...).
            part: Inputs to pass at once.
        """
        raise NotImplementedError

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, num_classes) of inputs (B, ...)."""
        return self.model(self.laid_out(inputs))

    def predict(self, inputs: Tensor) -> Tensor:
        """Logits (B, num_classes) of inputs (B, ...) by the model that the method calls the client's own."""
        return self(inputs)

    def laid_out(self, inputs: Tensor) -> Tensor:
        """Give inputs (B, ...) in the memory layout of the model."""
        if self.channels_last and inputs.dim() == 4:
            return inputs.contiguous(memory_format=torch.channels_last)
        return inputs

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Lightning hook: the local objective, its mean kept for ``train/loss``."""
        loss, name = self.loss(batch), type(self).__name__
        if not isinstance(loss, Tensor) or loss.dim():
            got = getattr(loss, "shape", type(loss).__name__)
            raise TypeError(f"{name}.loss must give a scalar tensor, but it gives {got}")
        loss = self.counted(loss, len(batch[1]), batch_idx)
        if (together := self.trainer.accumulate_grad_batches) > 1:
            loss = loss * (together / self.batches_of_step(batch_idx))
        if not loss.requires_grad:  # The backward pass would not say whose it is.
            raise ValueError(f"{name}.loss must depend on weights that are trained, but is detached")
        return loss

    def batches_of_step(self, batch_idx: int) -> int:
        """Count the batches of the optimizer step that one is in; an epoch's last has what is left.

        Lightning divides their losses by ``accumulate_grad_batches`` all the same, and its step would be a part of one.
        """
        together = self.trainer.accumulate_grad_batches
        return min(together, int(self.trainer.num_training_batches) - batch_idx // together * together)

    def configure_optimizers(self) -> Optimizer:
        """Lightning hook: a fresh optimizer at the round's learning rate, over whatever of this module trains."""
        optimizer = self.new_optimizer(self, self.lr)
        if state := self.optimizer_state:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        return optimizer

    def new_optimizer(self, module: nn.Module, lr: float) -> Optimizer:
        """Give a fresh optimizer over what of a module trains; by name where its maker asks for names."""
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        by_name = getattr(self.optimizer_factory.func, "by_name", False)
        return self.optimizer_factory(trained if by_name else [p for _, p in trained], lr=lr)

    def local_steps(self, num_steps: int) -> int:
        """Optimizer steps of this turn, of which the plan has ``num_steps``."""
        return num_steps

    def phases(self, num_steps: int, steps_per_epoch: int) -> tuple[int, ...]:
        """Split the steps of a fit into those of its phases, each of which may train something else."""
        return (num_steps,)

    def begin_phase(self, phase: int, optimizer: Optimizer) -> None:
        """Ready the method for a phase of a stacked fit; here there is one."""

    def prepare(self, batches: Any) -> Any:
        """Give what the fit iterates over; here the batches as they are."""
        return batches

    def observe(self) -> dict[str, Tensor]:
        """Give quantities of the model that are worth watching over the rounds, each (n,)."""
        return {}

    def own_tensors(self) -> Params:
        """Give the tensors of the client's own model that are not the model's after `recall` and `adapt`, by name."""
        return {}


def joined(halves: Sequence[type[ClientModule]], **arguments: Any) -> ClientModule:
    """Make a client half of several, for example FedFusion's with FedProx's term.

    Args:
        halves: Their classes; what the first overrides comes first, what it leaves to ``super()`` is the next one's.
        arguments: Those of all of them.
    """
    return type("And".join(half.__name__ for half in halves), tuple(halves), {})(**arguments)
