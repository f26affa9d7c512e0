"""The ResNets for small images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

from torch import nn

from fedfeat.config.conditions import Condition
from fedfeat.errors import ConfigError
from fedfeat.models.blocks import NORM_GROUPS, Size, image_channels, make_norm, named_layers, pooled_linear
from fedfeat.models.draws import he_fan_in
from fedfeat.models.network import Block, Network

_BLOCK_LAYERS = 2
_STAGES = 3
DEPTH = Condition(
    lambda value: isinstance(value, int) and value >= 8 and (value - 2) % (_STAGES * _BLOCK_LAYERS) == 0,
    "be 6n + 2 for a whole n: 8, 14, 20, 32, 44, 56, 110 and so on",
    {"type": "integer", "minimum": 8},
)


def resnet_cifar(
    input_shape: Sequence[int],
    num_classes: int,
    depth: Annotated[int, DEPTH] = 20,
    width: Size = 16,
    norm: Literal["bn", "gn"] = "bn",
    norm_groups: Size = NORM_GROUPS,
) -> Network:
    """Build a ResNet of He et al. 2016, section 4.2: stem, stage1_1, ..., stage3_n, fc.

    A block has two 3x3 convolutions. Where it changes the width its shortcut is a 1x1 convolution with a norm (the
    paper's option B); the paper has option A here, which pads with zeros: it has no filters that groups could divide.

    Args:
        input_shape: (C, H, W), any size.
        num_classes: Number of classes.
        depth: Layers with weights but those of shortcuts, 6n + 2 for n blocks in each of three stages.
        width: Channels of the first stage; the others have twice and four times as many.
        norm: ``bn`` (batch) as published, or ``gn`` (group).
        norm_groups: Groups of ``gn``.
    """
    if not DEPTH.holds(depth):
        raise ConfigError.rule("model.depth", DEPTH.text, depth)
    channels = image_channels("resnet_cifar", input_shape)
    make = partial(make_norm, norm, groups=norm_groups)
    stem = [("conv", _conv(channels, width, 3)), ("norm", make(width)), ("relu", nn.ReLU())]
    encoder: list[Block] = [("stem", named_layers(stem))]
    n_in = n_out = width
    for stage in range(1, _STAGES + 1):
        for i in range(1, (depth - 2) // (_STAGES * _BLOCK_LAYERS) + 1):
            stride = 2 if stage > 1 and i == 1 else 1
            residual = _residual(n_in, n_out, stride, make)
            encoder.append((f"stage{stage}_{i}", named_layers([("residual", residual)])))
            n_in = n_out
        n_out *= 2
    network = Network(encoder, [pooled_linear(n_in, num_classes)], input_shape, num_classes)
    network.draw = he_fan_in  # as the authors have it for these networks
    return network


def _residual(n_in: int, n_out: int, stride: int, make: partial[nn.Module | None]) -> nn.Module:
    from torchvision.models.resnet import BasicBlock  # slow to import

    shortcut = None
    if stride != 1 or n_in != n_out:
        shortcut = named_layers([("conv", _conv(n_in, n_out, 1, stride)), ("norm", make(n_out))])
    block = BasicBlock(n_in, n_out, stride, shortcut, norm_layer=make)
    for conv in (block.conv1, block.conv2):
        he_fan_in(conv)
    return block


def _conv(n_in: int, n_out: int, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(n_in, n_out, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)
    he_fan_in(conv)
    return conv
