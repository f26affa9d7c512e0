"""Rounds on full copies of images with an order of the pixels for each client, against rounds on permuted images.

The reference has no permutations: it trains on a data set that holds every image once for each client, its pixels
already moved.
"""

from functools import partial

import numpy as np
import pytest
import torch
from harness import parties

from fedfeat.algorithms.fedhenn import AlignedWeights, FedHeNNClient
from fedfeat.algorithms.fedhenn_hetero import FedHeNNHeteroServer
from fedfeat.clients.tasks import Task
from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import ClientSplit, IndexTestParts, Parts
from fedfeat.data.partition.permuted import Copies, Permuted
from fedfeat.data.pixels import pixel_permutation
from fedfeat.data.transforms import Transform
from fedfeat.executors.forked.processes import ProcessExecutor
from fedfeat.executors.serial import SerialExecutor
from fedfeat.executors.stacked.vectorized import VectorizedExecutor
from fedfeat.features.kernels import linear_kernel
from fedfeat.models.mlp import mlp
from fedfeat.params import snapshot
from fedfeat.types import Survey

NUM, SIDE, CLIENTS = 14, 2, 3
DRAW = np.random.default_rng(0)
IMAGES = torch.from_numpy(DRAW.integers(0, 256, (NUM, 1, SIDE, SIDE), dtype=np.uint8))
LABELS = torch.from_numpy(DRAW.integers(0, 3, NUM))


def federated(images, labels, split):
    one = Dataset("images", Examples(images, labels), Examples(images, labels), tuple("abc"), (0.5,), (0.3,))
    return FederatedData(one, split, Transform())


def permuted():
    labels = LABELS.numpy()
    return federated(IMAGES, LABELS, Permuted(inner=Copies()).split(labels, labels, 3, CLIENTS, 0))


def moved():
    """Image i as client k sees it is example ``i * CLIENTS + k``."""
    orders = [pixel_permutation(0, k, SIDE**2) for k in range(CLIENTS)]
    images = torch.stack([IMAGES.flatten(1)[:, order] for order in orders], dim=1).view(-1, 1, SIDE, SIDE)
    own = np.arange(NUM * CLIENTS).reshape(NUM, CLIENTS).T
    parts = Parts(own.ravel(), np.arange(CLIENTS + 1) * NUM)
    nobody = Parts(np.zeros(0, dtype=np.int64), np.zeros(CLIENTS + 1, dtype=np.int64))
    return federated(
        images, LABELS.repeat_interleave(CLIENTS), ClientSplit(parts, nobody, IndexTestParts(parts))
    )


def network():
    torch.manual_seed(0)
    return mlp((1, SIDE, SIDE), 3, hidden=[5])


def weights_and_metrics(folder, data, build_executor=SerialExecutor):
    course = {"build_model": network, "batch_size": 4, "num_rounds": 3, "local_epochs": 2}
    federation = parties(folder, data=data, build_executor=build_executor, **course)
    federation.executor.start()
    try:
        steps, records = federation.run()
    finally:
        federation.executor.close()
    names = ("global/acc", "global/loss", "global/client_acc_mean", "train/loss")
    metrics = [[record.metrics.get(name, np.nan) for name in names] for record in records]
    return torch.cat([tensor.flatten() for tensor in steps[-1].state.params.values()]), np.array(metrics)


@pytest.mark.parametrize("pooled", [False, True])
def test_copies_train_as_permuted_images_do(pooled, tmp_path):
    kinds = [permuted(), moved()]
    found, expected = (
        weights_and_metrics(tmp_path / str(i), data.pooled() if pooled else data)
        for i, data in enumerate(kinds)
    )
    assert torch.equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)


@pytest.mark.parametrize("build_executor", [partial(ProcessExecutor, num_processes=2), VectorizedExecutor])
def test_every_executor_knows_whose_order_it_is(build_executor, tmp_path):
    expected, metrics = weights_and_metrics(tmp_path / "serial", permuted())
    found, others = weights_and_metrics(tmp_path / "other", permuted(), build_executor)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(others, metrics, rtol=1e-5)


def test_shared_inputs_come_to_each_client_in_its_own_order(tmp_path):
    """What FedHeNN's clients answer and compare with is of the images as they see them."""
    data, build = permuted(), {"build_model": network, "client": FedHeNNClient}
    server = FedHeNNHeteroServer(rad_size=5, eta_schedule="const")
    federation = parties(tmp_path, data=data, server=server, personal=True, num_rounds=2, **build)
    worker, own = federation.executor.worker, network()
    raw = data.unlabelled(Survey("train_pool", 5), 0, 0)
    answers = [worker.answer(Task(k, 0, None, None), raw).payload for k in range(CLIENTS)]
    for k, answer in enumerate(answers):
        order = pixel_permutation(0, k, SIDE**2)
        seen = (raw.flatten(1)[:, order].view_as(raw).float() / 255 - 0.5) / 0.3
        expected = linear_kernel(own.eval().representation(seen)).centred()
        torch.testing.assert_close(answer.matrix(), expected.matrix().detach(), rtol=1e-5, atol=1e-6)
        worker.begin(worker.module_of(k), Task(k, 0, AlignedWeights(snapshot(own), raw, None, 1.0), None, 1))
        torch.testing.assert_close(worker.module.plain(raw), seen)
    assert not torch.allclose(answers[0].matrix(), answers[1].matrix())
    torch.testing.assert_close(data.plain(raw), (raw.float() / 255 - 0.5) / 0.3)
    federation.run()
