"""Networks, data sets, partitions and methods with the mistakes that one makes in those of one's own."""

from collections import OrderedDict
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.client import ClientModule
from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.partition.schemes import Iid, Scheme
from fedfeat.models.network import Network
from fedfeat.types import Weights


def sequential(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), num_classes))


def network(input_shape, num_classes, read=8):
    hidden = nn.Sequential(OrderedDict(flat=nn.Flatten(), linear=nn.Linear(prod(input_shape), 8)))
    last = nn.Sequential(OrderedDict(linear=nn.Linear(read, num_classes)))
    return Network([("a", hidden)], [("b", last)], input_shape, num_classes)


def too_few_logits(input_shape, num_classes):
    return network(input_shape, num_classes - 1)


def unlike_widths(input_shape, num_classes):
    return network(input_shape, num_classes, 9)


def misspelt(input_shape, num_classes):
    return netwrok(input_shape, num_classes)  # noqa: F821


def data_set(labels=None, inputs=None, mean=(0.5,)):
    labels = torch.arange(20) % 2 if labels is None else labels
    inputs = torch.zeros(20, 1, 8, 8, dtype=torch.uint8) if inputs is None else inputs
    part = Examples(inputs, labels)
    return Dataset("mine", part, part, ("a", "b"), mean, mean)


def pair(num_train=None, num_test=None):
    return torch.zeros(20, 3), torch.zeros(20)


def numpy_labels(num_train=None, num_test=None):
    return data_set(np.zeros(20, dtype=np.int64))


def numpy_inputs(num_train=None, num_test=None):
    return data_set(inputs=np.zeros((20, 3)))


def no_moments(num_train=None, num_test=None):
    return data_set(mean=())


@dataclass(frozen=True, kw_only=True)
class Lists(Scheme):
    def assign(self, population, rng):
        return [np.arange(3)], None


class Other(NamedTuple):
    weights: dict[str, Any]


class OtherUpload(ClientModule):
    def upload(self, turn, tensors):
        return Other(super().upload(turn, tensors)[0].params), None


class LoneUpload(ClientModule):
    def upload(self, turn, tensors):
        return super().upload(turn, tensors)[0]


class Misspelt(ClientModule):
    def loss(self, batch):
        return super().loss(batch) + self.mu


class MoreArguments(ClientModule):
    def __init__(self, mu, **arguments):
        super().__init__(**arguments)


class NoClient:
    def __init__(self, **arguments):
        pass


class NoState(FedAvgServer):
    def aggregate(self, state, updates):
        super().aggregate(state, updates)


class Picky(FedAvgServer):
    """One that chokes on an update in the middle of them."""

    def aggregate(self, state, updates):
        return super().aggregate(state, map(self._checked, updates))

    def _checked(self, update):
        return {0: update}[update.client_id]


class LatePicky(FedAvgServer):
    """One that chokes when it has seen all of them."""

    def aggregate(self, state, updates):
        super().aggregate(state, updates)
        return state.momentum_of_none


class MoreOfTheServer(FedAvgServer):
    def __init__(self, beta):
        pass


class ArrayUpload(ClientModule):
    """A statistic that is no tensor, whose bytes nobody would count."""

    apart = None

    def upload(self, turn, tensors):
        return Weights({**tensors["model"], "spread": np.full(3, np.nan)}), None


class SetMemory(ClientModule):
    apart = None

    def upload(self, turn, tensors):
        return Weights(tensors["model"]), {"seen": {1, 2}}


class NoLoss(ClientModule):
    def loss(self, batch):
        super().loss(batch)


class LossOfEach(ClientModule):
    def loss(self, batch):
        return super().loss(batch).expand(4)


class NothingSent(FedAvgServer):
    def broadcast(self, state, client_id):
        super().broadcast(state, client_id)


class SpeechlessServer(FedAvgServer):
    payload_type = property()


@dataclass(frozen=True, kw_only=True)
class NoParts(Scheme):
    def assign(self, population, rng):
        Iid().assign(population, rng)
