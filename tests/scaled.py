"""A method whose payloads share all tensors and differ in a number alone; executors must not take one for another."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.client import ClientModule
from fedfeat.params import select


class Scaled(NamedTuple):
    """Weights, and the factor on the loss of the client that receives them."""

    params: dict[str, Tensor]
    weight: float


class ScaledClient(ClientModule):
    """Multiplies its loss by what it was sent, and sends that back."""

    payload_type = Scaled

    def begin_turn(self, turn):
        self.weight = turn.payload.weight

    def loss(self, batch):
        return self.weight * super().loss(batch)

    def upload(self, turn, tensors):
        return Scaled(select(tensors["model"], self.shared_keys), turn.payload.weight), None


class StackableScaledClient(ClientModule):
    """The same with the factor in its state dict, so that clients with different ones train together."""

    payload_type = Scaled
    apart = None

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.register_buffer("weight", torch.ones(()))

    def receive(self, payload, memory):
        super().receive(payload, memory)
        self.weight.fill_(payload.weight)

    def loss(self, batch):
        return self.weight * super().loss(batch)

    def upload(self, turn, tensors):
        return Scaled(select(tensors["model"], self.shared_keys), turn.payload.weight), None


class ScalingServer(FedAvgServer):
    """Sends every client another factor."""

    payload_type = Scaled

    def broadcast(self, state, client_id):
        return Scaled(state.params, 1.0 + client_id)

    def global_payload(self, state):
        return Scaled(state.params, 1.0)
