"""Where matching methods start: initial weights of each client, former assignments, and the anchor of OT fusion."""

from functools import partial

import numpy as np
import pytest
import torch
from grouped_rounds import grouped_data, seeded
from harness import parties
from matched_rounds import fresh

from fedfeat import tree
from fedfeat.algorithms.fedma import FedMAClient, LayerExchange
from fedfeat.algorithms.ot_fusion import OTFusionServer
from fedfeat.algorithms.pfnm import OneShotFedMAServer, PFNMClient, PFNMServer, WholeNetwork
from fedfeat.features.chain import chain_layers, layer_of, sliced
from fedfeat.features.matching import BBPMap
from fedfeat.models.cnn import mnist_cnn
from fedfeat.params import snapshot
from fedfeat.seeding import derive_seed
from fedfeat.types import Federation, Update, Weights

SERVERS = {"pfnm": (PFNMServer, "mlp"), "fedma": (OneShotFedMAServer, "conv")}
SGD = partial(torch.optim.SGD, lr=1.0)


def drawn(seed, build):
    torch.manual_seed(seed)
    return build()


def permuted(params, layers, seed):
    """The same function with hidden neurons in another order."""
    draw = torch.Generator().manual_seed(seed)
    widths = [len(layer_of(params, name).weight) for name in layers[:-1]]
    return sliced(params, layers, [torch.randperm(width, generator=draw) for width in widths])


@pytest.mark.parametrize("init", ["xavier", "default"])
@pytest.mark.parametrize(
    ("kind", "payload"), [(FedMAClient, LayerExchange), (PFNMClient, WholeNetwork)], ids=["fedma", "pfnm"]
)
def test_weights_of_a_clients_own_are_those_that_the_builder_draws(kind, payload, init):
    build = partial(mnist_cnn, (1, 4, 4), 3, init=init)
    client = kind(model=drawn(1, build), optimizer=SGD)
    before = torch.get_rng_state()
    client.receive(payload({}, init_seed=7), None)
    assert torch.equal(torch.get_rng_state(), before)
    expected = snapshot(drawn(7, build))
    assert tree.sha256(snapshot(client.model)) == tree.sha256(expected)
    assert (expected["encoder.conv1.conv.bias"].abs().max() == 0) == (init == "xavier")


@pytest.mark.parametrize("name", SERVERS)
def test_independent_clients_start_from_weights_of_their_own_and_go_on_from_their_slices(name, tmp_path):
    kind, model = SERVERS[name]
    federation = parties(
        tmp_path,
        data=grouped_data(),
        client=PFNMClient,
        server=kind(BBPMap(), "independent"),
        build_model=partial(seeded, partial(fresh, model)),
        lr=0.3,
        num_rounds=2,
    )
    start = federation.start().state
    for k in range(3):
        assert federation.server.broadcast(start, k) == WholeNetwork({}, derive_seed(0, "client init", k))
    steps, records = federation.run()
    down = np.diff([record.metrics["comm/down_bytes"] for record in records])
    up = np.diff([record.metrics["comm/up_bytes"] for record in records])
    assert down.tolist() == [0, up[1]]
    shared = parties(
        tmp_path / "shared",
        data=grouped_data(),
        client=PFNMClient,
        server=kind(BBPMap()),
        build_model=partial(seeded, partial(fresh, model)),
        lr=0.3,
        num_rounds=2,
    )
    assert tree.sha256(shared.run()[0][1].state.model) != tree.sha256(steps[1].state.model)


def trained_apart(model):
    """Three networks of other weights, as updates, and the first of them."""
    networks = [drawn(seed, partial(fresh, model)) for seed in (3, 4, 5)]
    return networks[0], [Update(k, 2, WholeNetwork(snapshot(n)), None, {}) for k, n in enumerate(networks)]


@pytest.mark.parametrize("name", SERVERS)
def test_pfnm_matches_on_from_the_last_assignments_and_fedma_anew(name):
    """Without sweeps: whatever the assignments were, PFNM's stay, and FedMA's do not depend on them."""
    kind, model = SERVERS[name]
    network, updates = trained_apart(model)
    counts = np.ones((3, 3), dtype=np.int64)
    server = kind(BBPMap(gamma=1e-9, sweeps=0))
    first = server.aggregate(server.init(network, Federation(3, counts.sum(1), counts, {}, None)), updates)
    reversed_ = tuple((layer[0], *(a.flip(0) for a in layer[1:])) for layer in first.assignments)
    found = server.aggregate(first._replace(assignments=reversed_), updates)
    expected = reversed_ if name == "pfnm" else first.assignments
    assert [[a.tolist() for a in layer] for layer in found.assignments] == [
        [a.tolist() for a in layer] for layer in expected
    ]
    assert (tree.sha256(found.model) == tree.sha256(first.model)) == (name == "fedma")


def test_the_anchor_is_the_global_model_by_default():
    """All clients are permutations of it, also the first; with that one as the anchor its order would be the result."""
    network = seeded(partial(fresh, "conv"))
    layers, own = chain_layers(network), snapshot(network)
    updates = [Update(k, 2, Weights(permuted(own, layers, k + 1)), None, {}) for k in range(2)]
    federation = Federation(2, np.array([2, 2]), np.ones((2, 3)), {}, None)
    for server, expected in (
        (OTFusionServer(), own),
        (OTFusionServer("client"), updates[0].payload.params),
    ):
        state = server.aggregate(server.init(network, federation), updates)
        torch.testing.assert_close(state.model, expected)
    assert tree.sha256(updates[0].payload.params) != tree.sha256(own)
