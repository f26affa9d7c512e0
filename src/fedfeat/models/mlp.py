"""Multilayer perceptron."""

import math
from collections.abc import Sequence

from fedfeat.models.blocks import Dropout, Size, fc_blocks
from fedfeat.models.network import Network


def mlp(
    input_shape: Sequence[int], num_classes: int, hidden: Sequence[Size] = (64,), dropout: Dropout = 0.0
) -> Network:
    """Build fully connected layers with ReLU; the encoder is everything but the last layer.

    ``hidden=[200, 200]`` on MNIST is the "2NN" of McMahan et al. 2017 (199,210 parameters).

    Args:
        input_shape: Shape of one example, any number of dimensions; it is flattened.
        num_classes: Number of classes.
        hidden: Sizes of the hidden layers; empty for a linear classifier.
        dropout: Dropout after each hidden layer.
    """
    blocks = fc_blocks(math.prod(input_shape), hidden, num_classes, dropout=[dropout] * len(hidden))
    return Network(blocks[:-1], blocks[-1:], input_shape, num_classes)
