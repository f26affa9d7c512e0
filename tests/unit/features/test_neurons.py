"""Neurons as rows, and inputs that follow the neurons below: by hand, and as functions of networks."""

import pytest
import torch
from torch.nn import functional as F

from fedfeat.features.neurons import (
    Layer,
    gather_inputs,
    gather_outputs,
    layer_rows,
    mix_inputs,
    rows_layer,
    spread_inputs,
)


def test_rows_are_flattened_weights_then_the_bias():
    conv = Layer(torch.arange(8.0).reshape(2, 1, 2, 2), torch.tensor([10.0, 20.0]))
    rows = layer_rows(conv)
    assert rows.tolist() == [[0, 1, 2, 3, 10], [4, 5, 6, 7, 20]]
    wider = rows_layer(rows[[1, 0, 1]], conv)
    assert wider.weight.shape == (3, 1, 2, 2)
    assert wider.weight[0].equal(conv.weight[1])
    assert wider.bias.tolist() == [20, 10, 20]
    assert all(part.is_contiguous() and part.untyped_storage().nbytes() == part.nbytes for part in wider)


def test_rows_of_a_layer_without_bias():
    layer = Layer(torch.arange(6.0).reshape(2, 3), None)
    assert layer_rows(layer).equal(layer.weight)
    assert rows_layer(layer.weight, layer).weight.equal(layer.weight)
    assert rows_layer(layer.weight, layer).bias is None
    assert gather_outputs(layer, torch.tensor([1])).weight.tolist() == [[3, 4, 5]]


def test_spread_inputs_by_hand():
    assignment = torch.tensor([2, 0])
    assert spread_inputs(torch.tensor([[5.0, 6.0]]), assignment, 4).tolist() == [[6, 0, 5, 0]]
    # Two neurons with a block of two inputs each.
    blocks = spread_inputs(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), assignment, 3)
    assert blocks.tolist() == [[3, 4, 0, 0, 1, 2]]
    kernels = spread_inputs(torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]]), assignment, 3)
    assert kernels.tolist() == [[[[3, 4]], [[0, 0]], [[1, 2]]]]


@pytest.mark.parametrize("shape", [(3, 4), (3, 4 * 6), (3, 4, 2, 5)])
def test_gathering_undoes_spreading_and_a_mix_of_one_each_is_a_spread(shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assignment = torch.tensor([5, 0, 3, 1])
    wide = spread_inputs(weight, assignment, 7)
    assert wide.shape == (3, shape[1] // 4 * 7, *shape[2:])
    assert gather_inputs(wide, assignment, 7).equal(weight)
    mix = torch.zeros(4, 7, dtype=torch.float64)
    mix[torch.arange(4), assignment] = 1
    assert mix_inputs(weight, mix).equal(wide)


def test_mixed_inputs_are_weighted_sums():
    mix = torch.tensor([[0.25, 1.0], [0.75, 0.0]])
    assert mix_inputs(torch.tensor([[4.0, 8.0]]), mix).tolist() == [[7, 4]]
    assert mix_inputs(torch.tensor([[4.0, 0.0, 8.0, 4.0]]), mix).tolist() == [[7, 3, 4, 0]]


def test_a_global_layer_sliced_for_a_client_computes_what_its_part_of_the_global_layer_does():
    # Conv, flatten, linear: the client has channels 3, 0 of four, of which the other two are silent.
    draw = torch.Generator().manual_seed(0)
    conv = Layer(torch.randn(4, 1, 3, 3, generator=draw), torch.randn(4, generator=draw))
    head = torch.randn(2, 4 * 4, generator=draw)
    assignment = torch.tensor([3, 0])
    own, own_head = gather_outputs(conv, assignment), gather_inputs(head, assignment, 4)
    images = torch.randn(5, 1, 4, 4, generator=draw)
    silent = torch.tensor([1.0, 0.0, 0.0, 1.0])[:, None, None]
    expected = (F.conv2d(images, *conv).relu() * silent).flatten(1) @ head.T
    torch.testing.assert_close(F.conv2d(images, *own).relu().flatten(1) @ own_head.T, expected)


def test_inputs_that_are_no_multiple_of_the_neurons_are_refused():
    with pytest.raises(ValueError, match="7 inputs must be a multiple of the 2 neurons"):
        spread_inputs(torch.zeros(1, 7), torch.tensor([0, 1]), 3)
