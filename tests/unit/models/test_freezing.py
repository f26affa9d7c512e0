"""What is frozen neither trains nor leaves eval mode, and does not cross the wire."""

from copy import deepcopy
from functools import partial

import pytest
import torch

from fedfeat.client import ClientModule
from fedfeat.errors import ConfigError
from fedfeat.models.cnn import digits_cnn
from fedfeat.models.common_head import with_common_head
from fedfeat.models.flops import training_flops
from fedfeat.models.freezing import freeze, has_batch_norm, mixes_examples, still_keys
from fedfeat.models.fusion import fuse
from fedfeat.models.lstm import sent140_lstm
from fedfeat.models.policy import DROPPED, PERSONAL, sent_keys, tensor_policies
from fedfeat.models.redraw import drawn_again
from fedfeat.models.twin import Twin
from fedfeat.models.vgg import vgg9
from fedfeat.types import Vocabulary

ENCODER = {f"encoder.conv{i}.{part}" for i in (1, 2) for part in (
    "conv.weight", "conv.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var",
    "norm.num_batches_tracked")}  # fmt: skip
FIRST = {key for key in ENCODER if "conv1" in key}


def network(*selectors, norm="bn"):
    torch.manual_seed(0)
    made = digits_cnn((1, 8, 8), 10, width=4, norm=norm)
    freeze(made, selectors, "model.freeze")
    return made


def client_of(model, **arguments):
    return ClientModule(
        model=model, optimizer=partial(torch.optim.SGD, lr=0.5, weight_decay=0.1), **arguments
    )


def trained(client, steps=3):
    """Give what a client half has after some steps in training mode, as Lightning makes them."""
    optimizer = client.train().configure_optimizers()
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        batch = torch.randn(5, 1, 8, 8, generator=draw), torch.randint(10, (5,), generator=draw)
        optimizer.zero_grad()
        client.loss(batch).backward()
        optimizer.step()
    return client.model.state_dict()


@pytest.mark.parametrize(
    ("selectors", "still"),
    [
        (["encoder.conv1"], FIRST),
        (["encoder"], ENCODER),
        (["encoder.conv1", "encoder"], ENCODER),
        (["body"], ENCODER | {"head.fc1.linear.weight", "head.fc1.linear.bias"}),
        (["last"], {"head.fc2.linear.weight", "head.fc2.linear.bias"}),
        (["norm"], {key for key in ENCODER if ".norm." in key}),
        (["encoder.conv2.norm", "last"], {key for key in ENCODER if "conv2.norm" in key}
         | {"head.fc2.linear.weight", "head.fc2.linear.bias"}),
    ],
)  # fmt: skip
def test_frozen_tensors_stay_bit_for_bit_and_all_others_move(selectors, still):
    """Weight decay alone would move whatever the optimizer has; statistics move in training mode."""
    model = network(*selectors)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    assert set(still_keys(model)) == still
    after = trained(client_of(model))
    assert {key for key in before if torch.equal(before[key], after[key])} == still


def test_the_optimizer_has_what_trains_alone():
    client = client_of(network("body"))
    held = [p for group in client.configure_optimizers().param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in client.model.last_layer.parameters()}


def test_frozen_dropout_drops_nothing_and_other_dropout_does():
    torch.manual_seed(0)
    model = vgg9((3, 32, 32), 10)
    freeze(model, ["encoder"], "model.freeze")
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model.train().encoder(x), model.encoder(x))
        assert not torch.equal(model(x), model(x))
        assert torch.equal(model.eval()(x), model(x))
    assert not any(part.training for part in model.train().encoder.modules() if part is not model.encoder)
    assert model.head.training


def test_frozen_tensors_are_neither_sent_nor_kept():
    model = network("encoder.conv1")
    for personal in ([], ["encoder"], ["all"]):
        policies = tensor_policies(model, personal)
        assert {key for key, policy in policies.items() if policy == DROPPED} == FIRST
    assert not {key for key, policy in tensor_policies(model, ["all"]).items() if policy == PERSONAL} & FIRST
    assert set(sent_keys(tensor_policies(model))) == set(model.state_dict()) - FIRST
    assert set(tensor_policies(network()).values()) == {"shared"}


@pytest.mark.parametrize(
    ("selectors", "mixes"), [([], True), (["encoder.conv1"], True), (["norm"], False), (["encoder"], False)]
)
def test_only_batch_norm_that_trains_needs_two_examples(selectors, mixes):
    model = network(*selectors)
    assert has_batch_norm(model) == mixes_examples(model) == mixes
    if not mixes:
        x = torch.randn(4, 1, 8, 8)
        alone = torch.cat([model.train()(one) for one in x.split(1)])
        torch.testing.assert_close(model(x), alone)


def test_a_frozen_layer_that_mixes_examples_still_does():
    model = sent140_lstm((7,), 2, Vocabulary(20), mode="reference", embed_dim=6)
    freeze(model, ["encoder"], "model.freeze")
    assert mixes_examples(model)
    assert not has_batch_norm(model)


def test_copies_and_twins_stay_frozen():
    twin = Twin(network("encoder.conv1"))
    for model in (deepcopy(network("encoder.conv1")), twin.network):
        model.train()
        assert set(still_keys(model)) == FIRST
        assert not model.get_submodule("encoder.conv1.norm").training
        assert model.get_submodule("encoder.conv2.norm").training
        # Those of the copy, and not of the network that was copied.
        assert all(part in set(model.modules()) for part in model.frozen)
    assert set(still_keys(twin)) == {f"network.{key}" for key in FIRST}


def test_weights_drawn_anew_leave_frozen_ones_alone():
    model = network("encoder.conv1", norm="none")
    found = drawn_again(model, seed=3)
    same = {key for key, tensor in model.state_dict().items() if torch.equal(tensor, found[key])}
    assert same == {"encoder.conv1.conv.weight", "encoder.conv1.conv.bias"}


def test_a_network_with_a_common_head_is_frozen_by_the_names_that_it_has_then():
    model = with_common_head(network(), 8)
    freeze(model, ["body"], "pool.freeze.cnn")
    assert set(still_keys(model)) == {key for key in model.state_dict() if key.startswith("encoder.")}


def test_training_costs_no_backward_pass_through_what_is_frozen():
    """Forward 2 x 32 x 10 more for the last layer's weights; the gradient of its input is not asked for."""
    whole, body = network(norm="none"), network("body", norm="none")
    last = 2 * body.last_layer.in_features * 10
    forward = training_flops(body) - last
    assert training_flops(whole) > 2 * forward
    layers = 2 * (4 * 9 * 64 + 8 * 4 * 9 * 16 + 32 * 32 + 32 * 10)
    assert forward == layers


@pytest.mark.parametrize(
    ("selector", "end"),
    [
        ("encodr", r"but it is 'encodr'; did you mean encoder"),
        ("conv1", r"but it is 'conv1'; did you mean encoder.conv1\?"),
        ("head.fc9", r"but it is 'head.fc9'; did you mean head.fc"),
        ("", "but it is ''"),
    ],
)
def test_a_name_that_is_none_is_refused_with_those_that_are_like_it(selector, end):
    rule = r"model\.freeze must name parts of the network by 'body', 'norm', 'last', or a block or module such as "
    with pytest.raises(ConfigError, match=rule + ".*" + end):
        network(selector)


def test_something_has_to_train():
    with pytest.raises(
        ConfigError, match=r"model\.freeze must leave something that trains, but it is \['body', 'last'\]"
    ):
        network("body", "last")
    with pytest.raises(ConfigError, match="must name parts of the network"):
        network("norm", norm="none")


def test_batch_norm_in_a_copy_that_never_trains_mixes_nothing():
    network = digits_cnn((1, 8, 8), 10, norm="bn")
    freeze(network, ["norm"], "model.freeze")
    fuse(network, "multi")
    assert not has_batch_norm(network)
    assert not mixes_examples(network)
