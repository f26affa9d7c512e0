"""Who runs which network of a pool, and federations of them."""

from collections import Counter
from functools import partial

import pytest
import torch
from harness import make_data, network_of, parties
from torch import nn

import fedfeat.clients.modules
from fedfeat import tree
from fedfeat.algorithms.fedhenn import FedHeNNClient
from fedfeat.algorithms.fedhenn_hetero import FedHeNNHeteroServer
from fedfeat.clients.architecture_pool import ArchitecturePool, PooledNetworks
from fedfeat.errors import ConfigError
from fedfeat.models.mlp import mlp
from fedfeat.seeding import derive_seed, numpy_generator

HIDDEN = {"a": [5], "b": [6, 4], "c": []}
MODELS = {name: partial(mlp, hidden=hidden) for name, hidden in HIDDEN.items()}


def seeded(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(0, "init"))
        return make()


def networks(num_clients=3, models=MODELS, seed=0, base=None, **pool):
    base = base or partial(mlp, (4,), 3, hidden=[7])
    return PooledNetworks(ArchitecturePool(models, **pool), base, seeded, (4,), 3, num_clients, seed)


@pytest.mark.parametrize(
    ("shares", "num_clients", "counts"),
    [
        ({"a": 0.5, "b": 0.3, "c": 0.2}, 7, (4, 2, 1)),  # 3.5, 2.1, 1.4: one is left, for a
        ({"a": 0.5, "b": 0.3, "c": 0.2}, 10, (5, 3, 2)),
        ({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, 11, (4, 4, 3)),  # ties in the order of the names
        ({"a": 0.29, "b": 0.71}, 100, (29, 71, 0)),  # 0.29 * 100 is 28.999... in binary
        ({"a": 0.0, "b": 1.0}, 3, (0, 3, 0)),
        ({"a": 0.1, "b": 0.9}, 1, (0, 1, 0)),
    ],
)
def test_shares_are_counts_by_largest_remainders(shares, num_clients, counts):
    found = Counter(ArchitecturePool(MODELS, shares).assign(num_clients, seed=3))
    assert tuple(found[name] for name in MODELS) == counts


def test_places_follow_the_seed_alone():
    pool = ArchitecturePool(MODELS, {"a": 0.5, "b": 0.5})
    found = [pool.assign(20, seed) for seed in range(4)]
    assert found == [pool.assign(20, seed) for seed in range(4)]
    assert len(set(found)) == 4


def test_without_shares_each_client_draws_by_itself():
    """Hence as many clients more change nobody's network."""
    pool = ArchitecturePool(MODELS)
    few, many = pool.assign(10, seed=1), pool.assign(300, seed=1)
    assert many[:10] == few
    assert few == tuple("abc"[numpy_generator(1, "architecture", k).integers(3)] for k in range(10))
    assert min(Counter(many).values()) > 70
    assert pool.assign(10, seed=2) != few


@pytest.mark.parametrize("how", [{"names": ["a", "b", "c", "b"]}, {"shares": {"b": 1.0}}, {}])
def test_weak_clients_run_the_weak_network_whatever_else_they_would(how):
    pool = ArchitecturePool(MODELS, **how, weak="c")
    usual, found = pool.assign(4, seed=0), pool.assign(4, seed=0, weak=(1, 3))
    assert found == (usual[0], "c", usual[2], "c")
    assert ArchitecturePool(MODELS, **how).assign(4, seed=0, weak=(1, 3)) == usual


def test_names_are_taken_as_they_are():
    found = networks(4, names=["c", "a", "a", "b"])
    assert [found.key(k) for k in range(4)] == ["c", "a", "a", "b"]
    assert found.describe() == "pool: 2 x a, 1 x b, 1 x c"
    assert networks(2, names=["c", "c"]).describe() == "pool: 2 x c"


@pytest.mark.parametrize(
    ("pool", "sentence"),
    [
        (
            {"shares": {"a": 0.5, "d": 0.5}},
            r"pool\.shares must name networks of the pool \(a, b, c\), but it is 'd'",
        ),
        ({"names": ["a", "d"]}, r"pool\.names must name networks of the pool \(a, b, c\), but it is 'd'"),
        (
            {"shares": {"a": 0.5, "b": 0.4}},
            r"pool\.shares must add up to 1, but it is {'a': 0\.5, 'b': 0\.4}",
        ),
        ({"shares": {}}, r"pool\.shares must add up to 1, but it is {}"),
        ({"shares": {"a": 1.5, "b": -0.5}}, r"pool\.shares must not be negative, but it is "),
        (
            {"names": ["a", "b"]},
            r"pool\.names must have one name for each of the 3 clients, but it is '2 names'",
        ),
    ],
)
def test_refusals(pool, sentence):
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        networks(3, **pool)


def test_networks_of_one_name_start_alike_and_draw_nothing_from_outside():
    found, state = networks(3, names=["a", "b", "a"]), torch.get_rng_state()
    first, again, other, server = (found.build(key) for key in ("a", "a", "b", None))
    assert torch.equal(state, torch.get_rng_state())
    assert tree.sha256(dict(first.state_dict())) == tree.sha256(dict(again.state_dict()))
    assert [net.last_layer.in_features for net in (first, other, server)] == [5, 4, 7]


def hetero(store_dir, num_clients=3, rounds=4, **arguments):
    sizes = tuple(3 + k % 4 for k in range(num_clients))
    return parties(
        store_dir,
        data=make_data(sizes),
        client=FedHeNNClient,
        server=FedHeNNHeteroServer(rad_size=8, eta0=1.0),
        personal=True,
        num_rounds=rounds,
        **({"networks": networks(num_clients), "lr": 0.1} | arguments),
    )


def digest(federation):
    return [tree.sha256(federation.store.get(k)) for k in federation.store]


def test_fifty_personal_clients_stay_within_the_budget_and_spill(tmp_path):
    """The largest network has 4 6 + 6 + 6 4 + 4 + 4 3 + 3 = 73 numbers."""
    options = {"num_clients": 50, "rounds": 3, "cohort_size": 20, "eval_every": 3}
    budget = 4 * 73 * 4
    spilled, roomy = hetero(tmp_path / "a", ram_budget=budget, **options), hetero(tmp_path / "b", **options)
    held, get = [], spilled.store.get

    def watched(client_id):
        found = get(client_id)
        held.append(spilled.store.num_bytes)
        return found

    spilled.store.get = watched
    spilled.run()
    roomy.run()
    assert 0 < max(held) <= budget < roomy.store.num_bytes
    assert len(list((tmp_path / "a").glob("*.safetensors"))) > 20
    assert not (tmp_path / "b").exists()
    del spilled.store.get
    assert digest(spilled) == digest(roomy)


def test_modules_that_are_built_again_change_nothing(tmp_path, monkeypatch):
    plenty = hetero(tmp_path / "a", networks=networks(4, names="abca"), num_clients=4)
    plenty.run()
    assert plenty.executor.worker._made.cache_info().currsize == 3
    monkeypatch.setattr(fedfeat.clients.modules, "MAX_ARCHITECTURES", 1)
    few = hetero(tmp_path / "b", networks=networks(4, names="abca"), num_clients=4)
    few.run()
    assert few.executor.worker._made.cache_info().currsize == 1
    assert digest(few) == digest(plenty)


def test_the_module_used_least_recently_goes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(fedfeat.clients.modules, "MAX_ARCHITECTURES", 2)
    worker = hetero(tmp_path, networks=networks(3, names="abc")).executor.worker
    first = worker.module_of(0)
    second = worker.module_of(1)
    assert worker.module_of(0) is first
    third = worker.module_of(2)
    assert worker.module is not worker.module_of(0) is first
    assert worker.module_of(2) is third
    assert worker.module_of(1) is not second


def normed(input_shape, num_classes):
    return network_of(nn.BatchNorm1d(4), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("names", "base", "dropped"),
    [
        ("aba", None, False),
        ("ana", None, True),
        ("nnn", None, True),
        ("aba", partial(normed, (4,), 3), False),
    ],
)
def test_single_examples_are_dropped_where_any_clients_network_has_batch_norm(names, base, dropped, tmp_path):
    """Clients of 3, 4 and 5 examples in batches of 2; a last batch of one is dropped from all or from none."""
    pool = networks(3, MODELS | {"n": normed}, names=names, base=base)
    federation = hetero(tmp_path, networks=pool, batch_size=2)
    worker = federation.executor.worker
    assert worker.drop_singleton == federation.plan.drop_singleton == dropped
    assert [worker.steps_per_epoch(k) for k in range(3)] == ([1, 2, 2] if dropped else [2, 2, 3])
    records = federation.run()[1]
    assert records[-1].metrics["compute/examples"] == 4 * (2 + 4 + 4 if dropped else 12)
