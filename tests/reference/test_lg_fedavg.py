"""LG-FedAvg: personal encoders under shared layers, of one architecture and of unequal ones, by hand."""

from functools import partial

import numpy as np
import pytest
import torch
from cut_runs import assert_goes_on
from float64_runs import assert_same
from float64_runs import run as run_configured
from harness import NUM_CLASSES, NUM_FEATURES, SIZES, parties
from torch.nn import functional

from fedfeat import tree
from fedfeat.client import ClientModule
from fedfeat.clients.architecture_pool import ArchitecturePool, PooledNetworks
from fedfeat.models import common_head
from fedfeat.models.mlp import mlp
from fedfeat.params import WeightedMean

LR, MOMENTUM, STEPS, ROUNDS, WIDTH = 0.3, 0.9, 3, 5, 4
HEAD = ("head.last.linear.weight", "head.last.linear.bias")
HIDDEN = {"narrow": [3], "even": [8], "deep": [6, 7]}
"""Every width is averaged to 4 in another way: repeated, in pairs, in overlapping bins."""


def seeded(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return make()


def pooled(*names):
    models = {name: partial(mlp, hidden=hidden) for name, hidden in HIDDEN.items()}
    pool = ArchitecturePool(models, names=names, head_width=WIDTH)
    base = partial(mlp, (NUM_FEATURES,), NUM_CLASSES, hidden=[5])
    return PooledNetworks(pool, base, seeded, (NUM_FEATURES,), NUM_CLASSES, len(names), 0)


POOLS = {"unequal": ("narrow", "even", "deep"), "alike": ("deep", "deep", "deep")}


def federation_of(store_dir, pool="unequal", **plan):
    arguments = {
        "num_rounds": ROUNDS,
        "local_epochs": STEPS,
        "cohort_size": 2,
        "lr": LR,
        "momentum": MOMENTUM,
    }
    client = partial(ClientModule, personal=["encoder"])
    networks = pooled(*POOLS[pool])
    return parties(store_dir, client=client, networks=networks, precision="64-true", **(arguments | plan))


def pooling(d):
    """The averages as a matrix (d, WIDTH)."""
    found = np.zeros((d, WIDTH))
    for i in range(WIDTH):
        start, end = i * d // WIDTH, -(-(i + 1) * d // WIDTH)
        found[start:end, i] = 1 / (end - start)
    return torch.from_numpy(found)


def logits(params, x):
    """ReLU layers of the encoder, averages, the last layer."""
    for name in ("encoder.fc1.linear", "encoder.fc2.linear"):
        if f"{name}.weight" in params:
            x = (x @ params[f"{name}.weight"].T + params[f"{name}.bias"]).relu()
    weight, bias = (params[key] for key in HEAD)
    return x @ pooling(x.shape[1]) @ weight.T + bias


def trained(params, x, y):
    """Full-batch steps with momentum on everything."""
    velocity = {name: 0.0 for name in params}
    for _ in range(STEPS):
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
        slopes = torch.autograd.grad(functional.cross_entropy(logits(leaves, x), y), list(leaves.values()))
        for name, slope in zip(params, slopes, strict=True):
            velocity[name] = MOMENTUM * velocity[name] + slope
        params = {name: tensor.detach() - LR * velocity[name] for name, tensor in params.items()}
    return params


def check(pool, store_dir):
    """Heads and encoders after every round, and the accuracy of everyone's own model."""
    federation = federation_of(store_dir, pool)
    data, networks = federation.data, federation.executor.worker.networks
    head = {key: tensor for key, tensor in networks.build(None).double().state_dict().items() if key in HEAD}
    encoders = [
        {
            key: tensor
            for key, tensor in networks.build(networks.key(k)).double().state_dict().items()
            if key not in HEAD
        }
        for k in range(3)
    ]
    cohorts = set()
    for step, record in federation.rounds():
        found = {}
        for k in record.cohort:
            chosen = data.split.train.of(k)
            x, y = data.dataset.train.inputs[chosen].double(), data.dataset.train.labels[chosen]
            found[k] = trained(encoders[k] | head, x, y)
            encoders[k] = {key: found[k][key] for key in encoders[k]}
        if found:
            total = sum(SIZES[k] for k in found)
            head = {key: sum(SIZES[k] * own[key] for k, own in found.items()) / total for key in HEAD}
        cohorts.add(record.cohort)
        assert sorted(step.state.params) == sorted(HEAD)
        for key in HEAD:
            torch.testing.assert_close(step.state.params[key], head[key], rtol=0, atol=1e-12)
        own = []
        for k in range(3):
            kept = federation.store.get(k)
            for key, tensor in (kept.personal if kept else {}).items():
                torch.testing.assert_close(tensor, encoders[k][key], rtol=0, atol=1e-12)
            right = logits(encoders[k] | head, data.dataset.test.inputs.double()).argmax(1)
            own.append(float((right == data.dataset.test.labels).double().mean()))
        assert record.metrics["personal/acc_mean"] == pytest.approx(np.mean(own))
        assert "global/acc" not in record.metrics
    assert len(cohorts) > 2
    return federation, record


@pytest.mark.parametrize("pool", POOLS)
def test_rounds_of_some_of_unequal_clients_by_hand(pool, tmp_path):
    check(pool, tmp_path)


def test_the_shared_layers_alone_cross_the_wire(tmp_path):
    """4 x 3 weights and 3 biases of 8 bytes, two clients a round, whatever their encoders are."""
    _, record = check("unequal", tmp_path)
    assert record.metrics["comm/down_bytes"] == record.metrics["comm/up_bytes"] == ROUNDS * 2 * 15 * 8


SMALL = ("federation.cohort_size=2", "optimizer.momentum=0.9")


@pytest.mark.parametrize(("personal", "bound"), [("[]", "fedavg"), ("[all]", "local")])
def test_with_nothing_or_everything_personal_it_is_fedavg_or_local_bit_for_bit(personal, bound, tmp_path):
    found, records = run_configured(
        tmp_path / "lg", "algorithm=lg_fedavg", f"algorithm.client.personal={personal}", *SMALL
    )
    expected, others = run_configured(tmp_path / bound, f"algorithm={bound}", *SMALL)
    assert tree.sha256(found) == tree.sha256(expected)
    for mine, its in zip(records, others, strict=True):
        assert {k: v for k, v in mine.metrics.items() if not k.startswith("time/")} == {
            k: v for k, v in its.metrics.items() if not k.startswith("time/")
        }


POOL = ("pool=hetero_cnn", "pool.names=[A1,A2,A2,A1]", "pool.head_width=24")


WITH_TERM = ("algorithm=fedprox", "algorithm.client.personal=[encoder]")


@pytest.mark.parametrize(
    "method", [("algorithm=lg_fedavg",), WITH_TERM], ids=["alone", "with FedProx's term"]
)
def test_stacked_clients_of_unequal_encoders_give_what_single_ones_give(method, tmp_path):
    words = (*POOL, *method)
    alone = run_configured(tmp_path / "serial", *words)
    assert_same(run_configured(tmp_path / "stacked", *words, "executor=vectorized"), alone)


def test_of_one_architecture_too_and_with_a_server_optimizer(tmp_path):
    words = ("algorithm=fedadam", "algorithm.client.personal=[encoder]", *SMALL)
    alone = run_configured(tmp_path / "serial", *words)
    assert_same(run_configured(tmp_path / "stacked", *words, "executor=vectorized"), alone)


def test_a_run_goes_on_from_its_middle_with_everyones_encoder(cli, small, tmp_path, caplog):
    models = [f"+pool.models.{name}={{_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[{width}]}}"
              for name, width in (("a", 5), ("b", 9))]  # fmt: skip
    words = [*small, "algorithm=lg_fedavg", "pool=hetero_cnn", "pool.names=[a,b,b,a]", "pool.head_width=4", *models,
             "federation.cohort_size=2", "federation.ram_budget_mb=0.001"]  # fmt: skip
    assert_goes_on(cli, words, tmp_path / "run", caplog)


REFUSED = {
    "heads of unequal widths": ("algorithm=lg_fedavg", "pool.head_width=null"),
    "encoders that are shared": ("algorithm=fedavg",),
    "bodies that are shared": ("algorithm=fedavg", "algorithm.client.personal=[last]"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_networks_that_share_unequal_layers_are_refused_in_a_sentence(why, cli, tmp_path):
    outcome = cli("data=digits", *POOL, "federation.num_clients=4", "pool.head_width=24", *REFUSED[why])
    assert outcome.code == 2
    assert "algorithm/server must average unequal networks" in outcome.stderr
    assert "see algorithm.client.personal and pool.head_width" in outcome.stderr


def test_a_width_of_nothing_is_refused(cli):
    outcome = cli("algorithm=lg_fedavg", *POOL, "federation.num_clients=4", "pool.head_width=0")
    assert outcome.code == 2
    assert "pool.head_width must be an integer of at least 1, but it is 0" in outcome.stderr


ADD = WeightedMean.add
BUGS = {
    "mean without weights": ("unequal", WeightedMean, "add", lambda self, params, weight: ADD(self, params, 1)),
    "encoders forgotten": ("alike", ClientModule, "take_personal", lambda self, personal: None),
    "encoders of the start": (
        "alike", ClientModule, "take_personal", lambda self, personal: TAKE(self, {}),
    ),
    "the largest of neighbours": ("unequal", common_head.nn, "AdaptiveAvgPool1d", torch.nn.AdaptiveMaxPool1d),
    "heads stay": (
        "alike", ClientModule, "receive", lambda self, payload, memory: None,
    ),
}  # fmt: skip
TAKE = ClientModule.take_personal


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    pool, owner, attribute, mutant = BUGS[bug]
    monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        check(pool, tmp_path)
