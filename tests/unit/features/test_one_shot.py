"""Networks fused without training: permuted copies fuse to the network itself, and small cases by hand."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedfeat.features.matching import BBPMap, match_layer
from fedfeat.features.neurons import (
    Layer,
    gather_inputs,
    gather_outputs,
    layer_rows,
    rows_layer,
    spread_inputs,
)
from fedfeat.features.one_shot import ot_align, pfnm, transport

NO_GROWTH = BBPMap(gamma=1e-9, shrink=False)
MLP = ((4, 7), (7, 6), (6, 3))


def network(*shapes, seed=0):
    """Layers (in, out) or (in, out, k, k) with weights far enough apart to be told from each other."""
    draw = torch.Generator().manual_seed(seed)
    return [
        Layer(
            2 * torch.randn(out, into, *kernel, generator=draw, dtype=torch.float64),
            torch.randn(out, generator=draw, dtype=torch.float64),
        )
        for into, out, *kernel in shapes
    ]


def conv_network(seed=0):
    """Two convolutions, of 5 and 6 channels, and on 6 x 2 x 2 features two linear layers."""
    return network((2, 5, 3, 3), (5, 6, 3, 3), (24, 8), (8, 3), seed=seed)


def run(layers, x):
    for index, layer in enumerate(layers):
        if layer.weight.ndim == 4:
            x = F.max_pool2d(F.conv2d(x, *layer, padding=1).relu(), 2)
        else:
            x = F.linear(x.flatten(1), *layer)
            x = x.relu() if index < len(layers) - 1 else x
    return x


def permuted(layers, seed):
    """The same function with hidden neurons in another order."""
    draw = torch.Generator().manual_seed(seed)
    result, order = [], None
    for index, layer in enumerate(layers):
        if order is not None:
            layer = layer._replace(weight=gather_inputs(layer.weight, order, len(order)))
        if index < len(layers) - 1:
            order = torch.randperm(len(layer.weight), generator=draw)
            layer = gather_outputs(layer, order)
        result.append(layer)
    return result


def fused_forwards(clients, how=NO_GROWTH):
    """Match layer by layer, first to last, and average the last: FedMA without training in between."""
    current, result = [list(net) for net in clients], []
    for index in range(len(clients[0]) - 1):
        found = match_layer([layer_rows(net[index]) for net in current], np.random.default_rng(0), how)
        result.append(rows_layer(found.rows, current[0][index]))
        for net, assignment in zip(current, found.assignments, strict=True):
            spread = spread_inputs(net[index + 1].weight, assignment, len(found.rows))
            net[index + 1] = net[index + 1]._replace(weight=spread)
    return [
        *result,
        Layer(*(torch.stack(part).mean(0) for part in zip(*(n[-1] for n in current), strict=True))),
    ]


NETWORKS = {
    "mlp": (lambda: network(*MLP), (9, 4)),
    "conv": (conv_network, (9, 2, 8, 8)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_permuted_copies_fuse_forwards_to_the_network_itself(name):
    build, shape = NETWORKS[name]
    original, inputs = (
        build(),
        torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
    )
    other = permuted(original, seed=1)
    # The copy is the same function, though the plain mean of the two is not.
    torch.testing.assert_close(run(other, inputs), run(original, inputs))
    plain = [
        Layer(*(torch.stack(p).mean(0) for p in zip(*pair, strict=True)))
        for pair in zip(original, other, strict=True)
    ]
    assert (run(plain, inputs) - run(original, inputs)).abs().max() > 1
    torch.testing.assert_close(run(fused_forwards([original, other]), inputs), run(original, inputs))


@pytest.mark.parametrize("name", NETWORKS)
def test_transport_brings_a_permuted_copy_back_to_the_anchor(name):
    original = NETWORKS[name][0]()
    for aligned, layer in zip(ot_align(permuted(original, seed=1), original), original, strict=True):
        torch.testing.assert_close(aligned.weight, layer.weight)
        torch.testing.assert_close(aligned.bias, layer.bias)


@pytest.mark.parametrize("shapes", [((4, 7), (7, 3)), MLP, ((4, 7), (7, 6), (6, 5), (5, 3))])
def test_pfnm_fuses_permuted_copies_to_the_network_itself(shapes):
    original, inputs = (
        network(*shapes),
        torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
    )
    clients = [original, *(permuted(original, seed) for seed in (1, 2))]
    fused = pfnm(
        clients, torch.tensor([[1, 5, 0], [1, 5, 3], [2, 5, 3]]), np.random.default_rng(0), NO_GROWTH
    )
    assert [layer.weight.shape for layer in fused.layers] == [layer.weight.shape for layer in original]
    assert len(fused.assignments) == len(shapes) - 1
    parts = [part for layer in fused.layers for part in layer]
    assert all(part.is_contiguous() and part.untyped_storage().nbytes() == part.nbytes for part in parts)
    torch.testing.assert_close(run(fused.layers, inputs), run(original, inputs))


def test_pfnm_of_one_neuron_by_hand():
    # Shares of class 0: 3/4 and 1/4; of class 1: 0 and 1. Variances 1, prior mean 0, of biases .1.
    one = [
        Layer(torch.tensor([[2.0]]), torch.tensor([1.0])),
        Layer(torch.tensor([[4.0], [8.0]]), torch.tensor([1.0, 5.0])),
    ]
    two = [
        Layer(torch.tensor([[4.0]]), torch.tensor([3.0])),
        Layer(torch.tensor([[8.0], [2.0]]), torch.tensor([5.0, 3.0])),
    ]
    counts = torch.tensor([[3, 0], [1, 6]])
    fused = pfnm([one, two], counts, np.random.default_rng(0), BBPMap(gamma=1e-9)).layers
    torch.testing.assert_close(fused[0].weight, torch.tensor([[6 / 3]]))
    torch.testing.assert_close(fused[0].bias, torch.tensor([4.1 / 3]))
    # Class 0: (3/4 * 4 + 1/4 * 8) / (1 + 1); class 1: 2 / (1 + 1).
    torch.testing.assert_close(fused[1].weight, torch.tensor([[2.5], [1.0]]))
    torch.testing.assert_close(fused[1].bias, torch.tensor([(0.75 + 1.25 + 0.1) / 2, (3 + 0.1) / 2]))
    plain = pfnm([one, two], counts, np.random.default_rng(0), NO_GROWTH).layers
    torch.testing.assert_close(plain[1].weight, torch.tensor([[5.0], [2.0]]))
    torch.testing.assert_close(plain[1].bias, torch.tensor([2.0, 3.0]))


def test_pfnm_with_other_variances_of_the_prior_by_hand():
    """Precisions are 1 / 4 of the prior and 2 of each client's neuron; the prior mean of biases is .1."""
    nets = [
        [
            Layer(torch.tensor([[2.0]]), torch.tensor([1.0])),
            Layer(torch.tensor([[4.0], [8.0]]), torch.tensor([1.0, 5.0])),
        ],
        [
            Layer(torch.tensor([[4.0]]), torch.tensor([3.0])),
            Layer(torch.tensor([[8.0], [2.0]]), torch.tensor([5.0, 3.0])),
        ],
    ]
    how = BBPMap(gamma=1e-9, sigma02=4.0, sigma2=0.5)
    fused = pfnm(nets, torch.tensor([[3, 0], [1, 6]]), np.random.default_rng(0), how).layers
    torch.testing.assert_close(fused[0].weight, torch.tensor([[2 * (2 + 4) / 4.25]]))
    torch.testing.assert_close(fused[0].bias, torch.tensor([(2 * (1 + 3) + 0.1 / 4) / 4.25]))
    # Class 0 is trusted to 3/4 and 1/4, class 1 to 0 and 1.
    torch.testing.assert_close(fused[1].weight, torch.tensor([[2 * (3 + 2) / 2.25], [2 * 2 / 2.25]]))
    expected = [(2 * (0.75 + 1.25) + 0.1 / 4) / 2.25, (2 * 3 + 0.1 / 4) / 2.25]
    torch.testing.assert_close(fused[1].bias, torch.tensor(expected))


def test_pfnm_of_a_class_without_examples_and_of_lower_layers_by_hand():
    def net(*weights):
        return [Layer(torch.tensor([[w]]), torch.tensor([0.0])) for w in weights]

    fused = pfnm(
        [net(1.0, 2.0, 3.0), net(2.0, 4.0, 6.0)],
        torch.zeros(2, 1),
        np.random.default_rng(0),
        BBPMap(gamma=1e-9),
    )
    # All but the weights to the class have full precision: the sum of two over 1 + 2.
    assert [float(layer.weight) for layer in fused.layers] == pytest.approx([3 / 3, 6 / 3, 0])
    assert [float(layer.bias) for layer in fused.layers] == pytest.approx([0.1 / 3, 0.1 / 3, 0.1])


def test_pfnm_of_unequal_widths_keeps_what_one_client_alone_has():
    # The second client lacks the last neuron of either hidden layer, which does not matter for its function.
    whole = network(*MLP)
    part = [
        gather_outputs(whole[0], torch.arange(6)),
        gather_outputs(whole[1]._replace(weight=whole[1].weight[:, :6]), torch.arange(5)),
        whole[2]._replace(weight=whole[2].weight[:, :5]),
    ]
    fused = pfnm([part, whole], torch.ones(2, 3), np.random.default_rng(0), NO_GROWTH)
    assert [layer.weight.shape for layer in fused.layers] == [(7, 4), (6, 7), (3, 6)]
    assert [len(a) for a in fused.assignments[0]] == [6, 7]
    (own,) = set(range(7)) - set(fused.assignments[0][0].tolist())
    torch.testing.assert_close(fused.layers[0].weight[own], whole[0].weight[6])


def test_pfnm_is_fixed_by_its_generator_and_refuses_layers_without_bias():
    clients = [network((4, 7), (7, 3), seed=seed) for seed in range(4)]
    once, again = (pfnm(clients, torch.ones(4, 3), np.random.default_rng(3)) for _ in range(2))
    assert all(a.weight.equal(b.weight) for a, b in zip(once.layers, again.layers, strict=True))
    with pytest.raises(ValueError, match="must have a bias"):
        pfnm(
            [[layer._replace(bias=None) for layer in clients[0]]], torch.ones(1, 3), np.random.default_rng(0)
        )


def test_alignment_of_a_wider_network_merges_its_neurons_in_pairs():
    # Neurons 0 and 1 lie near the anchor's first, 2 and 3 near its second; their means are exactly those.
    layers = [
        Layer(torch.tensor([[1.1], [0.9], [9.0], [11.0]]), None),
        Layer(torch.tensor([[1.0, 3.0, 5.0, 7.0]]), None),
    ]
    anchor = [Layer(torch.tensor([[1.0], [10.0]]), None), Layer(torch.tensor([[2.0, 6.0]]), None)]
    first, last = ot_align(layers, anchor)
    torch.testing.assert_close(first.weight, anchor[0].weight)
    torch.testing.assert_close(last.weight, torch.tensor([[2.0, 6.0]]))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_transport_is_the_cheapest(n, m, seed):
    cost = torch.rand(n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    plan = transport(cost)
    assert plan.min() >= 0
    torch.testing.assert_close(plan.sum(1), torch.full((n,), 1 / n, dtype=torch.float64))
    torch.testing.assert_close(plan.sum(0), torch.full((m,), 1 / m, dtype=torch.float64))
    if n == m:
        best = min(sum(cost[i, j] for i, j in enumerate(p)) for p in itertools.permutations(range(n))) / n
    else:
        # Copies of neurons with equal mass make it an assignment of equal sides.
        size = int(np.lcm(n, m))
        best = cheapest(cost.repeat_interleave(size // n, 0).repeat_interleave(size // m, 1)) / size
    assert float((plan * cost).sum()) == pytest.approx(float(best))


def cheapest(cost):
    """The least cost of an assignment, by dynamic programming over sets of columns."""
    best = {0: 0.0}
    for row in cost.tolist():
        reached = {}
        for used, so_far in best.items():
            for column, price in enumerate(row):
                if not used & 1 << column:
                    key = used | 1 << column
                    reached[key] = min(reached.get(key, float("inf")), so_far + price)
        best = reached
    return best[(1 << len(cost)) - 1]
