"""What a server makes of models by what they say of inputs: the mean of an ensemble, and a network fitted to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from fedfeat.params import copy_into, full, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fedfeat.types import Params

Mean = Literal["logits", "probabilities"]
_PART = 500
"""Inputs that a teacher sees at once."""
_CLIP = 5.0
"""Largest norm of a gradient, as in epfml/federated-learning-public-code."""


class Ensemble:
    """What models say of inputs together, added up model by model, so that none of them has to be kept.

    Args:
        inputs: As they are stored, (m, ...).
        read: From such inputs to what a network reads.
        temperature: T, by which logits are divided.
        mean: What is averaged: the ``logits`` before the softmax, or the ``probabilities`` after it.

    Attributes:
        size: Models so far.
    """

    def __init__(
        self, inputs: Tensor, read: Callable[[Tensor], Tensor], temperature: float, mean: Mean
    ) -> None:
        self._inputs, self._read, self._temperature, self._mean = inputs, read, temperature, mean
        self._sum: Tensor | None = None
        self.size = 0

    @torch.no_grad()
    def add(self, teacher: nn.Module) -> None:
        """Add what a model says in eval mode."""
        teacher.eval()
        logits = torch.cat([full(teacher(self._read(part))) for part in self._inputs.split(_PART)])
        said = logits if self._mean == "logits" else (logits / self._temperature).softmax(1)
        self._sum = said if self._sum is None else self._sum.add_(said)
        self.size += 1

    def probabilities(self) -> Tensor:
        """Give the targets, (m, C)."""
        assert self._sum is not None
        mean = self._sum / self.size
        return mean if self._mean == "probabilities" else (mean / self._temperature).softmax(1)


class Distillation(NamedTuple):
    """How a student is fitted.

    Attributes:
        steps: At most so many, over which the learning rate falls to 0 along a half cosine.
        batch_size: Inputs of a step.
        lr: First learning rate of Adam.
        temperature: T.
        every: Steps between two looks at the score.
        patience: Steps without a better score after which it stops; None never does.
        keep: Whether the ``last`` student is given, or the ``best`` of those that were looked at.
    """

    steps: int
    batch_size: int
    lr: float
    temperature: float
    every: int
    patience: int | None
    keep: Literal["last", "best"]


def divergence(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """``KL(p || softmax(z / T))``, a mean over examples, of logits z and targets p, (B, C) both."""
    return functional.kl_div((full(logits) / temperature).log_softmax(1), targets, reduction="batchmean")


def distil(
    student: nn.Module,
    said: Callable[[Tensor], Tensor],
    targets: Tensor,
    course: Distillation,
    generator: torch.Generator,
    score: Callable[[], float] | None = None,
) -> int:
    """Fit a network in place, in training mode and by a fresh optimizer; give the steps that were made.

    Args:
        student: The network.
        said: From numbers of inputs (B,) to the student's logits of them, (B, C).
        targets: What it is fitted to, probabilities (m, C).
        course: How.
        generator: Of the orders in which inputs come.
        score: What shall be high; None is minus the mean loss of the steps since the last look.
    """
    trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=course.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(course.steps, 1))
    best, best_step, kept = -torch.inf, 0, dict[str, Tensor]()
    losses: list[Tensor] = []
    step = 0
    for step, chosen in zip(
        range(1, course.steps + 1), batches(len(targets), course.batch_size, generator), strict=False
    ):
        student.train()
        loss = divergence(said(chosen), targets[chosen.to(targets.device)], course.temperature)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(trained, _CLIP)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if step % course.every:
            continue
        found = -float(torch.stack(losses).mean()) if score is None else score()
        losses.clear()
        if found > best:
            best, best_step, kept = found, step, _kept(student, course)
        elif course.patience is not None and step - best_step >= course.patience:
            break
    copy_into(student, kept)
    return step


def _kept(student: nn.Module, course: Distillation) -> Params:
    return snapshot(student) if course.keep == "best" else {}


def batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Give numbers below ``count`` without an end, pass by pass in orders of their own; all pieces are equally large.

    What a pass leaves over is left out: of a single input there is no variance for batch norm.
    """
    size = min(size, count)
    while True:
        for piece in torch.randperm(count, generator=generator).split(size):
            if len(piece) == size:
                yield piece
