"""Clients that take part in no round count in no sum over all clients: a federation of the others ends the same."""

from functools import partial

import numpy as np
import pytest
import torch
from harness import OwnTests, make_data, parties

from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.feddyn import FedDynClient, FedDynServer
from fedfeat.algorithms.fedhenn import FedHeNNClient
from fedfeat.algorithms.fedhenn_hetero import FedHeNNHeteroServer
from fedfeat.algorithms.scaffold import ScaffoldClient, ScaffoldServer
from fedfeat.data import transforms
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import ClientSplit, Parts
from fedfeat.models.mlp import mlp
from fedfeat.tree import tensors

SIZES = (3, 8, 5, 2, 6)
ABLE = 3
METHODS = {
    "scaffold": (ScaffoldClient, lambda: ScaffoldServer(FedAvgServer())),
    "feddyn": (partial(FedDynClient, alpha=0.5), lambda: FedDynServer(FedAvgServer(), alpha=0.5)),
}


def of_the_first(data, number):
    """The same examples of the first clients, and no others."""
    offsets = data.split.train.offsets[: number + 1]
    nobody = Parts(np.zeros(0, dtype=np.int64), np.zeros(number + 1, dtype=np.int64))
    split = ClientSplit(Parts(data.split.train.indices[: offsets[-1]], offsets), nobody, OwnTests(number, 6))
    return FederatedData(data.dataset, split, transforms.none())


@pytest.mark.parametrize("method", METHODS)
def test_who_never_takes_part_is_in_no_mean_of_all_clients(method, tmp_path):
    client, server = METHODS[method]
    plan = {"client": client, "num_rounds": 5, "local_epochs": 3, "lr": 0.1, "precision": "64-true"}
    data, excluded = make_data(SIZES), frozenset(range(ABLE, len(SIZES)))
    some = parties(tmp_path / "some", data=data, server=server(), cohort_size=ABLE, excluded=excluded, **plan)
    alone = parties(tmp_path / "alone", data=of_the_first(data, ABLE), server=server(), **plan)
    ends = [tensors(federation.run()[0][-1].state) for federation in (some, alone)]
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


def test_who_never_takes_part_is_not_asked(tmp_path):
    heard = []

    class Listening(FedHeNNHeteroServer):
        def hear(self, state, inputs, answers):
            found = list(answers)
            heard.append([answer.client_id for answer in found])
            return super().hear(state, inputs, iter(found))

    server = Listening(rad_size=4, eta_schedule="const")
    plan = {
        "data": make_data(SIZES),
        "cohort_size": 2,
        "excluded": frozenset({1, 3}),
        "build_model": two_layers,
    }
    parties(tmp_path, client=FedHeNNClient, server=server, **plan).run()
    assert heard == [[0, 2, 4]] * 2


def two_layers():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp((4,), 3, hidden=[5])
