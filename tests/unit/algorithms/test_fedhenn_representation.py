"""What FedHeNN compares: where a network is cut, and that dropout behind the cut is no distance."""

from functools import partial

import pytest
import torch
from harness import turn_of
from torch import nn

from fedfeat.algorithms.fedhenn import AlignedWeights, FedHeNNClient
from fedfeat.client import ClientModule
from fedfeat.features.cka import cka
from fedfeat.features.kernels import linear_kernel
from fedfeat.models.cnn import digits_cnn, fedrep_cnn100
from fedfeat.models.freezing import statistics_at_rest
from fedfeat.models.fusion import fuse
from fedfeat.models.hetero import hetero_cnn
from fedfeat.models.lstm import sent140_lstm
from fedfeat.models.mlp import mlp
from fedfeat.params import copy_into, snapshot
from fedfeat.types import Vocabulary

NETWORKS = {
    "dropout ends the encoder": lambda: mlp((25,), 3, hidden=[12, 12], dropout=0.5),
    "dropout follows a flattening": lambda: hetero_cnn((3, 16, 16), 3, "A1", dropout=0.5),
    "dropout ends the head": lambda: hetero_cnn((3, 16, 16), 3, "A4", dropout=0.5),
    "fedrep_cnn100": lambda: fedrep_cnn100((3, 32, 32), 3),
    "LSTM": lambda: sent140_lstm((5,), 3, Vocabulary(40)),
}


def built(name):
    torch.manual_seed(0)
    return NETWORKS[name]()


def inputs_of(network, count=16):
    draw = torch.Generator().manual_seed(1)
    if len(network.input_shape) == 1:
        return torch.randint(1, 40, (count, *network.input_shape), generator=draw).float()
    return torch.rand(count, *network.input_shape, generator=draw)


def turn(network, **options):
    """A client half at the start of a fit that has received the network's own weights."""
    module = FedHeNNClient(model=network, optimizer=partial(torch.optim.SGD, lr=0.1), **options)
    module.plain = lambda inputs: inputs
    begin(module, AlignedWeights(snapshot(network), inputs_of(network), eta=1.0))
    return module.train()


def begin(module, payload):
    """What a worker does before a fit."""
    module.receive(payload, None)
    module.begin_turn(turn_of(payload))
    module.prepare(None)


def dropouts(network):
    return [layer for layer in network.modules() if isinstance(layer, nn.Dropout)]


@pytest.mark.parametrize("rad_batch", [None, 8])
@pytest.mark.parametrize("name", list(NETWORKS)[1:])
def test_a_network_in_training_is_at_no_distance_from_its_own_target(name, rad_batch):
    module = turn(built(name), rad_batch=rad_batch)
    assert dropouts(module.model)
    state = torch.get_rng_state()
    assert float(module.term.distance(module.represent).detach()) == pytest.approx(0, abs=1e-5)
    if rad_batch is None:
        assert torch.equal(torch.get_rng_state(), state)  # nothing was drawn


@pytest.mark.parametrize("rad_batch", [None, 8])
def test_batch_norm_is_at_no_distance_from_its_own_target_and_learns_nothing_of_shared_inputs(rad_batch):
    """Statistics that have seen data, as those of a batch of shared inputs would be near the first ones."""
    torch.manual_seed(0)
    network = digits_cnn((1, 8, 8), 3, norm="bn")
    network.train()(3 * torch.randn(40, 1, 8, 8) + 1)
    module = turn(network, rad_batch=rad_batch)
    before = snapshot(network)
    x, y = torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1])
    module.loss((x, y))
    with_term = snapshot(network)
    assert module.term.num_inputs == (rad_batch or 16)
    # Statistics have moved with the batch's.
    assert float(module.term.distance(module.represent).detach()) > 1e-4
    copy_into(network, before)
    alone = turn(network, rad_batch=rad_batch, rad_every=2)
    with statistics_at_rest(network):
        assert float(alone.term.distance(alone.represent).detach()) == pytest.approx(0, abs=1e-5)
    assert all(part.training for part in network.modules())
    ClientModule.loss(alone, (x, y))
    assert all(torch.equal(with_term[name], tensor) for name, tensor in network.state_dict().items())


def test_after_its_dropout_it_would_be_far_away():
    network = built("LSTM")
    target = linear_kernel(network.eval().representation(inputs_of(network)))
    dropped = linear_kernel(network.train().last_input(inputs_of(network)))
    assert 1 - cka(dropped, target) > 0.2


def test_only_the_dropout_at_the_end_is_left_out():
    """Of two the first one acts: between the hidden layers, in the encoder."""
    network = built("dropout ends the encoder").train()
    first = dropouts(network)[0]
    x = inputs_of(network)
    torch.manual_seed(5)
    found = network.representation(x)
    torch.manual_seed(5)
    hidden = first(network.encoder[0][:-1](x))
    assert torch.equal(found, network.encoder[1][:-1](hidden))
    assert not torch.equal(found, network.eval().representation(x))


@pytest.mark.parametrize("name", NETWORKS)
def test_dropout_stays_in_logits_and_in_what_the_last_layer_reads(name):
    network = built(name).train()
    x = inputs_of(network)
    found = []
    for logits in (network, lambda x: network.last_layer(network.last_input(x))):
        torch.manual_seed(5)
        found.append(logits(x))
    assert torch.equal(*found)
    assert not torch.equal(found[0], network.eval()(x))


@pytest.mark.parametrize("name", NETWORKS)
def test_in_evaluation_the_cuts_are_those_of_the_blocks(name):
    network = built(name).eval()
    x = inputs_of(network)
    assert torch.equal(network.representation(x), network.last_input(x))
    assert torch.equal(network.last_layer(network.representation(x)), network(x))
    assert torch.equal(network.feature_vector(x), network.features(x).flatten(1))


@pytest.mark.parametrize(
    ("name", "width"), [("LSTM", 128), ("dropout ends the head", 64 * 1 * 1), ("fedrep_cnn100", 128 * 5 * 5)]
)
def test_features_are_the_encoders_output_and_their_gradient_stays_in_it(name, width):
    """Of sent140_lstm the LSTM's last output, (B, 128), which no dropout follows."""
    module = turn(built(name), repr_at="features", rad_batch=None)
    x = inputs_of(module.model)
    found = module.represent(x)
    assert torch.equal(found, module.model.features(x).flatten(1))
    assert found.shape == (16, width)
    assert float(module.term.distance(module.represent).detach()) == pytest.approx(0, abs=1e-5)
    found.square().sum().backward()
    grads = {key: parameter.grad is not None for key, parameter in module.model.named_parameters()}
    assert {key.split(".")[0] for key, has in grads.items() if has} == {"encoder"}
    assert all(has for key, has in grads.items() if key.startswith("encoder"))
    assert torch.equal(module.eval()(x), module.model(x))


def test_a_fusion_is_part_of_the_features():
    network = built("dropout ends the head").eval()
    plain = network.feature_vector(inputs_of(network))
    fuse(network, "multi", lambda_init=0.5)
    x = inputs_of(network)
    with torch.no_grad():
        network.fusion.frozen.network[0][0].weight.add_(1.0)
    assert torch.equal(network.feature_vector(x), network.features(x).flatten(1))
    assert not torch.equal(network.feature_vector(x), plain)
    assert torch.equal(network.last_layer(network.representation(x)), network(x))
