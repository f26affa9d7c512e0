"""A network cut behind the frozen layers that it begins with."""

import pytest
import torch

from fedfeat.errors import ConfigError
from fedfeat.models.cnn import digits_cnn
from fedfeat.models.freezing import freeze, has_batch_norm, still_keys
from fedfeat.models.frozen_start import cut_behind_frozen
from fedfeat.models.lstm import sent140_lstm
from fedfeat.models.torchvision_adapter import torchvision_model
from fedfeat.types import Vocabulary


def network(*selectors):
    torch.manual_seed(0)
    made = digits_cnn((1, 8, 8), 10, width=4, norm="bn")
    freeze(made, selectors, "model.freeze")
    return made


@pytest.mark.parametrize(
    ("selectors", "shape", "first"),
    [
        (["encoder.conv1"], (4, 4, 4), "encoder.conv2.conv.weight"),
        (["encoder"], (8, 2, 2), "head.fc1.linear.weight"),
        (["body"], (32,), "head.fc2.linear.weight"),
        (["encoder.conv1", "encoder.conv2.conv"], (8, 4, 4), "encoder.conv2.norm.weight"),
    ],
)
def test_both_parts_together_are_the_network(selectors, shape, first):
    whole = network(*selectors)
    state = {key: tensor.clone() for key, tensor in whole.state_dict().items()}
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    trained = whole.train()
    with torch.no_grad():
        moving = trained(x)
    whole.load_state_dict(state)
    with torch.no_grad():
        expected, representation = whole.eval()(x), whole.representation(x)
    start, rest = cut_behind_frozen(whole.train())
    with torch.no_grad():
        features = start(x)
        assert features.shape[1:] == rest.input_shape == shape
        assert rest.training
        assert torch.equal(rest(features), moving)
        rest.load_state_dict({key: state[key] for key in rest.state_dict()})
        assert torch.equal(rest.eval()(features), expected)
        assert torch.equal(rest.representation(features), representation)
    assert next(iter(rest.state_dict())) == first
    assert list(rest.state_dict()) == [key for key in state if key in rest.state_dict()]
    assert (rest.num_classes, rest.last_layer_name) == (10, "head.fc2.linear")


def test_what_is_frozen_behind_the_cut_stays_so():
    rest = cut_behind_frozen(network("encoder.conv1", "head.fc1")).rest
    assert still_keys(rest) == ["head.fc1.linear.weight", "head.fc1.linear.bias"]
    assert has_batch_norm(rest)
    assert not rest.get_submodule("head.fc1.relu").training


def test_a_resnet_in_front_of_its_last_layer_gives_512_numbers():
    with torch.device("meta"):
        whole = torchvision_model((3, 32, 32), 10)
        freeze(whole, ["body"], "model.freeze")
        rest = cut_behind_frozen(whole).rest
    assert rest.input_shape == (512,)
    assert list(rest.state_dict()) == ["head.fc.linear.weight", "head.fc.linear.bias"]


@pytest.mark.parametrize("selectors", [[], ["encoder.conv2"], ["norm"], ["head.fc1"]])
def test_a_network_that_does_not_begin_with_frozen_layers_is_refused(selectors):
    with pytest.raises(
        ConfigError, match=r"model\.cached must be false where the network does not begin with frozen"
    ):
        cut_behind_frozen(network(*selectors))


def test_frozen_layers_that_mix_examples_are_refused():
    whole = sent140_lstm((7,), 2, Vocabulary(20), mode="reference", embed_dim=6)
    freeze(whole, ["encoder"], "model.freeze")
    with pytest.raises(
        ConfigError, match=r"model\.cached must be false where a frozen layer mixes the examples"
    ):
        cut_behind_frozen(whole)
    whole = sent140_lstm((7,), 2, Vocabulary(20), embed_dim=6)
    freeze(whole, ["encoder"], "model.freeze")
    assert cut_behind_frozen(whole).rest.input_shape == (128,)
