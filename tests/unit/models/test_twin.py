"""A second network: its draws, its tensors, and other tensors in its place."""

import pytest
import torch

from fedfeat.models.mlp import mlp
from fedfeat.models.twin import Twin, own_tensors


def pair(dropout=0.5):
    torch.manual_seed(0)
    network = mlp((4,), 3, hidden=[64], dropout=dropout)
    return network, Twin(network)


def test_a_twin_draws_what_the_network_draws_next_and_leaves_the_stream_as_it_was():
    network, twin = pair()
    inputs = torch.randn(5, 4)
    torch.manual_seed(1)
    alone = [network(inputs) for _ in range(3)]
    torch.manual_seed(1)
    for expected in alone:
        assert torch.equal(twin(inputs), expected)
        assert torch.equal(network(inputs), expected)
    assert not torch.equal(alone[0], alone[1])


def test_it_trains_apart_from_the_network():
    network, twin = pair(0.0)
    before = [parameter.clone() for parameter in network.parameters()]
    twin(torch.randn(5, 4)).sum().backward()
    assert all(parameter.grad is None for parameter in network.parameters())
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.sub_(parameter.grad)
    assert all(torch.equal(*both) for both in zip(before, network.parameters(), strict=True))


def test_other_tensors_take_the_place_of_its_own_for_one_pass():
    network, twin = pair(0.0)
    inputs = torch.randn(5, 4)
    expected = twin(inputs)
    doubled = {name: 2 * tensor for name, tensor in twin.named_tensors().items()}
    assert not torch.equal(twin(inputs, doubled), expected)
    assert torch.equal(twin(inputs), expected)
    twin.fill(doubled)
    found = own_tensors(twin.state_dict())
    assert found.keys() == network.state_dict().keys()
    for name, tensor in network.state_dict().items():
        assert torch.equal(found[name], 2 * tensor)


def test_what_is_not_the_networks_is_refused():
    _, twin = pair()
    with pytest.raises(ValueError, match="there is no other"):
        twin.fill({"other": torch.zeros(1)})
