"""Rounds of FedHeNN (Alg. 1 and 2) in plain PyTorch and double precision: m x m kernels, HSIC by its definition.

Three clients of 3, 5 and 8 examples; full batches. Alike they all have one hidden layer, else the second one has two.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from harness import NUM_CLASSES, NUM_FEATURES, SIZES, parties
from plain_cka import cka, kernel_matrix
from torch.nn import functional

from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedhenn import FedHeNNHeteroServer, FedHeNNServer
from fedfeat.algorithms.fedhenn_client import FedHeNNClient
from fedfeat.federation import run_rounds
from fedfeat.models.mlp import mlp
from fedfeat.pool import ArchitecturePool, PooledNetworks
from fedfeat.sampling import sample_cohort
from fedfeat.seeding import derive_seed, numpy_generator

LR, STEPS, ROUNDS, RAD, ETA0 = 0.2, 3, 4, 7, 2.0
HIDDEN = {"small": [5], "deep": [6, 4]}
NAMES = ("small", "deep", "small")


class Setting(NamedTuple):
    """Everything that changes what the server or a client does."""

    hetero: bool = False
    kernel: str = "linear"
    hsic: str = "biased"
    rad_batch: int | None = None
    rad_every: int = 1
    repr_at: str = "penultimate"
    dropout: float = 0.0
    logits_dropout: float = 0.0
    schedule: str = "sqrt"
    weighting: str = "samples"
    kernel_norm: str = "none"
    kbar_over: str = "all"
    cohort_size: int = 2


SETTINGS = {
    "homogeneous": Setting(),
    "homogeneous, one by one": Setting(cohort_size=1, schedule="const"),
    "homogeneous, some inputs": Setting(rad_batch=5, rad_every=2, weighting="uniform"),
    "homogeneous, unbiased": Setting(hsic="unbiased", schedule="log", cohort_size=3),
    "homogeneous, dropout": Setting(dropout=0.4, rad_batch=5),
    "homogeneous, logits": Setting(repr_at="logits", logits_dropout=0.3),
    "homogeneous, swapped": Setting(repr_at="code_swapped", schedule="linear"),
    "homogeneous, rbf": Setting(kernel="rbf"),
    "heterogeneous": Setting(hetero=True),
    "heterogeneous, one by one": Setting(hetero=True, cohort_size=1),
    "heterogeneous, some inputs": Setting(hetero=True, rad_batch=5, rad_every=2, schedule="const"),
    "heterogeneous, participants": Setting(hetero=True, kbar_over="participants"),
    "heterogeneous, fro": Setting(hetero=True, kernel_norm="fro", hsic="unbiased"),
    "heterogeneous, logits": Setting(hetero=True, repr_at="logits", schedule="log"),
    "heterogeneous, swapped": Setting(hetero=True, repr_at="code_swapped", rad_batch=6),
    "heterogeneous, rbf": Setting(hetero=True, kernel="rbf", rad_batch=5, kernel_norm="fro"),
}
ETA = {
    "sqrt": lambda t: t**0.5,
    "linear": lambda t: t,
    "const": lambda t: 1,
    "log": lambda t: math.log(1 + t),
}


def seeded(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return make()


def build(name, dropout=0.0):
    return mlp((NUM_FEATURES,), NUM_CLASSES, hidden=HIDDEN[name], dropout=dropout)


def pooled(dropout=0.0, names=NAMES):
    def builder(name):
        return lambda input_shape, num_classes: build(name, dropout)

    pool = ArchitecturePool({name: builder(name) for name in HIDDEN}, names=names)
    return PooledNetworks(
        pool, partial(build, "small"), seeded, (NUM_FEATURES,), NUM_CLASSES, len(names), seed=0
    )


def federation_of(setting, store_dir, client=None, server=None, eta0=ETA0, **plan):
    rad = {"rad_size": RAD, "eta0": eta0, "eta_schedule": setting.schedule}
    if setting.hetero:
        more = {"kernel": setting.kernel, "kernel_norm": setting.kernel_norm, "kbar_over": setting.kbar_over}
        henn = FedHeNNHeteroServer(**more, **rad)
    else:
        henn = FedHeNNServer(FedAvgServer(setting.weighting), **rad)
    names = ("kernel", "hsic", "rad_batch", "rad_every", "repr_at", "logits_dropout")
    options = {name: getattr(setting, name) for name in names}
    arguments = {"lr": LR, "num_rounds": ROUNDS, "local_epochs": STEPS, "cohort_size": setting.cohort_size}
    return parties(
        store_dir,
        client=client or partial(FedHeNNClient, **options),
        server=server or henn,
        build_model=lambda: seeded(partial(build, "small", setting.dropout)),
        networks=pooled(setting.dropout) if setting.hetero else None,
        personal=True,
        **(arguments | plan),
    )


def dropped(values, rate):
    """Dropout as torch draws it: for float32, from the global generator."""
    return values * functional.dropout(torch.ones(values.shape), rate) if rate else values


def forward(params, x, setting, train=False):
    """Input of the last layer (B, d) and logits (B, C), weights and biases taking turns in ``params``."""
    tensors = list(params.values())
    for weight, bias in zip(tensors[:-2:2], tensors[1:-2:2], strict=True):
        x = dropped((x @ weight.T + bias).relu(), setting.dropout if train else 0)
    logits = x @ tensors[-2].T + tensors[-1]
    return x, dropped(logits, setting.logits_dropout if train else 0)


def predicted(params, x, setting, train=False):
    penultimate, logits = forward(params, x, setting, train)
    return penultimate if setting.repr_at == "code_swapped" else logits


def represented(params, x, setting, train=False):
    penultimate, logits = forward(params, x, setting, train)
    return {
        "penultimate": penultimate, "logits": logits, "code_swapped": logits.log_softmax(1)
    }[setting.repr_at]  # fmt: skip


def shared_inputs(data, round_idx):
    chosen = numpy_generator(0, "unlabelled", round_idx).permutation(sum(SIZES))[:RAD]
    return data.dataset.train.inputs[chosen].double()


def mean_kernel(models, rad, setting):
    total = 0
    for params in models:
        kernel = kernel_matrix(represented(params, rad, setting), setting.kernel)
        if setting.kernel_norm == "fro":
            centre = torch.eye(RAD).double() - 1 / RAD
            kernel = kernel / (centre @ kernel @ centre).norm()
        total = total + kernel
    return total / len(models)


def reference_client(params, examples, rad, target, eta, setting, address):
    """Full-batch gradient steps; inputs of the term are drawn after the batch's dropout, as the fit does."""
    orders = torch.Generator().manual_seed(derive_seed(0, "batches", *address))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(0, "fit", *address))
        for step in range(STEPS):
            order = torch.randperm(len(examples[1]), generator=orders)  # whose row gets which dropout
            x, y = examples[0][order], examples[1][order]
            params = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
            loss = functional.cross_entropy(predicted(params, x, setting, train=True), y)
            if eta and step % setting.rad_every == 0:
                rows = torch.arange(RAD)
                if setting.rad_batch:
                    rows = torch.randperm(RAD)[: setting.rad_batch]
                own = kernel_matrix(represented(params, rad[rows], setting, train=True), setting.kernel)
                loss = loss + eta * (1 - cka(own, target[rows][:, rows], setting.hsic))
            slopes = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
            params = {
                name: (tensor - LR * (0 if slope is None else slope)).detach()
                for (name, tensor), slope in zip(params.items(), slopes, strict=True)
            }
    return params


def reference_round(newest, own, data, round_idx, cohort, setting):
    """The averaged model (None among unequal ones) after a round; ``own`` are the clients' models, and change."""
    eta = ETA0 * ETA[setting.schedule](round_idx)
    rad = shared_inputs(data, round_idx)
    asked = range(3) if setting.kbar_over == "all" else cohort
    with torch.no_grad():
        models = [own[k] for k in asked] if setting.hetero else [newest]
        target = mean_kernel(models, rad, setting)
    for k in cohort:
        chosen, train = data.split.train.of(k), data.dataset.train
        examples = train.inputs[chosen].double(), train.labels[chosen]
        start = own[k] if setting.hetero else newest
        own[k] = reference_client(start, examples, rad, target, eta, setting, (round_idx, k))
    if setting.hetero:
        return None
    weights = [SIZES[k] if setting.weighting == "samples" else 1 for k in cohort]
    return {
        name: sum(w * own[k][name] for k, w in zip(cohort, weights, strict=True)) / sum(weights)
        for name in newest
    }


def doubled(params):
    return {name: tensor.double() for name, tensor in params.items()}


def assert_same(found, expected, tolerance):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].double(), tensor, rtol=0, atol=tolerance, msg=name)


def check(setting, store_dir, tolerance=1e-5):
    """Compare weights and accuracies of every client after every round; give the federation."""
    federation = federation_of(setting, store_dir)
    data, test = federation.data, federation.data.dataset.test
    networks = pooled() if setting.hetero else None
    initial = [networks.build(name) if networks else seeded(partial(build, "small")) for name in NAMES]
    own = {k: doubled(network.state_dict()) for k, network in enumerate(initial)}
    newest, trained = None if setting.hetero else own[0], set()
    for step, record in run_rounds(*federation, federation.start()):
        if record.round_idx:
            cohort = sample_cohort(0, record.round_idx - 1, 3, setting.cohort_size)
            trained |= set(cohort)
            newest = reference_round(newest, own, data, record.round_idx - 1, cohort, setting)
        if not setting.hetero:
            assert_same(step.state.average.params, newest, tolerance)
            for k in {0, 1, 2} - trained:
                own[k] = newest
        for k in range(3):
            assert (k in federation.store) == (k in trained)
            if k in trained:
                assert_same(federation.store.get(k), own[k], tolerance)
        rows = {row.client_id: row for row in record.clients}
        for k in range(3):
            logits = predicted(own[k], test.inputs.double(), setting)
            assert abs(rows[k].personal_acc - (logits.argmax(1) == test.labels).double().mean().item()) < 1e-9
            loss = functional.cross_entropy(logits, test.labels).item()
            assert abs(rows[k].personal_loss - loss) < 20 * tolerance
        assert ("global/acc" in record.metrics) != setting.hetero
    assert np.isfinite(record.metrics["train/loss"])
    return federation
