"""What a fit has cost and lost, counted as it goes."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from fedfeat.models.clipping import ClippedModule
from fedfeat.models.flops import forward_flops, training_flops
from fedfeat.models.network import Network
from fedfeat.params import full


class CountedModule(ClippedModule):
    """A LightningModule around a ``model`` that counts losses and examples of a fit, and knows the FLOPs of both."""

    model: nn.Module
    rank_share: Callable[[int], tuple[float, float]] | None = None
    """See `data.batches.ClientBatches.share`; set by the worker where processes share a fit."""

    def __init__(self) -> None:
        super().__init__()
        self.begin_count()

    def begin_count(self) -> None:
        """Count anew."""
        self._loss_sum: Tensor | float = 0.0
        self._num_seen = 0.0

    def counted(self, loss: Tensor, num_examples: int, batch_idx: int) -> Tensor:
        """Count a batch by its mean loss, and give the loss that the step is made of.

        Processes that share a batch take the plain mean of their gradients, so each weighs its own by its examples.
        """
        own, weight = (num_examples, 1.0) if self.rank_share is None else self.rank_share(batch_idx)
        # A tensor on the model's device: reading it out here would wait for the GPU at every step.
        self._loss_sum = self._loss_sum + full(loss.detach()) * own
        self._num_seen += own
        return loss if weight == 1 else loss * weight

    def on_train_end(self) -> None:
        """Lightning hook: put together what the devices of this fit have seen."""
        if self.trainer.world_size > 1:
            self._loss_sum, self._num_seen = self.summed(float(self._loss_sum), self._num_seen)
            for buffer in self.buffers():
                torch.distributed.broadcast(buffer, 0)

    def summed(self, *numbers: float) -> list[float]:
        """Sum each number over the devices that share the fit, in float64: examples are counted beyond 2^24."""
        own = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        return self.trainer.strategy.reduce(own, reduce_op="sum").tolist()

    def note(self, loss_sum: float, seen: Sequence[float]) -> None:
        """Note the sum of losses of a stacked fit, and the examples that each of its phases has seen."""
        self._loss_sum, self._num_seen = loss_sum, sum(seen)

    @cached_property
    def forward_flops_per_example(self) -> float:
        """FLOPs of one forward pass, per example."""
        return float(forward_flops(cast(Network, self.model)))

    def answer_flops(self, num_inputs: int) -> float:
        """FLOPs of an answer to a survey of so many inputs."""
        return num_inputs * self.forward_flops_per_example

    @cached_property
    def flops_per_example(self) -> float:
        """FLOPs of a training step, per example."""
        return float(training_flops(cast(Network, self.model)))

    def turn_metrics(self) -> dict[str, float]:
        """Mean training loss over the examples seen in this turn, their number, and the FLOPs spent on them."""
        return self.metrics_of(float(self._loss_sum), self._num_seen)

    def metrics_of(self, loss: float, seen: float) -> dict[str, float]:
        """As `turn_metrics`, of a sum of losses over so many examples."""
        return {"train/loss": loss / max(seen, 1.0), "examples": seen, "flops": seen * self.flops_per_example}
