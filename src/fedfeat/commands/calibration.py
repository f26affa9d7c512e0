"""The last layer of one finished run trained again on features that nobody has sent."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from fedfeat.clients.scoring import score_examples
from fedfeat.commands.client_models import become_server
from fedfeat.commands.reopen import reopen
from fedfeat.errors import CheckpointError
from fedfeat.features.calibration import (
    Covariance,
    Retraining,
    Share,
    numbers_sent,
    retrained,
    virtual_counts,
    virtual_features,
)
from fedfeat.features.prototypes import Moments, class_moments, pooled
from fedfeat.models.network import Network
from fedfeat.params import copy_into, full, snapshot
from fedfeat.rounds.experiment import Experiment


@dataclass(frozen=True)
class Settings:
    """How a last layer is calibrated.

    Attributes:
        covariance: See `features.calibration.Covariance`.
        per_class: Virtual features of a class, on average.
        share: See `features.calibration.Share`.
        clamp: Whether they are at least 0.
        training: How the layer is trained on them.
    """

    covariance: Covariance = "full"
    per_class: int = 100
    share: Share = "examples"
    clamp: bool = False
    training: Retraining = field(default_factory=Retraining)


class Calibrated(NamedTuple):
    """What came of one run.

    Attributes:
        name: Name of the run.
        round_idx: Rounds that the checkpoint has behind it.
        before: Accuracy and loss of the server's model on the test set.
        after: The same with the new last layer.
        num_virtual: Virtual features.
        upload_bytes: Of a client's moments in float32.
        last_layer: The new tensors, under their names in the network.
    """

    name: str
    round_idx: int
    before: tuple[float, float]
    after: tuple[float, float]
    num_virtual: int
    upload_bytes: int
    last_layer: dict[str, Tensor]


def calibrate(
    run_dir: Path, settings: Settings, round_idx: int | None = None, trust: Sequence[str] = ()
) -> Calibrated:
    """Calibrate the server's model of a run, whose directory stays as it is.

    Args:
        run_dir: Directory of the run.
        settings: How.
        round_idx: Which checkpoint; None is the newest.
        trust: See `commands.reopen.reopen`.

    Raises:
        CheckpointError: There is no run, no such checkpoint, or no server's model in it.
    """
    experiment, checkpoint = reopen(run_dir, round_idx, trust)
    if not become_server(experiment, checkpoint):
        raise CheckpointError(f"DIR must be a run whose method has a server's model, but {run_dir} has none.")
    network = cast(Network, experiment.executor.worker.module.model)
    before = _score(experiment)
    moments = pooled(_moments(experiment))
    numbers = virtual_counts(moments.counts, settings.per_class, settings.share)
    seed = experiment.plan.seed
    features, labels = virtual_features(moments, numbers, settings.covariance, seed, settings.clamp)
    copy_into(
        network.last_layer, snapshot(retrained(network.last_layer, features, labels, settings.training, seed))
    )
    width = moments.means.shape[1]
    return Calibrated(
        name=experiment.info.name,
        round_idx=checkpoint.round_idx,
        before=before,
        after=_score(experiment),
        num_virtual=len(labels),
        upload_bytes=4 * numbers_sent(len(numbers), width, settings.covariance),
        last_layer={f"{network.last_layer_name}.{key}": w for key, w in snapshot(network.last_layer).items()},
    )


def _moments(experiment: Experiment) -> Iterator[Moments]:
    """Give the moments of each client's training examples, as the server's model sees them in eval mode."""
    worker = experiment.executor.worker
    module, data = worker.module, worker.data
    network = cast(Network, module.model)
    module.to(data.device).eval()
    for client_id in range(data.num_clients):
        if not data.num_examples(client_id):
            continue
        found = []
        with torch.no_grad(), worker.trainer.autocast(data.device):
            for inputs, labels in data.labelled_batches(client_id, worker.settings.eval_batch_size):
                found.append((full(network.representation(module.laid_out(inputs))).cpu(), labels.cpu()))
        features, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
        yield class_moments(features, labels, network.num_classes, "full")


def _score(experiment: Experiment) -> tuple[float, float]:
    """Give accuracy and loss of the server's model on what ``global/*`` are of."""
    worker = experiment.executor.worker
    data, size = worker.data, worker.settings.eval_batch_size
    module = worker.module.to(data.device).eval()
    batches = data.test_batches(np.arange(data.num_test), size)
    if data.permuted and not data.split.server_order:
        clients = map(int, np.flatnonzero(data.test_sizes()))
        batches = chain.from_iterable(data.test_batches(data.test_indices(k), size, k) for k in clients)
    with worker.trainer.autocast(data.device):
        scores = score_examples(module, batches)
    return float(scores.correct.mean()), float(scores.losses.mean())
