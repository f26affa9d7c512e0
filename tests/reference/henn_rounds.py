"""Rounds of FedHeNN (Alg. 1 and 2) in plain PyTorch and double precision: m x m kernels, HSIC by its definition.

Three clients of 3, 5 and 8 examples; full batches. Alike they all have one hidden layer, else the second one has two;
the encoder is the first one.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from harness import NUM_CLASSES, NUM_FEATURES, SIZES, parties, sample_cohort
from plain_cka import cka, kernel_matrix
from torch.nn import functional

from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedhenn import FedHeNNClient, FedHeNNServer
from fedfeat.algorithms.fedhenn_hetero import FedHeNNHeteroServer
from fedfeat.clients.architecture_pool import ArchitecturePool, PooledNetworks
from fedfeat.models.mlp import mlp
from fedfeat.models.network import Network
from fedfeat.seeding import derive_seed, numpy_generator

LR, STEPS, ROUNDS, RAD, ETA0 = 0.2, 3, 4, 7, 2.0
HIDDEN = {"small": [5], "deep": [6, 4], "wide": [9]}
NAMES = ("small", "deep", "small")


class Setting(NamedTuple):
    """Everything that changes what the server or a client does."""

    hetero: bool = False
    names: tuple[str, ...] = NAMES
    alike: str = "small"
    kernel: str = "linear"
    sigma_factor: float = 0.4
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
    final_epochs: int | None = None


SETTINGS = {
    "homogeneous": Setting(),
    "homogeneous, one by one": Setting(cohort_size=1, schedule="const"),
    "homogeneous, some inputs": Setting(rad_batch=5, rad_every=2, weighting="uniform"),
    "homogeneous, unbiased": Setting(hsic="unbiased", schedule="log", cohort_size=3),
    "homogeneous, dropout": Setting(dropout=0.4, rad_batch=5),
    "homogeneous, logits": Setting(repr_at="logits", logits_dropout=0.3),
    "homogeneous, features": Setting(repr_at="features", alike="deep", dropout=0.4),
    "homogeneous, swapped": Setting(repr_at="code_swapped", schedule="linear", dropout=0.3),
    "homogeneous, rbf": Setting(kernel="rbf"),
    "homogeneous, rbf of 0.8": Setting(kernel="rbf", sigma_factor=0.8, rad_batch=6),
    "homogeneous, then all": Setting(final_epochs=10),
    "heterogeneous": Setting(hetero=True),
    "heterogeneous, one by one": Setting(hetero=True, cohort_size=1),
    "heterogeneous, some inputs": Setting(hetero=True, rad_batch=5, rad_every=2, schedule="const"),
    "heterogeneous, participants": Setting(hetero=True, kbar_over="participants"),
    "heterogeneous, last participants": Setting(hetero=True, kbar_over="last_participants", schedule="const"),
    "heterogeneous, last participants, one by one": Setting(
        hetero=True, kbar_over="last_participants", cohort_size=1, final_epochs=2
    ),
    "heterogeneous, fro": Setting(hetero=True, kernel_norm="fro", hsic="unbiased"),
    "heterogeneous, logits": Setting(hetero=True, repr_at="logits", schedule="log"),
    "heterogeneous, features": Setting(hetero=True, repr_at="features", dropout=0.4, rad_batch=5),
    "heterogeneous, swapped": Setting(hetero=True, repr_at="code_swapped", rad_batch=6),
    "heterogeneous, rbf": Setting(hetero=True, kernel="rbf", rad_batch=5, kernel_norm="fro"),
    "heterogeneous, rbf of 0.8": Setting(hetero=True, kernel="rbf", sigma_factor=0.8),
    "heterogeneous, wider than X": Setting(hetero=True, names=("wide", "deep", "small")),
    "heterogeneous, wider than X, rbf": Setting(hetero=True, names=("deep", "wide", "wide"), kernel="rbf"),
    "heterogeneous, then all": Setting(hetero=True, final_epochs=2, kbar_over="participants"),
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
    blocks = mlp((NUM_FEATURES,), NUM_CLASSES, hidden=HIDDEN[name], dropout=dropout).blocks()
    return Network(blocks[:1], blocks[1:], (NUM_FEATURES,), NUM_CLASSES)


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
        names = ("kernel", "sigma_factor", "kernel_norm", "kbar_over")
        more = {name: getattr(setting, name) for name in names}
        henn = FedHeNNHeteroServer(**more, **rad)
    else:
        henn = FedHeNNServer(FedAvgServer(setting.weighting), **rad)
    names = ("kernel", "sigma_factor", "hsic", "rad_batch", "rad_every", "repr_at", "logits_dropout")
    options = {name: getattr(setting, name) for name in names}
    arguments = {"lr": LR, "num_rounds": ROUNDS, "local_epochs": STEPS} | {
        name: getattr(setting, name) for name in ("cohort_size", "final_epochs")
    }
    return parties(
        store_dir,
        client=client or partial(FedHeNNClient, **options),
        server=server or henn,
        build_model=lambda: seeded(partial(build, setting.alike, setting.dropout)),
        networks=pooled(setting.dropout, setting.names) if setting.hetero else None,
        personal=True,
        **(arguments | plan),
    )


def dropped(values, rate):
    """Dropout as torch draws it: for float32, from the global generator."""
    return values * functional.dropout(torch.ones(values.shape), rate) if rate else values


def hidden(params, x, rate, count):
    """Output of the first ``count`` hidden layers (B, d), before the dropout of the last of them."""
    tensors = list(params.values())
    for i in range(count):
        x = ((dropped(x, rate) if i else x) @ tensors[2 * i].T + tensors[2 * i + 1]).relu()
    return x


def forward(params, x, setting, train=False):
    """Input of the last layer (B, d) and logits (B, C), weights and biases taking turns in ``params``."""
    rate = setting.dropout if train else 0
    x = dropped(hidden(params, x, rate, len(params) // 2 - 1), rate)
    *_, weight, bias = params.values()
    return x, dropped(x @ weight.T + bias, setting.logits_dropout if train else 0)


def predicted(params, x, setting, train=False):
    penultimate, logits = forward(params, x, setting, train)
    return penultimate if setting.repr_at == "code_swapped" else logits


def represented(params, x, setting, train=False):
    layers = {"penultimate": len(params) // 2 - 1, "features": 1}
    if setting.repr_at in layers:
        return hidden(params, x, setting.dropout if train else 0, layers[setting.repr_at])
    logits = forward(params, x, setting, train)[1]
    return logits.log_softmax(1) if setting.repr_at == "code_swapped" else logits


def shared_inputs(data, round_idx):
    chosen = numpy_generator(0, "unlabelled", round_idx).permutation(sum(SIZES))[:RAD]
    return data.dataset.train.inputs[chosen].double()


def mean_kernel(models, rad, setting):
    total = 0
    for params in models:
        kernel = kernel_matrix(represented(params, rad, setting), setting.kernel, setting.sigma_factor)
        if setting.kernel_norm == "fro":
            centre = torch.eye(RAD).double() - 1 / RAD
            kernel = kernel / (centre @ kernel @ centre).norm()
        total = total + kernel
    return total / len(models)


def reference_client(params, examples, rad, target_of, eta, setting, address, num_steps):
    """Full-batch gradient steps; inputs of the term are drawn after the batch's dropout, as the fit does."""
    orders = torch.Generator().manual_seed(derive_seed(0, "batches", *address))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(0, "fit", *address))
        for step in range(num_steps):
            order = torch.randperm(len(examples[1]), generator=orders)  # whose row gets which dropout
            x, y = examples[0][order], examples[1][order]
            params = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
            loss = functional.cross_entropy(predicted(params, x, setting, train=True), y)
            if eta and step % setting.rad_every == 0:
                rows = torch.arange(RAD)
                if setting.rad_batch:
                    rows = torch.randperm(RAD)[: setting.rad_batch]
                found = represented(params, rad[rows], setting, train=True)
                own = kernel_matrix(found, setting.kernel, setting.sigma_factor)
                loss = loss + eta * (1 - cka(own, target_of(rows), setting.hsic))
            slopes = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
            params = {
                name: (tensor - LR * (0 if slope is None else slope)).detach()
                for (name, tensor), slope in zip(params.items(), slopes, strict=True)
            }
    return params


def reference_round(newest, own, data, round_idx, cohort, setting, num_steps=STEPS, eta0=ETA0):
    """The averaged model (None among unequal ones) after a round; ``own`` are the clients' models, and change."""
    eta = eta0 * ETA[setting.schedule](round_idx)
    rad = shared_inputs(data, round_idx)
    before = sample_cohort(0, round_idx - 1, 3, setting.cohort_size) if round_idx else ()
    asked = {"all": range(3), "participants": cohort, "last_participants": before}[setting.kbar_over]
    with torch.no_grad():
        models = [own[k] for k in asked] if setting.hetero else [newest]
        target = mean_kernel(models, rad, setting) if setting.hetero and models else None
        received = None if setting.hetero else represented(newest, rad, setting)

    def target_of(rows):
        """Kbar of some of the shared inputs; the client's own has the width of just these."""
        if setting.hetero:
            return target[rows][:, rows]
        return kernel_matrix(received[rows], setting.kernel, setting.sigma_factor)

    eta = eta if models else 0.0
    for k in cohort:
        chosen, train = data.split.train.of(k), data.dataset.train
        examples = train.inputs[chosen].double(), train.labels[chosen]
        start = own[k] if setting.hetero else newest
        own[k] = reference_client(start, examples, rad, target_of, eta, setting, (round_idx, k), num_steps)
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


def loss_of(params, test, setting):
    return functional.cross_entropy(predicted(params, test.inputs.double(), setting), test.labels).item()


def check(setting, store_dir, tolerance=1e-5, **plan):
    """Compare weights and accuracies of every client after every round; give the federation."""
    federation = federation_of(setting, store_dir, evaluate_local=True, **plan)
    data, test = federation.data, federation.data.dataset.test
    networks = pooled(names=setting.names) if setting.hetero else None
    initial = [
        networks.build(name) if networks else seeded(partial(build, setting.alike)) for name in setting.names
    ]
    own = {k: doubled(network.state_dict()) for k, network in enumerate(initial)}
    newest, trained, cohort = None if setting.hetero else own[0], set(), ()
    for step, record in federation.rounds():
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
                assert_same(federation.store.get(k).memory.params, own[k], tolerance)
        rows = {row.client_id: row for row in record.clients}
        for k in range(3):
            logits = predicted(own[k], test.inputs.double(), setting)
            assert abs(rows[k].personal_acc - (logits.argmax(1) == test.labels).double().mean().item()) < 1e-9
            assert abs(rows[k].personal_loss - loss_of(own[k], test, setting)) < 20 * tolerance
            # A personal model is the one right after the client's last fit, also where weights are averaged.
            after_fit = (rows[k].personal_acc, rows[k].personal_loss) if k in cohort else (None, None)
            assert (rows[k].local_acc, rows[k].local_loss) == after_fit
        assert ("global/acc" in record.metrics) != setting.hetero
    assert np.isfinite(record.metrics["train/loss"])
    check_final(setting, rows, newest, own, data, tolerance)
    return federation


def check_final(setting, rows, newest, own, data, tolerance):
    """Compare the losses after the fit of all clients that follows the last round, whose term counts."""
    if setting.final_epochs is None:
        assert all(row.final_loss is None for row in rows.values())
        return
    losses = {}
    for name, eta0 in (("with", ETA0), ("without", 0.0)):
        after = dict(own)
        work = (data, ROUNDS, range(3), setting, setting.final_epochs, eta0)
        reference_round(newest, after, *work)
        losses[name] = [loss_of(after[k], data.dataset.test, setting) for k in range(3)]
    for k, row in rows.items():
        assert abs(row.final_loss - losses["with"][k]) < 20 * tolerance
        assert abs(row.final_loss - losses["without"][k]) > 100 * tolerance
