"""Weight decay that spares biases, by hand and in the client half."""

from functools import partial

import pytest
import torch
from harness import turn_of
from torch import nn

from fedfeat.client import ClientModule
from fedfeat.clients.optimizers import kept_tensors, sgd_sparing_biases
from fedfeat.errors import ConfigError
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.mlp import mlp


def test_weights_decay_and_biases_do_not():
    """Without a gradient a step multiplies weights by 1 - .1 * .5, and with one of 1 it takes .1 from a bias."""
    layer = nn.Linear(2, 1)
    nn.init.constant_(layer.weight, 2.0)
    nn.init.constant_(layer.bias, 3.0)
    optimizer = sgd_sparing_biases(layer.parameters(), lr=0.1, weight_decay=0.5)
    for slope, bias in ((0.0, 3.0), (1.0, 2.9)):
        layer.weight.grad, layer.bias.grad = torch.zeros(1, 2), torch.full((1,), slope)
        optimizer.step()
        assert layer.bias.item() == pytest.approx(bias)
    assert layer.weight.tolist() == [[pytest.approx(2 * 0.95**2)] * 2]


def test_momentum_by_hand():
    """Two steps along a slope of 1: the second is 1.5 times the first."""
    bias = nn.Parameter(torch.zeros(1))
    optimizer = sgd_sparing_biases([("bias", bias)], lr=0.1, momentum=0.5, weight_decay=0.5)
    for expected in (-0.1, -0.25):
        bias.grad = torch.ones(1)
        optimizer.step()
        assert bias.item() == pytest.approx(expected)


def test_without_decay_it_is_sgd():
    found = []
    for make in (sgd_sparing_biases, torch.optim.SGD):
        torch.manual_seed(0)
        model = mlp((4,), 3, hidden=[5])
        optimizer = make(model.named_parameters(), lr=0.1, momentum=0.5, weight_decay=0.0)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).logsumexp(1).sum().backward()
            optimizer.step()
        found.append(model.state_dict())
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


def test_a_client_trains_all_its_parameters_with_it_at_the_rate_of_the_round():
    module = ClientModule(
        mlp((4,), 3, hidden=[5]), partial(sgd_sparing_biases, lr=0.5, momentum=0.9, weight_decay=0.25)
    )
    module.ready(turn_of(lr=0.05))
    groups = module.configure_optimizers().param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    names = dict(module.model.named_parameters())
    assert {name: decays[id(p)] for name, p in names.items()} == {
        name: 0.25 if name.endswith("weight") else 0.0 for name in names
    }
    assert [(group["lr"], group["momentum"]) for group in groups] == [(0.05, 0.9)] * 2


def test_biases_of_grouped_layers_are_spared_too():
    spec = GroupSeparation(groups=2, depth=1)
    dense = mlp((4,), 4, hidden=[8, 8])
    network = spec(dense, spec.sets(dense))
    module = ClientModule(network, partial(sgd_sparing_biases, lr=0.5, weight_decay=0.25))
    decaying = module.configure_optimizers().param_groups[0]["params"]
    names = {name for name, p in network.named_parameters() if any(p is other for other in decaying)}
    assert max(p.ndim for name, p in network.named_parameters() if name.endswith("bias")) == 2
    assert names == {name for name, _ in network.named_parameters() if name.endswith("weight")}


class Counted(torch.optim.SGD):
    """An optimizer whose state has a number that is no tensor."""

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["step"] = self.state[parameter].get("step", 0) + 1
        return super().step(closure)


def test_a_state_that_could_not_go_on_is_refused():
    layer = nn.Linear(2, 1)
    layer(torch.ones(1, 2)).sum().backward()
    kept, counted = (
        torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9),
        Counted(layer.parameters(), lr=0.1),
    )
    for optimizer in (kept, counted):
        optimizer.step()
    assert len(kept_tensors(kept)) == 2
    with pytest.raises(
        ConfigError, match=r"^federation.opt_state must be reset for Counted, in whose state step is no"
    ):
        kept_tensors(counted)
