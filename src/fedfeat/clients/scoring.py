"""A model's predictions on examples, one by one."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional

from fedfeat.clients.tasks import Scores
from fedfeat.params import full


@torch.inference_mode()
def score_examples(predict: Callable[[Tensor], Tensor], batches: Iterable[tuple[Tensor, Tensor]]) -> Scores:
    """Score a model on batches of inputs (B, ...) and labels (B,).

    ``predict`` gives logits (B, num_classes); its modules are in eval mode. Where the largest logit of an example is
    not finite, there is no prediction: it counts as wrong, and its loss is NaN. A trimmed network's -inf for classes
    that it lacks is no such case.
    """
    correct, losses = [], []
    for inputs, labels in batches:
        logits = full(predict(inputs))
        # `argmax` of NaN is a class like any other; `amax` of logits with a NaN is NaN.
        correct.append((logits.argmax(1) == labels) & logits.amax(1).isfinite())
        losses.append(functional.cross_entropy(logits, labels, reduction="none"))
    return Scores(torch.cat(correct).double().cpu().numpy(), torch.cat(losses).double().cpu().numpy())
