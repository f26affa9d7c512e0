"""VGG networks for small images."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import nn

from fedfeat.models.blocks import NORM_GROUPS, Dropout, Norm, Size, conv_block, conv_net, image_channels
from fedfeat.models.draws import drawn, he_fan_out
from fedfeat.models.network import Block, Network

VGG9_WIDTHS = (32, 64, 128, 128, 256, 256)
VGG11_STAGES = ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2))
"""(channels, convolutions) of the five stages: configuration A of Simonyan and Zisserman 2015."""
VGG16_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Those of configuration D."""
VGG16_HEADS = {"512x2": (512, 512), "4096x2": (4096, 4096), "single": ()}


def vgg9(
    input_shape: Sequence[int],
    num_classes: int,
    norm: Norm = "none",
    norm_groups: Size = NORM_GROUPS,
    conv_dropout: Dropout = 0.05,
    dropout: Dropout = 0.1,
) -> Network:
    """Build the 9-layer VGG of FedMA: conv1..conv6, fc1..fc3.

    Source: Wang et al. 2020, ``ModerateCNN`` in IBM/FedMA.

    Args:
        input_shape: (C, H, W), at least 8x8.
        num_classes: Number of classes.
        norm: ``none`` as in the source, ``bn`` or ``gn``.
        norm_groups: Groups of ``gn``.
        conv_dropout: Channel dropout after the second pool.
        dropout: Dropout in front of the first and of the last fully connected layer.
    """
    channels = [image_channels("vgg9", input_shape), *VGG9_WIDTHS]
    encoder: list[Block] = []
    for i, (n_in, n_out) in enumerate(pairwise(channels), start=1):
        pool = nn.MaxPool2d(2) if i % 2 == 0 else None
        drop = conv_dropout if i == 4 else 0.0
        block = conv_block(
            n_in, n_out, 3, padding=1, norm=norm, norm_groups=norm_groups, pool=pool, dropout=drop
        )
        encoder.append((f"conv{i}", block))
    sizes, drops = (512, 512), (0.0, dropout)
    return conv_net(
        "vgg9", encoder, input_shape, num_classes, hidden=sizes, dropout=drops, input_dropout=dropout
    )


def vgg16_cifar(
    input_shape: Sequence[int],
    num_classes: int,
    norm: Norm = "bn",
    norm_groups: Size = NORM_GROUPS,
    head: Literal["512x2", "4096x2", "single"] = "512x2",
    dropout: Dropout = 0.5,
) -> Network:
    """Build VGG16 (Simonyan and Zisserman 2015) for 32x32 images: conv1_1..conv5_3, fc1..fc3.

    Args:
        input_shape: (C, H, W), at least 32x32.
        num_classes: Number of classes.
        norm: ``bn`` (what Fed2 says it replaces), ``none`` or ``gn``.
        norm_groups: Groups of ``gn``.
        head: Hidden layers: ``512x2`` (usual at this size), ``4096x2`` (original) or ``single`` (none).
        dropout: Dropout after each hidden layer of the head.
    """
    channels = image_channels("vgg16_cifar", input_shape)
    encoder = _stages(VGG16_STAGES, channels, norm, norm_groups)
    sizes = VGG16_HEADS[head]
    drops = [dropout] * len(sizes)
    return conv_net("vgg16_cifar", encoder, input_shape, num_classes, hidden=sizes, dropout=drops)


def vgg11(
    input_shape: Sequence[int],
    num_classes: int,
    norm: Norm = "none",
    norm_groups: Size = NORM_GROUPS,
    dropout: Dropout = 0.5,
) -> Network:
    """Build VGG-11 for 32x32 images as JYWa/FedNova and NIID-Bench have it: conv1_1..conv5_2, fc1..fc3.

    Convolutions begin at normal weights (He et al. 2015, fan out) and without bias.

    Args:
        input_shape: (C, H, W), at least 32x32.
        num_classes: Number of classes.
        norm: ``none`` as in the source, ``bn`` or ``gn``.
        norm_groups: Groups of ``gn``.
        dropout: Dropout in front of the first and of the second fully connected layer.
    """
    channels = image_channels("vgg11", input_shape)
    encoder = _stages(VGG11_STAGES, channels, norm, norm_groups)
    sizes, drops = (512, 512), (dropout, 0.0)
    network = conv_net(
        "vgg11", encoder, input_shape, num_classes, hidden=sizes, dropout=drops, input_dropout=dropout
    )
    return drawn(network, he_fan_out)


def _stages(stages: Sequence[tuple[int, int]], channels: int, norm: Norm, norm_groups: int) -> list[Block]:
    """Build stages of 3x3 convolutions, each with a 2x2 pool behind its last one."""
    blocks: list[Block] = []
    for stage, (out, depth) in enumerate(stages, start=1):
        for i in range(1, depth + 1):
            pool = nn.MaxPool2d(2) if i == depth else None
            block = conv_block(channels, out, 3, padding=1, norm=norm, norm_groups=norm_groups, pool=pool)
            blocks.append((f"conv{stage}_{i}", block))
            channels = out
    return blocks
