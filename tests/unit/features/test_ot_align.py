"""What transport costs and what it moves: cases of two neurons by hand."""

import pytest
import torch

from fedfeat.features.neurons import Layer
from fedfeat.features.one_shot import ot_align


def column(*values):
    return torch.tensor([[value] for value in values])


def test_the_cost_is_the_distance_and_not_its_square():
    """In place 0 + sqrt(50) = 7.07, swapped 4 + sqrt(10) = 7.16; of squares 50 and 26."""
    head = Layer(torch.tensor([[1.0, 2.0]]), None)
    own = [Layer(torch.tensor([[0.0, 0.0], [1.0, -3.0]]), None), head]
    anchor = [Layer(torch.tensor([[0.0, 0.0], [0.0, 4.0]]), None), head]
    for aligned, layer in zip(ot_align(own, anchor), own, strict=True):
        torch.testing.assert_close(aligned.weight, layer.weight)


def test_biases_are_a_part_of_the_cost():
    """Weights are equal, so that biases alone tell the neurons apart."""
    head = Layer(torch.tensor([[1.0, 2.0]]), None)
    own = [Layer(column(1.0, 1.0), torch.tensor([0.0, 5.0])), head]
    anchor = [Layer(column(1.0, 1.0), torch.tensor([5.0, 0.0])), head]
    first, last = ot_align(own, anchor)
    assert first.bias.tolist() == pytest.approx([5.0, 0.0])
    assert last.weight.tolist() == [pytest.approx([2.0, 1.0])]


def test_classes_keep_their_places():
    """Of the last layer inputs are moved alone, however well other rows would fit."""
    hidden = Layer(column(1.0), torch.tensor([0.0]))
    own = [hidden, Layer(column(0.0, 5.0), torch.tensor([0.0, 5.0]))]
    anchor = [hidden, Layer(column(5.0, 0.0), torch.tensor([5.0, 0.0]))]
    last = ot_align(own, anchor)[1]
    assert last.weight.tolist() == [[0.0], [5.0]]
    assert last.bias.tolist() == [0.0, 5.0]
