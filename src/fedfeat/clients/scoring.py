"""A model's predictions on examples, one by one, and their means over a client's parts."""

from collections.abc import Callable, Iterable, Iterator, Mapping

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

    That is its test part, and with ``val_`` its validation examples; a part without examples is left out.
    """
    test, val = data.test_indices(client_id), data.split.val.of(client_id)
    parts = {"": (test, data.test_batches(test, batch_size, client_id))}
    parts |= {"val_": (val, data.val_batches(batch_size, client_id))}
    return {prefix: batches for prefix, (examples, batches) in parts.items() if len(examples)}


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
