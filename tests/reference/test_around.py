"""What a half around another gives where nothing is said of it."""

import pytest
import torch
from float64_runs import experiment_of
from harness import parties

from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.client import ClientModule
from fedfeat.server import Around
from fedfeat.types import Weights


class Halved(Around):
    """Sends half of what the average sends; its state is the average's."""

    def init(self, model, federation):
        return self.average.init(model, federation)

    def broadcast(self, state, client_id):
        sent = self.average.broadcast(state, client_id).params
        return Weights({name: tensor / 2 for name, tensor in sent.items()})

    def aggregate(self, state, updates):
        return self.average.aggregate(state, updates)

    def global_payload(self, state):
        return self.average.global_payload(state)


def test_a_clients_own_model_is_made_of_what_it_would_be_sent(tmp_path):
    federation = parties(tmp_path, client=ClientModule, server=Halved(FedAvgServer()))
    state = federation.start().state
    sent, own = (
        give(state, 1).params for give in (federation.server.broadcast, federation.server.own_payload)
    )
    assert all(torch.equal(sent[name], tensor) for name, tensor in own.items())
    assert sent.keys() == own.keys()


@pytest.mark.parametrize("method", ["fedhenn", "scaffold", "fednova", "fedadam", "pfedme", "feddyn"])
def test_all_that_is_given_is_of_the_methods_payload(method, tmp_path):
    experiment = experiment_of(tmp_path, f"algorithm={method}")
    server, state = experiment.server, experiment.begin()[0].state
    given = server.broadcast(state, 0), server.newcomer_payload(state), server.own_payload(state, 0)
    assert all(type(payload) is server.payload_type for payload in given)
