"""PFNM, FedMA's matching in one exchange, and OT fusion through the real loop."""

from functools import partial

import numpy as np
import pytest
import torch
from grouped_rounds import grouped_data, seeded
from harness import SETTING, SIZES, parties
from matched_rounds import COUNTS, fresh, layers_of, match, moved
from torch.nn import functional

import fedfeat.algorithms.pfnm
from fedfeat import tree
from fedfeat.algorithms.ot_fusion import OTFusionServer
from fedfeat.algorithms.pfnm import OneShotFedMAServer, PFNMClient, PFNMServer
from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.errors import UserError
from fedfeat.features.chain import as_params, chain_layers, layer_of, sliced
from fedfeat.features.matching import BBPMap
from fedfeat.features.neurons import Layer
from fedfeat.features.one_shot import pfnm
from fedfeat.params import copy_into, snapshot
from fedfeat.seeding import numpy_generator
from fedfeat.types import Federation, Update, Weights

NO_GROWTH = BBPMap(gamma=1e-9, shrink=False)
SERVERS = {
    "pfnm": (partial(PFNMServer, NO_GROWTH), PFNMClient, "mlp"),
    "fedma": (partial(OneShotFedMAServer, NO_GROWTH), PFNMClient, "conv"),
    "ot": (partial(OTFusionServer, "client"), ClientModule, "conv"),
}


def federation_of(server, client, model, store_dir, **plan):
    return parties(
        store_dir,
        data=grouped_data(),
        client=client,
        server=server,
        build_model=partial(seeded, partial(fresh, model)),
        **({"lr": 0.3, "local_epochs": 3, "num_rounds": 1} | plan),
    )


def uploads(model, counts, copies):
    """Updates of clients that are permutations of one network with neurons far apart; and the network."""
    network = seeded(partial(fresh, model))
    copy_into(network, {key: 6 * value for key, value in snapshot(network).items()})
    layers, own = chain_layers(network), snapshot(network)
    widths = [len(layer_of(own, name).weight) for name in layers[:-1]]
    updates = []
    for k in range(copies):
        draw = torch.Generator().manual_seed(k)
        orders = [torch.randperm(width, generator=draw) for width in widths]
        updates.append(Update(k, int(counts[k].sum()), Weights(sliced(own, layers, orders)), None, {}))
    return network, updates


@pytest.mark.parametrize("name", SERVERS)
def test_permuted_clients_give_the_network_itself(name):
    build, kind, model = SERVERS[name]
    server, counts = build(), np.array([[1, 0, 5], [2, 3, 1], [0, 1, 4]])
    network, updates = uploads(model, counts, 3)
    state = server.init(network, Federation(3, counts.sum(1), counts, {}, None))
    state = server.aggregate(state, updates)
    x = torch.randn(9, 2, 1, 2, generator=torch.Generator().manual_seed(0))
    expected = network(x).detach()
    client = kind(model=seeded(partial(fresh, model)), optimizer=partial(torch.optim.SGD, lr=1.0))
    for payload in (server.global_payload(state), *(server.broadcast(state, k) for k in range(3))):
        client.receive(payload, None)
        torch.testing.assert_close(client(x), expected, rtol=1e-4, atol=1e-4)
    # The plain mean of the same networks is another function.
    client.receive(kind.payload_type(mean_of(updates)), None)
    assert (client(x) - expected).abs().max() > 0.1


def mean_of(updates):
    total = sum(update.num_examples for update in updates)
    keys = updates[0].payload.params
    return {key: sum(u.num_examples / total * u.payload.params[key] for u in updates) for key in keys}


def trained(layers, k, data, lr=0.3, steps=3):
    """Full-batch gradient steps of client k in double precision."""
    chosen = data.split.train.of(k)
    x, y = data.dataset.train.inputs[chosen].double(), data.dataset.train.labels[chosen]
    tensors = [tensor for pair in layers for tensor in pair]
    for _ in range(steps):
        tensors = [tensor.detach().requires_grad_(True) for tensor in tensors]
        h = x.flatten(1)
        for weight, bias in zip(tensors[:-2:2], tensors[1:-2:2], strict=True):
            h = (h @ weight.T + bias).relu()
        loss = functional.cross_entropy(h @ tensors[-2].T + tensors[-1], y)
        gradients = torch.autograd.grad(loss, tensors)
        tensors = [tensor.detach() - lr * g for tensor, g in zip(tensors, gradients, strict=True)]
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def check_fedma(store_dir):
    """Two rounds of FedMA's matching in one exchange, growth included; give the widths."""
    how = BBPMap()
    federation = federation_of(OneShotFedMAServer(how), PFNMClient, "mlp", store_dir, num_rounds=2)
    steps, records = federation.run()
    nets = [layers_of(steps[0].state.model)] * 3
    for t in range(2):
        nets = [trained(net, k, federation.data) for k, net in enumerate(nets)]
        draw, model, places = numpy_generator(0, "matching", t), [], []
        current = [list(net) for net in nets]
        for n in range(2):
            rows = [torch.cat([net[n][0], net[n][1][:, None]], 1).numpy() for net in current]
            found, atoms = match(rows, draw, how)
            model.append((torch.from_numpy(atoms[:, :-1]), torch.from_numpy(atoms[:, -1])))
            places.append(found)
            for net, place in zip(current, found, strict=True):
                net[n + 1] = (moved(net[n + 1][0], place, len(atoms)), net[n + 1][1])
        shares = torch.from_numpy(COUNTS / COUNTS.sum(0))
        last = [net[2] for net in current]
        model.append(
            tuple(
                sum(s.view(-1, *[1] * i) * layer[1 - i] for s, layer in zip(shares, last, strict=True))
                for i in (1, 0)
            )
        )
        state = steps[t + 1].state
        assert [[a.tolist() for a in layer] for layer in state.assignments] == places
        for pair, other in zip(layers_of(state.model), model, strict=True):
            for left, right in zip(pair, other, strict=True):
                np.testing.assert_allclose(left, right, rtol=0, atol=2e-5)
        nets = [
            [
                (model[0][0][places[0][k]], model[0][1][places[0][k]]),
                (model[1][0][places[1][k]][:, places[0][k]], model[1][1][places[1][k]]),
                (model[2][0][:, places[1][k]], model[2][1]),
            ]
            for k in range(3)
        ]
    return [len(bias) for _, bias in layers_of(steps[-1].state.model)], records


def test_two_rounds_of_fedmas_matching_by_hand(tmp_path):
    widths, records = check_fedma(tmp_path)
    assert widths[0] > 6
    # In both rounds a client receives and sends its own widths, not the global ones.
    size = 4 * 3 * (6 * 5 + 5 * 7 + 3 * 6)
    for direction in ("up", "down"):
        assert records[-1].metrics[f"comm/{direction}_bytes"] == 2 * size
    assert records[-1].metrics["compute/flops"] == 2 * 3 * sum(SIZES) * 2 * (3 * (24 + 30 + 15) - 24)


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("sliced", lambda model, layers, own: sliced(model, layers, [a.flip(0) for a in own])),
        ("spread_inputs", lambda w, a, n: torch.nn.functional.pad(w, (0, n - w.shape[1]))),
        ("mean_by_class", lambda layers, n: MEAN(layers, torch.ones_like(n))),
    ],
)
def test_a_planted_bug_would_be_noticed(name, mutant, tmp_path, monkeypatch):
    monkeypatch.setattr(fedfeat.algorithms.pfnm, name, mutant)
    with pytest.raises(AssertionError):
        check_fedma(tmp_path)


MEAN = fedfeat.algorithms.pfnm.mean_by_class


@pytest.mark.parametrize("name", SERVERS)
def test_rounds_go_on_from_a_state_that_is_a_value(name, tmp_path):
    build, kind, model = SERVERS[name]
    steps, records = federation_of(build(), kind, model, tmp_path / "a", num_rounds=3).run()
    digests = [tree.sha256(step.state) for step in steps]
    again, _ = federation_of(build(), kind, model, tmp_path / "b", num_rounds=3).run(steps[1])
    assert tree.sha256(again[-1].state) == digests[-1]
    assert [tree.sha256(step.state) for step in steps] == digests
    assert len({record.metrics["global/loss"] for record in records}) == 4


def swapped(params, layers):
    """The same function with the first two neurons of the first layer exchanged."""
    width = len(layer_of(params, layers[0]).weight)
    order = torch.tensor([1, 0, *range(2, width)])
    rest = [torch.arange(len(layer_of(params, name).weight)) for name in layers[1:-1]]
    return sliced(params, layers, [order, *rest])


@pytest.mark.parametrize(("weighting", "shares"), [("samples", (0.25, 0.75)), ("uniform", (0.5, 0.5))])
def test_ot_fusion_brings_neurons_to_the_anchor_before_it_averages(weighting, shares):
    """Client 1 has swapped neurons and a last bias that is 1 larger; 2 and 6 examples."""
    network = seeded(partial(fresh, "mlp"))
    layers, own = chain_layers(network), snapshot(network)
    last = layer_of(own, layers[-1])
    other = swapped(own, layers) | as_params(layers[-1], last._replace(bias=last.bias + 1))
    updates = [Update(0, 2, Weights(own), None, {}), Update(1, 6, Weights(other), None, {})]
    expected = own | as_params(layers[-1], last._replace(bias=last.bias + shares[1]))
    federation = Federation(2, np.array([2, 6]), np.ones((2, 3)), {}, None)
    for server in (OTFusionServer("client", weighting), OTFusionServer("global", weighting)):
        state = server.init(network, federation)
        torch.testing.assert_close(server.aggregate(state, updates).model, expected)
        assert server.aggregate(state, []) is state
    # From the other client's side the result is the same in its order.
    state = OTFusionServer("client", weighting).aggregate(state, updates[::-1])
    torch.testing.assert_close(state.model, swapped(expected, layers))


def test_pfnm_takes_multilayer_perceptrons_alone():
    with pytest.raises(
        UserError, match=r"^model must have linear layers .*, but encoder\.conv1\.conv is Conv2d"
    ):
        PFNMServer(BBPMap()).check(fresh("conv"), SETTING)
    PFNMServer(BBPMap()).check(fresh("mlp"), SETTING)
    OneShotFedMAServer(BBPMap()).check(fresh("conv"), SETTING)


def test_pfnm_knows_how_many_examples_of_a_class_a_client_has(tmp_path):
    federation = federation_of(PFNMServer(BBPMap(gamma=1.0)), PFNMClient, "mlp", tmp_path)
    start = federation.start()
    received = [federation.server.broadcast(start.state, k) for k in range(3)]
    worker = federation.executor.worker
    updates = [worker.fit(Task(k, 0, received[k], None, 3)) for k in range(3)]
    clients = [layers_of(update.payload.params) for update in updates]
    nets = [[Layer(weight.float(), bias.float()) for weight, bias in layers] for layers in clients]
    counts, draw = torch.from_numpy(COUNTS), numpy_generator(0, "matching", 0)
    expected = pfnm(nets, counts, draw, BBPMap(gamma=1.0))
    found = federation.server.aggregate(start.state, updates)
    for layer, name in zip(expected.layers, found.layers, strict=True):
        torch.testing.assert_close(layer_of(found.model, name), layer)
    assert (COUNTS.sum(0) > 0).all()
    assert len({*COUNTS[:, 0]}) > 1
