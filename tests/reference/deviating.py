"""What the tests of docs/deviations.md share: runs of three unequal clients."""

import numpy as np
from harness import parties

from fedfeat.client import ClientModule

STEPS = 4
"""Full-batch steps of a turn."""


class Quadratic(ClientModule):
    """``F_k(w) = 1/2 mean ||w - x||^2`` for every row w of the weights, and ``1/2 ||b||^2``."""

    def loss(self, batch):
        layer = self.model.last_layer
        rows = 0.5 * ((layer.weight[:, None] - batch[0]) ** 2).sum(-1).mean(1).sum()
        return rows + 0.5 * layer.bias.square().sum()


def rounds_of(folder, clip=None, **plan):
    """Run in float64 with full batches; give the federation, the state after each round and the cohorts."""
    arguments = {"num_rounds": 3, "local_epochs": STEPS, "precision": "64-true"}
    federation = parties(folder, **(arguments | plan))
    federation.executor.worker.lightning.gradient_clip_val = clip
    steps, records = federation.run()
    return federation, [step.state for step in steps[1:]], [record.cohort for record in records[1:]]


def pair_of(tensors):
    """Weights and biases as arrays."""
    return tuple(tensor.double().numpy() for tensor in tensors.values())


def gap(left, right):
    """The largest distance between two pairs of arrays."""
    return max(float(np.abs(mine - its).max()) for mine, its in zip(left, right, strict=True))
