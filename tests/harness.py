"""Federations of a few examples, built without the command line; used by several folders of tests."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.client import ClientModule
from fedfeat.clients.local_trainer import LocalTrainer
from fedfeat.clients.networks import OneNetwork
from fedfeat.clients.turns import WorkerSettings
from fedfeat.clients.worker import Worker
from fedfeat.data import transforms
from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import ClientSplit, Parts
from fedfeat.executors.base import Executor
from fedfeat.executors.serial import SerialExecutor
from fedfeat.models.mlp import mlp
from fedfeat.models.network import Network
from fedfeat.rounds.loop import Progress, first_progress, run_rounds
from fedfeat.rounds.plan import Plan
from fedfeat.rounds.samplers import Uniform
from fedfeat.rounds.site import federation_of, site_of
from fedfeat.rounds.tally import Meter
from fedfeat.runs.client_store import ClientStore
from fedfeat.runs.records import RoundRecord
from fedfeat.seeding import numpy_generator
from fedfeat.types import Setting, Turn

# Threads bring nothing to such small tensors and cost a lot where other processes are busy.
torch.set_num_threads(1)

SIZES = (3, 5, 8)
"""Unequal clients, so that a mean without weights is a different one."""
NUM_FEATURES, NUM_CLASSES = 4, 3


def turn_of(
    payload: Any = None,
    memory: Any = None,
    *,
    num_steps: int = 1,
    lr: float = 0.5,
    num_classes: int = NUM_CLASSES,
) -> Turn:
    """A turn of client 0 in the first round, on the CPU and without data."""
    return Turn(
        client_id=0,
        round_idx=0,
        payload=payload,
        memory=memory,
        num_steps=num_steps,
        lr=lr,
        device=torch.device("cpu"),
        class_counts=np.ones(num_classes, dtype=np.int64),
        batches=lambda size: iter(()),
    )


SETTING = Setting("any", num_rounds=30, num_clients=3, cohort_size=3)
"""A course of the rounds that every method can work with."""


def sample_cohort(seed, round_idx, num_clients, size, excluded=frozenset()):
    """The participants of a round under uniform sampling."""
    able = [k for k in range(num_clients) if k not in excluded]
    return Uniform().cohort(seed, round_idx, able, size, np.ones(num_clients, dtype=np.int64))


class OwnTests:
    """Every client's test part is the whole test set."""

    def __init__(self, num_clients: int, num_test: int) -> None:
        self._num_clients, self._num_test = num_clients, num_test

    def arrays(self) -> tuple[np.ndarray, ...]:
        return (self.sizes(),)

    def sizes(self) -> np.ndarray:
        return np.full(self._num_clients, self._num_test)

    def of(self, client_id: int) -> np.ndarray:
        return np.arange(self._num_test)

    def means(self, values: np.ndarray) -> np.ndarray:
        return np.full(self._num_clients, values.mean())


def make_data(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> FederatedData:
    """Float inputs (N, 4), which pass through the pipeline unchanged, in a shuffled split of the given sizes."""
    draw = numpy_generator(seed, "test data")
    total = sum(sizes)
    # Quarters are exact in every precision.
    inputs = np.round(draw.normal(size=(total + 6, NUM_FEATURES)) * 4).astype(np.float32) / 4
    labels = draw.integers(NUM_CLASSES, size=total + 6)
    train, test = (
        Examples(torch.from_numpy(inputs[part]), torch.from_numpy(labels[part]))
        for part in (slice(total), slice(total, None))
    )
    dataset = Dataset("tiny", train, test, tuple("abc"), (0.0,), (1.0,))
    indices = np.concatenate(
        [np.sort(part) for part in np.split(draw.permutation(total), np.cumsum(sizes)[:-1])]
    )
    parts = Parts(indices, np.concatenate([[0], np.cumsum(sizes)]))
    nobody = Parts(np.zeros(0, dtype=np.int64), np.zeros(len(sizes) + 1, dtype=np.int64))
    return FederatedData(dataset, ClientSplit(parts, nobody, OwnTests(len(sizes), 6)), transforms.none())


def linear() -> torch.nn.Module:
    """A softmax regression with zero weights, so that tests can write its gradient by hand."""
    model = mlp((NUM_FEATURES,), NUM_CLASSES, hidden=[])
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return model


def network_of(*layers: torch.nn.Module) -> Network:
    """A network of one block, the head: the layers in order, the last of them linear."""
    return Network([], [("all", torch.nn.Sequential(*layers))], (NUM_FEATURES,), NUM_CLASSES)


class Parties(NamedTuple):
    """Everything that takes part in a run."""

    plan: Plan
    server: Any
    executor: Executor
    data: FederatedData
    store: ClientStore
    meter: Meter

    def start(self) -> Progress:
        """The state before the first round."""
        worker = self.executor.worker
        self.server.setup(site_of(worker, self.meter.spend))
        return first_progress(
            self.server.init(worker.module.model, federation_of(worker, self.plan.excluded))
        )

    def rounds(self, progress: Progress | None = None) -> Iterator[tuple[Progress, RoundRecord]]:
        """Run round by round."""
        return run_rounds(*self[:-1], self.start() if progress is None else progress, self.meter)

    def run(self, progress: Progress | None = None) -> tuple[list[Progress], list[RoundRecord]]:
        """Run all rounds; give where the run stood and what happened after each."""
        steps = list(self.rounds(progress))
        return [step for step, _ in steps], [record for _, record in steps]


def parties(
    store_dir: Any,
    *,
    data: FederatedData | None = None,
    client: Any = ClientModule,
    server: Any = None,
    build_model: Any = linear,
    networks: Any = None,
    lr: float = 0.5,
    momentum: float = 0.0,
    batch_size: int | None = None,
    keep_optimizer: bool = False,
    build_executor: Any = SerialExecutor,
    precision: str = "32-true",
    ram_budget: int = 2**20,
    **plan: Any,
) -> Parties:
    """Build a federation; further arguments are those of `Plan`."""
    data = make_data() if data is None else data
    trainer = LocalTrainer(accelerator="cpu", precision=precision)
    if trainer.dtype != torch.float32:
        data = FederatedData(data.dataset, data.split, transforms.none(), dtype=trainer.dtype)
    optimizer = partial(torch.optim.SGD, lr=lr, momentum=momentum)
    executor = build_executor(
        lambda: Worker(
            data,
            networks or OneNetwork(build_model),
            partial(client, optimizer=optimizer),
            trainer,
            WorkerSettings(0, batch_size, 100, keep_optimizer),
        )
    )
    arguments = {
        "seed": 0, "num_rounds": 2, "num_clients": data.num_clients, "cohort_size": data.num_clients,
        "local_epochs": 1, "local_steps": None, "batch_size": batch_size, "eval_every": 1, "lr_factor": lambda *_: 1.0,
        "personal": bool(executor.worker.module.personal_keys),
        "drop_singleton": executor.worker.drop_singleton,
    }  # fmt: skip
    store = ClientStore(store_dir, ram_budget)
    return Parties(Plan(**(arguments | plan)), server or FedAvgServer(), executor, data, store, Meter())


def params_of(progress: Progress) -> tuple[np.ndarray, np.ndarray]:
    """Weights (C, D) and biases (C,) of the server's softmax regression."""
    weight, bias = (tensor.double().numpy() for tensor in progress.state.params.values())
    return weight, bias


def examples_of(data: FederatedData, client_id: int) -> tuple[np.ndarray, np.ndarray]:
    """One client's inputs (N, D) and labels (N,)."""
    chosen = data.split.train.of(client_id)
    train = data.dataset.train
    return train.inputs[chosen].double().numpy(), train.labels[chosen].numpy()


def gradient(
    weight: np.ndarray, bias: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient of the mean cross-entropy: (softmax(W x + b) - onehot(y)) x^T."""
    logits = x @ weight.T + bias
    gap = np.exp(logits - logits.max(1, keepdims=True))
    gap /= gap.sum(1, keepdims=True)
    gap[np.arange(len(y)), y] -= 1
    return gap.T @ x / len(y), gap.mean(0)


LR = 0.5


def local_steps(params, data, client_id, num_steps, mu=0.0, lr=LR):
    """Full-batch gradient steps on one client, with the proximal gradient mu * (w - w_received)."""
    x, y = examples_of(data, client_id)
    weight, bias = params
    for _ in range(num_steps):
        to_weight, to_bias = gradient(weight, bias, x, y)
        weight, bias = (
            weight - lr * (to_weight + mu * (weight - params[0])),
            bias - lr * (to_bias + mu * (bias - params[1])),
        )
    return weight, bias


def averaged(params, data, cohort, weights, **arguments):
    """The mean of the clients of a cohort after their local steps."""
    found = [local_steps(params, data, k, **arguments) for k in cohort]
    return tuple(np.average([pair[i] for pair in found], axis=0, weights=weights) for i in range(2))


def assert_close(found, expected, tolerance=1e-6):
    """Compare weights and biases."""
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance)


def zeros():
    """The softmax regression before training."""
    return np.zeros((3, 4)), np.zeros(3)
