"""A model's predictions on examples, one by one, and their means over a client's parts."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedfeat.clients.tasks import Scores
from fedfeat.data.federated import FederatedData
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


def own_parts(
    data: FederatedData, client_id: int, batch_size: int
) -> dict[str, Iterator[tuple[Tensor, Tensor]]]:
    """Give what a client's own model is scored on, by the prefix of the scores' names.

    That is its test part, everyone's where it holds all data (`FederatedData.pooled`), and with ``val_`` its validation
    examples; a part without examples is left out.
    """
    tests = {client_id: data.test_indices(client_id)}
    if data.num_clients == 1:
        tests = {k: data.test_indices(k) for k in range(len(data.test_sizes()))}
        if not data.permuted:  # all see an example alike, so each counts once
            tests = {client_id: np.unique(np.concatenate([*tests.values()]))}
    found: dict[str, Iterator[tuple[Tensor, Tensor]]] = {}
    if any(map(len, tests.values())):
        batches = (data.test_batches(test, batch_size, k) for k, test in tests.items())
        found[""] = chain.from_iterable(batches)
    if len(data.split.val.of(client_id)):
        found["val_"] = data.val_batches(batch_size, client_id)
    return found


def part_means(
    predict: Callable[[Tensor], Tensor], parts: Mapping[str, Iterable[tuple[Tensor, Tensor]]]
) -> dict[str, float]:
    """Score a model on parts of `own_parts`: ``own/acc`` and ``own/loss``, ``own/val_acc`` and ``own/val_loss``."""
    found: dict[str, float] = {}
    for prefix, batches in parts.items():
        scores = score_examples(predict, batches)
        found |= {f"own/{prefix}acc": float(scores.correct.mean())}
        found |= {f"own/{prefix}loss": float(scores.losses.mean())}
    return found
