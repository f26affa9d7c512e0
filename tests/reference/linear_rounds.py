"""Local work on the softmax regression in NumPy, for methods whose server half makes more of it than a mean."""

import numpy as np
import torch
from harness import LR, SIZES, examples_of, gradient, network_of
from torch import nn

from fedfeat import tree
from fedfeat.client import ClientModule

ZERO = (np.zeros((3, 4)), np.zeros(3))


def added(*terms):
    """Sum up ``factor, pair`` with the two arrays of each pair."""
    return tuple(np.sum([factor * pair[i] for factor, pair in terms], axis=0) for i in range(2))


def mean(pairs, weights):
    """The weighted mean of pairs of arrays."""
    weights = np.asarray(weights, dtype=float)
    return added(*zip(weights / weights.sum(), pairs, strict=True))


class Steps:
    """Full-batch steps of PyTorch's SGD on one client.

    Attributes:
        end: Where they lead.
        gradients: Of the loss at every step, clipped and with weight decay, the first one first.
    """

    def __init__(self, data, client_id, start, num_steps, *, lr=LR, momentum=0.0, nesterov=False, decay=0.0, mu=0.0,
                 clip=None, further=lambda y: ZERO):  # fmt: skip
        y, velocity, self.gradients = start, ZERO, []
        for _ in range(num_steps):
            raw = gradient(*y, *examples_of(data, client_id))
            # PyTorch adds 1e-6 to the norm.
            factor = min(1.0, clip / (np.sqrt(sum((part**2).sum() for part in raw)) + 1e-6)) if clip else 1.0
            g = added((factor, raw), (decay, y))
            self.gradients.append(g)
            pull = added((mu, y), (-mu, start))
            g = added((1, g), (1, pull), (1, further(y)))
            velocity = added((momentum, velocity), (1, g))
            y = added((1, y), (-lr, added((1, g), (momentum, velocity)) if nesterov else velocity))
        self.end = y


def coefficients(num_steps, *, lr=LR, momentum=0.0, nesterov=False, mu=0.0):
    """By how much, over lr, an end moves with the gradient of each step alone: a_k."""
    found = []
    for pulse in range(num_steps):
        moved = velocity = 0.0
        for step in range(num_steps):
            g = float(step == pulse) - lr * mu * moved
            velocity = momentum * velocity + g
            moved += g + momentum * velocity if nesterov else velocity
        found.append(moved)
    return found


def assert_pairs(tensors, pair, tolerance=1e-12):
    """Compare the tensors of a softmax regression with a pair of arrays."""
    for tensor, numbers in zip(tensors.values(), pair, strict=True):
        np.testing.assert_allclose(tensor.double().numpy(), numbers, rtol=0, atol=tolerance)


class Quadratic(ClientModule):
    """``F_k(w) = 1/2 mean ||w - x||^2`` for every row w of the weights, and ``1/2 ||b||^2``."""

    def loss(self, batch):
        layer = self.model.last_layer
        return (
            0.5 * ((layer.weight[:, None] - batch[0]) ** 2).sum(-1).mean(1).sum()
            + 0.5 * layer.bias.square().sum()
        )


def means_of(data):
    """Mean inputs of each client, which are where its `Quadratic` is least, and their mean by examples."""
    inputs, parts = data.dataset.train.inputs.double(), data.split.train
    own = [inputs[parts.of(k)].mean(0) for k in range(len(SIZES))]
    return own, sum(n * one for n, one in zip(SIZES, own, strict=True)) / sum(SIZES)


def with_batch_norm():
    """The softmax regression behind a batch norm, whose tensors are ``head.all.0``."""
    torch.manual_seed(3)
    return network_of(nn.BatchNorm1d(4), nn.Linear(4, 3))


def goes_on(build, cut_dir, whole_dir, at=2):
    """Whether a run that is cut after some rounds, with what its clients keep, ends as one that is not."""
    whole = build(whole_dir)
    steps, _ = whole.run()
    first = build(cut_dir)
    rounds = first.rounds()
    progress = [next(rounds)[0] for _ in range(at + 1)][-1]
    manifest = first.store.persist()
    rounds.close()
    second = build(cut_dir)
    second.store.restore(manifest)
    second.start()
    last = second.run(progress)[0][-1]
    kept, expected = ([tree.sha256(party.store.get(k)) for k in party.store] for party in (second, whole))
    return tree.sha256(last.state) == tree.sha256(steps[-1].state) and kept == expected
