"""What cannot be stacked into one fit."""

from functools import partial

import pytest
import torch
from harness import make_data, network_of, parties
from pytorch_lightning.callbacks import Callback
from stacked_rounds import of, two_layers
from torch import nn

from fedfeat.algorithms.fedfusion import FedFusionClient
from fedfeat.algorithms.fedrep import FedRepClient
from fedfeat.client import ClientModule
from fedfeat.clients.local_trainer import LocalTrainer
from fedfeat.clients.networks import OneNetwork
from fedfeat.clients.turns import WorkerSettings
from fedfeat.clients.worker import Worker
from fedfeat.errors import ConfigError
from fedfeat.executors.stacked.vectorized import VectorizedExecutor


class Counting(ClientModule):
    def on_train_batch_end(self, *arguments):
        self.count = 1


class Hooked(Counting):
    apart = None


class Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


class Decorrelated(ClientModule):
    """A term that mixes a batch's examples, of so small a weight that a step's rounding might be larger."""

    def loss(self, batch):
        features = self.model.representation(batch[0])
        features = features - features.mean(0)
        return super().loss(batch) + 1e-2 * (features.T @ features / len(features)).square().mean()


class Counted(ClientModule):
    """A term of the number of rows, whatever is in them."""

    def loss(self, batch):
        return super().loss(batch) + 1e-2 * sum(p.square().sum() for p in self.model.parameters()) * len(
            batch[1]
        )


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


REFUSED = {
    "stacked fits with phases, of heads and bodies, begin their optimizers anew (federation.opt_state=keep)": {
        "client": of(FedRepClient, personal=["head"]),
        "build_model": two_layers,
        "keep_optimizer": True,
    },
    "Counting overrides on_train_batch_end": {"client": Counting},
    "Counting overrides on_train_batch_end and": {"client": Hooked},
    "it keeps the frozen features": {"client": of(FedFusionClient, cache_eg=True), "build_model": two_layers},
    "ClientModule.loss depends on the rows of a batch that are padding": {
        "build_model": lambda: network_of(Mixing(), nn.Linear(4, 3))
    },
    "Decorrelated.loss depends on the rows of a batch that are padding": {
        "client": Decorrelated,
        "build_model": two_layers,
    },
    "gradients are others than in a step of one": {"client": Counted, "build_model": two_layers},
    "a step of two clients together fails (RuntimeError: vmap: called random operation": {
        "build_model": lambda: network_of(Noisy(), nn.Linear(4, 3))
    },
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_stacked_is_refused_at_the_start_in_one_sentence(reason, tmp_path):
    with pytest.raises(ConfigError) as caught:
        parties(tmp_path, build_executor=VectorizedExecutor, **REFUSED[reason])
    assert str(caught.value).startswith("executor must be another than vectorized here, for ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("trainer", "optimizer", "reason"),
    [
        ({"precision": "bf16-true"}, torch.optim.SGD, "trainer.precision=bf16-true"),
        ({"accumulate_grad_batches": 2}, torch.optim.SGD, "trainer.accumulate_grad_batches has no"),
        ({"limit_train_batches": 1.0}, torch.optim.SGD, "trainer.limit_train_batches has no"),
        ({"callbacks": (Callback(),)}, torch.optim.SGD, "callbacks are made for fits of one client"),
        ({}, torch.optim.LBFGS, "LBFGS"),
        ({}, torch.optim.Adagrad, "Adagrad"),
    ],
)
def test_trainers_and_optimizers_without_a_stacked_form_are_refused(trainer, optimizer, reason):
    def build():
        client = partial(ClientModule, optimizer=partial(optimizer, lr=0.1))
        local = LocalTrainer(accelerator="cpu", **trainer)
        return Worker(make_data(), OneNetwork(two_layers), client, local, WorkerSettings(0, 2, 100, False))

    with pytest.raises(ConfigError, match=reason):
        VectorizedExecutor(build)
