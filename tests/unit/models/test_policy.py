import pytest
from torch import nn

from fedfeat.errors import ConfigError
from fedfeat.models.mlp import mlp
from fedfeat.models.policy import PERSONAL, SHARED, describe, keys_with, tensor_policies


def network():
    # The norm layer's name says nothing of its type, as in torchvision's ResNet ("downsample.1").
    model = nn.Module()
    model.encoder = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    model.head = nn.Sequential(nn.Linear(2, 3), nn.GroupNorm(1, 3))
    return model


def test_everything_is_shared_by_default():
    policies = tensor_policies(network())
    assert set(policies.values()) == {SHARED}
    assert list(policies) == list(network().state_dict())


def test_norm_layers_are_found_by_type():
    personal = keys_with(tensor_policies(network(), ["norm"]), PERSONAL)
    assert personal == (
        "encoder.1.weight",
        "encoder.1.bias",
        "encoder.1.running_mean",
        "encoder.1.running_var",
        "encoder.1.num_batches_tracked",
        "head.1.weight",
        "head.1.bias",
    )


def test_blocks_are_chosen_by_their_whole_name():
    assert keys_with(tensor_policies(network(), ["head"]), SHARED) == tuple(
        key for key in network().state_dict() if key.startswith("encoder.")
    )


@pytest.mark.parametrize(
    ("selector", "end"),
    [
        ("hea", r"'hea'; did you mean head or head\.[01]\?"),
        ("Norm", r"'Norm'; did you mean norm\?"),
        # Blocks without a tensor: nothing of them can be kept, and they are not offered either.
        ("encoder.2", r"'encoder\.2'; did you mean encoder\.[01]"),
        ("last", r"'last'\."),
    ],
)
def test_a_name_without_tensors_is_refused_with_those_that_are_like_it(selector, end):
    rule = (
        r"algorithm\.client\.personal must name parts of the network by 'all', 'body', 'norm', 'last', "
        r"or a block or module such as encoder, encoder\.0, encoder\.1, head, head\.0, head\.1, but it is "
    )
    with pytest.raises(ConfigError, match=rule + end):
        tensor_policies(network(), [selector])


def test_all_keeps_everything():
    policies = tensor_policies(network(), ["all"])
    assert set(policies.values()) == {PERSONAL}
    assert describe(policies) == (
        "11 tensors: 11 personal (encoder.0.weight, encoder.0.bias, encoder.1.weight, encoder.1.bias, ...)"
    )


def test_a_body_is_all_but_the_last_layer():
    model = mlp((4,), 3, hidden=[5, 6])
    personal, last = (keys_with(tensor_policies(model, [name]), PERSONAL) for name in ("body", "last"))
    assert last == ("head.fc3.linear.weight", "head.fc3.linear.bias")
    assert (*personal, *last) == tuple(model.state_dict())
