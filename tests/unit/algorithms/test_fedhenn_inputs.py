"""FedHeNN's shared inputs, as servers hear of them in rounds, and the answers of wide networks."""

from functools import partial

import numpy as np
import pytest
import torch
from harness import parties

from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedhenn import FedHeNNClient, FedHeNNServer
from fedfeat.algorithms.fedhenn_hetero import FedHeNNHeteroServer
from fedfeat.clients.tasks import Task
from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import ClientSplit, IndexTestParts, Parts
from fedfeat.data.transforms import Transform
from fedfeat.features.kernels import kernel_of
from fedfeat.models.mlp import mlp
from fedfeat.types import Setting, Survey

# Nobody holds 12 to 19; two clients share example 3, and two test parts 1.
SOURCES = {"train_pool": range(8), "heldout": range(8, 12), "test_unlabelled": (100, 101, 105)}


def parts(*lists):
    return Parts(np.concatenate(lists).astype(np.int64), np.cumsum([0, *map(len, lists)]))


def noise(x, generator):
    """An augmentation that gives its random numbers."""
    return torch.randint(0, 256, x.shape, generator=generator, dtype=torch.uint8)


def images():
    """Training image i is full of i, test image i of 100 + i."""

    def full(start):
        pixels = torch.arange(start, start + 20, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
        return Examples(pixels.contiguous(), torch.arange(20) % 2)

    dataset = Dataset("full", full(0), full(100), ("a", "b"), (0.2,), (0.5,))
    split = ClientSplit(
        parts([0, 1, 2, 3], [3, 4, 5, 6, 7]), parts([8], [9, 10, 11]), IndexTestParts(parts([0, 1], [1, 5]))
    )
    return FederatedData(dataset, split, Transform(augment=(noise,)))


def network(hidden=(3,)):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp((1, 2, 2), 2, hidden=list(hidden))


KINDS = {"alike": partial(FedHeNNServer, FedAvgServer()), "unequal": FedHeNNHeteroServer}


def rounds_of(store_dir, server, monkeypatch, **plan):
    """Run two rounds; give the data, and the inputs that were heard and that were sent."""
    heard, sent, hear, broadcast = [], [], server.hear, server.broadcast

    def hearing(state, inputs, answers):
        heard.append(inputs)
        return hear(state, inputs, answers)

    def sending(state, client_id):
        sent.append(broadcast(state, client_id))
        return sent[-1]

    monkeypatch.setattr(server, "hear", hearing)
    monkeypatch.setattr(server, "broadcast", sending)
    options = {"client": FedHeNNClient, "build_model": network, "personal": True, "lr": 0.1, "num_rounds": 2}
    federation = parties(store_dir, data=images(), server=server, **options, **plan)
    federation.run()
    return federation.data, heard, [payload.inputs for payload in sent if payload.inputs is not None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", SOURCES)
def test_inputs_come_from_the_source_that_is_asked_for(kind, source, tmp_path, monkeypatch):
    """All of it, for 20 are asked for."""
    server = KINDS[kind](rad_size=20, rad_source=source, eta_schedule="const")
    _, heard, sent = rounds_of(tmp_path, server, monkeypatch)
    assert len(heard) == 2
    for inputs in heard:
        assert inputs.dtype == torch.uint8
        assert sorted(inputs[:, 0, 0, 0].tolist()) == list(SOURCES[source])
    assert len(sent) == 4
    assert all(torch.equal(inputs, heard[i // 2]) for i, inputs in enumerate(sent))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [4, 6])
def test_augmented_inputs_are_shared_where_they_are_asked_for(kind, size, tmp_path, monkeypatch):
    server = KINDS[kind](rad_size=size, rad_augment=True, eta_schedule="const")
    assert server.rad._replace(asked="none") == Survey("train_pool", size, augment=True, counted="none")
    data, heard, sent = rounds_of(tmp_path, server, monkeypatch)
    assert len(heard) == 2
    for round_idx, inputs in enumerate(heard):
        stored = data.plain(data.unlabelled(Survey("train_pool", size), 0, round_idx))
        assert inputs.dtype == torch.float32
        assert inputs.shape == stored.shape == (size, 1, 2, 2)
        assert not torch.equal(inputs, stored)
        assert torch.equal(inputs, data.unlabelled(server.rad, 0, round_idx))
    assert all(torch.equal(inputs, heard[i // 2]) for i, inputs in enumerate(sent))


@pytest.mark.parametrize(("kernel", "sigma_factor"), [("linear", 0.4), ("rbf", 0.2)])
@pytest.mark.parametrize("hidden", [3, 50])
def test_an_answer_has_at_most_as_many_numbers_as_pairs_of_inputs(kernel, sigma_factor, hidden, tmp_path):
    """8 inputs, represented by 3 or 50 numbers; what the server makes of it is the kernel of these."""
    model = partial(network, (hidden,))
    options = {"client": FedHeNNClient, "build_model": model, "personal": True}
    worker = parties(tmp_path, data=images(), **options).executor.worker
    inputs = worker.data.unlabelled(Survey("train_pool", 8), 0, 0)
    answer = worker.answer(Task(0, 0, None, None), inputs)
    assert answer.payload.values.shape == (8, min(8, hidden))
    server = FedHeNNHeteroServer(kernel=kernel, sigma_factor=sigma_factor)
    found = server.hear(server.init(None, None), inputs, [answer]).target
    with torch.no_grad():
        representation = model().representation(worker.data.plain(inputs)).double()
    expected = kernel_of(representation, kernel, sigma_factor).centred()
    torch.testing.assert_close(found.matrix().double(), expected.matrix(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("source", ["train_pool", "test_unlabelled", "public"])
def test_inputs_of_the_test_set_are_not_trained_on_without_a_word(source, caplog):
    server = FedHeNNHeteroServer(rad_source=source)
    server.check(network(), Setting("fedhenn", 1, 2, 2, sources=("train_pool", "test_unlabelled", "public")))
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == (source == "test_unlabelled")
    assert all(
        "algorithm.server.rad_source=test_unlabelled trains on inputs of the test set" in one for one in said
    )
