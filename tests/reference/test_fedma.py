"""FedMA through the real loop: whole passes by hand, what they cost, permuted clients, and planted bugs."""

from functools import partial

import numpy as np
import pytest
import torch
from grouped_rounds import seeded
from harness import SETTING, SIZES, turn_of
from matched_rounds import MOMENTUM, SETTINGS, STEPS, Setting, check, federation_of, fresh

import fedfeat.algorithms.fedma
from fedfeat import tree
from fedfeat.algorithms.fedma import FedMAClient, FedMAServer, LayerExchange, OwnModel
from fedfeat.algorithms.matched import mean_by_class
from fedfeat.clients.turns import TrainedTensors
from fedfeat.errors import UserError
from fedfeat.features.chain import chain_layers, layer_of, sliced
from fedfeat.features.matching import BBPMap
from fedfeat.features.neurons import Layer, spread_inputs
from fedfeat.models.torchvision_adapter import torchvision_model
from fedfeat.models.vgg import vgg9
from fedfeat.params import copy_into, snapshot
from fedfeat.types import Federation, Update

NO_GROWTH = BBPMap(gamma=1e-9, shrink=False)
NAMES = ("encoder.fc1.linear", "encoder.fc2.linear", "head.fc3.linear")


@pytest.mark.parametrize("name", SETTINGS)
def test_two_passes_by_hand(name, tmp_path):
    widths = check(SETTINGS[name], tmp_path)
    assert (widths[-1] == widths[0]) == (name == "mlp, no growth")


def permuted(params, layers, seed):
    """The same function with hidden neurons in another order."""
    draw = torch.Generator().manual_seed(seed)
    widths = [len(layer_of(params, name).weight) for name in layers[:-1]]
    return sliced(params, layers, [torch.randperm(width, generator=draw) for width in widths])


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_permuted_clients_give_the_network_itself(name):
    """No client trains, so that every matched layer is the layer of both, and so the model is the function of both."""
    networks = [seeded(partial(fresh, name)) for _ in range(2)]
    layers = chain_layers(networks[0])
    # Neurons far enough apart to be told from each other.
    copy_into(networks[0], {key: 6 * value for key, value in snapshot(networks[0]).items()})
    copy_into(networks[1], permuted(snapshot(networks[0]), layers, 1))
    x = torch.randn(9, 2, 1, 2, generator=torch.Generator().manual_seed(0))
    expected = [network(x).detach() for network in networks]
    torch.testing.assert_close(expected[0], expected[1])
    server, counts = FedMAServer(NO_GROWTH), np.array([[1, 0, 5], [2, 3, 0]])
    clients = [FedMAClient(model=network, optimizer=partial(torch.optim.SGD, lr=1.0)) for network in networks]
    state = server.init(networks[0], Federation(2, counts.sum(1), counts, clients[0].policies, None))
    starts = [snapshot(network) for network in networks]
    memories = [OwnModel(start) for start in starts]
    for stage in range(len(layers)):
        updates = []
        for k, client in enumerate(clients):
            if stage:
                client.receive(server.broadcast(state, k), memories[k])
            turn = turn_of(server.broadcast(state, k))
            payload, memories[k] = client.upload(turn, TrainedTensors(client))
            updates.append(Update(k, 1, payload, None, {}))
            torch.testing.assert_close(client(x), expected[0], rtol=1e-4, atol=1e-4)
        state = server.aggregate(state, updates)
    for payload in (server.global_payload(state), server.broadcast(state, 0), server.broadcast(state, 1)):
        clients[0].receive(payload, None)
        torch.testing.assert_close(clients[0](x), expected[0], rtol=1e-4, atol=1e-4)
    for k in range(2):
        own = server.broadcast(state, k).params
        torch.testing.assert_close(own, starts[k])


def test_bytes_of_every_exchange(tmp_path):
    """Down: the model, then one global layer and for each of the client's neurons 8 bytes. Up: one layer."""
    federation = federation_of(Setting("mlp"), tmp_path, num_rounds=3)
    steps, records = federation.run()
    a, b = (len(tensor) for tensor in list(steps[-1].state.model.values())[1:4:2])
    assert (a, b) != (6, 5)
    down = [4 * (6 * 5 + 5 * 7 + 3 * 6), 4 * a * 5 + 8 * 6, 4 * b * (a + 1) + 8 * 5]
    up = [4 * 6 * 5, 4 * 5 * (a + 1), 4 * 3 * (b + 1)]
    for direction, sizes in (("down", down), ("up", up)):
        found = [record.metrics[f"comm/{direction}_bytes"] for record in records]
        assert np.diff(found).tolist() == [3 * size for size in sizes]


@pytest.mark.parametrize("matching", [BBPMap(), NO_GROWTH], ids=["growing", "same widths"])
def test_flops_of_every_exchange(matching, tmp_path):
    """2 per weight forward; the same for a layer's weights if it trains, and for its inputs if a layer below does."""
    federation = federation_of(Setting("mlp", matching=matching), tmp_path, num_rounds=3)
    steps, records = federation.run()
    a, b = (len(tensor) for tensor in list(steps[-1].state.model.values())[1:4:2])
    assert (a, b) == (6, 5) or matching is not NO_GROWTH
    examples = sum(SIZES) * STEPS
    expected = [
        examples * 2 * (3 * (24 + 30 + 15) - 24),
        examples * 2 * ((4 * a + 5 * a + 15) + (5 * a + 15) + 15),
        3 * examples * 2 * ((4 * a + a * b + 3 * b) + 3 * b),
    ]
    assert np.diff([record.metrics["compute/flops"] for record in records]).tolist() == expected
    seen = np.diff([record.metrics["compute/examples"] for record in records])
    assert seen.tolist() == [examples, examples, 3 * examples]


def test_until_a_pass_is_complete_the_model_is_that_of_the_pass_before(tmp_path):
    _, records = federation_of(Setting("mlp"), tmp_path).run()
    losses = [record.metrics["global/loss"] for record in records]
    assert losses == [losses[0]] * 3 + [losses[3]] * 3 + [losses[6]]
    assert len({losses[0], losses[3], losses[6]}) == 3


@pytest.mark.parametrize(
    ("stage", "lr", "weight_decay", "frozen"), [(0, 0.2, 0.01, 0), (1, 0.2, 0.01, 2), (2, 0.02, 1e-4, 4)]
)
def test_optimizer_settings(stage, lr, weight_decay, frozen):
    model = seeded(partial(fresh, "mlp"))
    own = snapshot(model)
    optimizer = partial(torch.optim.SGD, lr=0.2, momentum=MOMENTUM, weight_decay=0.7)
    client = FedMAClient(model=model, optimizer=optimizer, weight_decay=0.01)
    width = {1: 6, 2: 5}.get(stage, 0)
    sent = {key: value for key, value in own.items() if stage and key.startswith(NAMES[stage - 1])}
    client.receive(LayerExchange(sent or own, stage, torch.arange(width) if stage else None), OwnModel(own))
    (group,) = client.configure_optimizers().param_groups
    assert group["lr"] == pytest.approx(lr)
    assert (group["weight_decay"], group["momentum"]) == (weight_decay, MOMENTUM)
    assert len(group["params"]) == 6 - frozen
    assert client.local_steps(10) == (30 if stage == 2 else 10)


def test_clients_of_their_own_initial_weights_receive_none(tmp_path):
    federation = federation_of(Setting("mlp", init="independent"), tmp_path, num_rounds=1)
    state, worker = federation.start().state, federation.executor.worker
    starts = []
    for k in (0, 1, 0):
        payload = federation.server.broadcast(state, k)
        assert payload.params == {}
        worker.module.receive(payload, None)
        starts.append(tree.sha256(snapshot(worker.module.model)))
    assert starts[0] == starts[2] != starts[1]
    before = torch.get_rng_state()
    worker.module.receive(federation.server.broadcast(state, 0), None)
    assert torch.equal(torch.get_rng_state(), before)
    assert federation.run()[1][-1].metrics["comm/down_bytes"] == 0


def test_a_state_is_a_value_and_a_pass_goes_on_from_its_middle(tmp_path):
    federation = federation_of(Setting("mlp"), tmp_path)
    steps, _ = federation.run()
    digests = [tree.sha256(step.state) for step in steps]
    assert len(set(digests)) == len(digests)
    again, _ = federation_of(Setting("mlp"), tmp_path / "b", num_rounds=4).run()
    assert [tree.sha256(step.state) for step in again] == digests[:5]


def test_a_class_that_nobody_has_is_averaged_over_all_alike():
    heads = [Layer(torch.full((2, 1), float(k)), torch.full((2,), 10.0 * k)) for k in (1, 2, 6)]
    found = mean_by_class(heads, torch.tensor([[1, 0], [3, 0], [0, 0]]))
    assert found.weight[:, 0].tolist() == [1.75, 3.0]
    assert found.bias.tolist() == [17.5, 30.0]


def test_a_missing_client_is_refused():
    model = seeded(partial(fresh, "mlp"))
    counts = np.ones((2, 3), dtype=np.int64)
    server = FedMAServer(BBPMap())
    state = server.init(model, Federation(2, counts.sum(1), counts, {}, None))
    update = Update(1, 3, LayerExchange(snapshot(model)), None, {})
    with pytest.raises(
        UserError, match=r"^All 2 clients must send an update in every round .*, but 1 did\.$"
    ):
        server.aggregate(state, [update])


@pytest.mark.parametrize(
    ("build", "block", "layer"),
    [
        (lambda: vgg9((3, 32, 32), 10, norm="bn"), "conv1", "BatchNorm2d"),
        (lambda: vgg9((3, 32, 32), 10, norm="gn"), "conv1", "GroupNorm"),
        (lambda: torchvision_model((3, 32, 32), 10, arch="resnet18"), "stem", "BatchNorm2d"),
    ],
)
def test_networks_that_are_no_plain_chain_are_refused(build, block, layer):
    with pytest.raises(UserError) as caught:
        FedMAServer(BBPMap()).check(build(), SETTING)
    assert str(caught.value) == (
        "model must be a chain of plain convolutions and linear layers (vgg9, mnist_cnn, mlp) where neurons are "
        f"matched, but block {block} has a {layer}."
    )


RECEIVE, SLICE, BROADCAST = FedMAClient.receive, sliced, FedMAServer.broadcast


def thawed(self, payload, memory):
    RECEIVE(self, payload, memory)
    self.model.requires_grad_(True)


def other_layers(model, layers, own):
    """Outputs of the first layer are taken in the order of the second's."""
    width = len(layer_of(model, layers[0]).weight)
    return SLICE(
        model, layers, [own[1].clamp(max=width - 1).repeat(2)[: len(own[0])], *own[1:]] if own else own
    )


def in_place(weight, assignment, num_global):
    return spread_inputs(weight, torch.arange(len(assignment)), num_global)


BUGS = {
    "a frozen layer trained": [(FedMAClient, "receive", thawed)],
    "inputs left where they were": [(fedfeat.algorithms.fedma, "spread_inputs", in_place)],
    "last layer averaged without counts": [
        (
            fedfeat.algorithms.fedma,
            "mean_by_class",
            lambda layers, n: mean_by_class(layers, torch.ones_like(n)),
        )
    ],
    "sliced by another layer's assignment": [(fedfeat.algorithms.fedma, "sliced", other_layers)],
    "sliced for another client": [
        (FedMAServer, "broadcast", lambda self, state, k: BROADCAST(self, state, 0))
    ],
    "last layer at the full rate": [(fedfeat.algorithms.fedma, "LAST_LR", 1.0)],
    "last layer without decay": [(fedfeat.algorithms.fedma, "LAST_WEIGHT_DECAY", 0.0)],
    "last layer as short as others": [(fedfeat.algorithms.fedma, "LAST_EPOCHS", 1)],
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    for owner, attribute, mutant in BUGS[bug]:
        monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        check(SETTINGS["mlp"], tmp_path)
