"""A client half that trains what is personal first and then what is shared."""

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

from torch import nn
from torch.optim import Optimizer

from fedfeat.client import ClientModule
from fedfeat.config.conditions import Count
from fedfeat.errors import ConfigError
from fedfeat.models.flops import training_flops
from fedfeat.models.network import Network
from fedfeat.models.policy import PERSONAL
from fedfeat.types import Setting, Turn

_log = logging.getLogger("fedfeat")


class AlternatingClient(ClientModule):
    """FedAvg's client, whose epochs are of one half or of the other.

    Args:
        head_epochs: Epochs of what is personal; those after them are of what is shared. A fit that is shorter, as a
            straggler's may be, trains heads alone.
        arguments: As in `ClientModule`; ``personal`` names the head.
    """

    apart: str | None = None  # what trains depends on the phase alone

    def __init__(self, *, head_epochs: Count = 10, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.head_epochs, self._named = head_epochs, list(arguments.get("personal", ()))
        self._trainable: list[tuple[nn.Parameter, bool]] = [
            (parameter, self.policies[name] == PERSONAL)
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        ]
        self.trains_head = False
        self._seen_by_heads = 0.0

    def check(self, setting: Setting) -> None:
        """Warn where no epoch is left for the body, and refuse halves that have epochs and nothing that trains.

        Raises:
            ConfigError: Such a half.
        """
        super().check(setting)
        epochs = setting.local_epochs
        self._check_half(True, f"name something that trains for algorithm={setting.algorithm}")
        if epochs is not None and epochs > self.head_epochs:
            self._check_half(False, f"leave something that trains for algorithm={setting.algorithm}")
        if epochs is not None and epochs <= self.head_epochs:
            _log.warning(
                "algorithm=%s trains heads alone: %g local epochs, counted at the largest client, are not above "
                "algorithm.client.head_epochs=%d.",
                setting.algorithm, epochs, self.head_epochs,
            )  # fmt: skip

    def _check_half(self, is_head: bool, rule: str) -> None:
        if any(own == is_head for _, own in self._trainable):
            return
        named = self.model.named_parameters()
        if any((self.policies[name] == PERSONAL) == is_head for name, _ in named):
            half = "what is personal" if is_head else "what is shared"
            raise ConfigError(
                f"model.freeze must leave something of {half} that trains, but all of it is frozen."
            )
        raise ConfigError.rule("algorithm.client.personal", rule, self._named)

    def begin_turn(self, turn: Turn) -> None:
        """Ready the module for one local fit."""
        super().begin_turn(turn)
        # A fit that failed has not reached its end, and the optimizer takes what is trainable.
        self._train_everything()
        self._seen_by_heads = 0.0

    def phases(self, num_steps: int, steps_per_epoch: int) -> tuple[int, ...]:
        """Give the steps on the head and those on the body."""
        heads = min(num_steps, self.head_epochs * steps_per_epoch)
        return heads, num_steps - heads

    def on_train_epoch_start(self) -> None:
        """Lightning hook: turn to head or body."""
        is_body = self.current_epoch >= self.head_epochs
        if is_body and not self._seen_by_heads:
            self._seen_by_heads = self._num_seen
        self.begin_phase(int(is_body), self.trainer.optimizers[0])

    def begin_phase(self, phase: int, optimizer: Optimizer) -> None:
        """Freeze the one half and train the other."""
        self.trains_head = head = phase == 0
        # The optimizer holds both halves; it passes over parameters without a gradient, weight decay included.
        for parameter, is_head in self._trainable:
            parameter.requires_grad_(is_head == head)

    def note(self, loss_sum: float, seen: Sequence[float]) -> None:
        """As `ClientModule`, with what the heads have seen."""
        super().note(loss_sum, seen)
        self._seen_by_heads = seen[0]

    def on_train_end(self) -> None:
        """Lightning hook: leave nothing frozen for the next client."""
        super().on_train_end()
        if self.trainer.world_size > 1:
            (self._seen_by_heads,) = self.summed(self._seen_by_heads)
        self._train_everything()

    def turn_metrics(self) -> dict[str, float]:
        """As `ClientModule`, with the FLOPs of each half: no gradient is computed below a head that trains alone."""
        metrics = super().turn_metrics()
        seen = metrics["examples"]
        by_heads = self._seen_by_heads or seen
        metrics["flops"] = by_heads * self._flops[0] + (seen - by_heads) * self._flops[1]
        return metrics

    @cached_property
    def _flops(self) -> tuple[float, float]:
        """FLOPs of a step per example, of the head's and of the body's; 0 of a half that has none, as it is frozen."""
        found = []
        for head in (True, False):
            for parameter, is_head in self._trainable:
                parameter.requires_grad_(is_head == head)
            trains = any(is_head == head for _, is_head in self._trainable)
            found.append(float(training_flops(cast(Network, self.model))) if trains else 0.0)
        self._train_everything()
        return found[0], found[1]

    def _train_everything(self) -> None:
        for parameter, _ in self._trainable:
            parameter.requires_grad_(True)
