"""MobileNetV1 for small images."""

from collections.abc import Sequence

from torch import nn

from fedfeat.config.conditions import Positive
from fedfeat.models.blocks import (
    NORM_GROUPS,
    Norm,
    Size,
    image_channels,
    make_norm,
    named_layers,
    pooled_linear,
)
from fedfeat.models.grouped_conv import GroupedConv2d
from fedfeat.models.network import Block, Network

STEM_WIDTH = 32
STAGES = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
"""(channels, stride) of the 13 blocks: table 1 of Howard et al. 2017."""


def mobilenet_v1_cifar(
    input_shape: Sequence[int],
    num_classes: int,
    norm: Norm = "bn",
    norm_groups: Size = NORM_GROUPS,
    width_multiplier: Positive = 1.0,
) -> Network:
    """Build MobileNetV1 with the stride-1 stem usual on CIFAR: stem, block1..block13, fc.

    Sources: Howard et al. 2017, and kuangliu/pytorch-cifar for the strides.

    Args:
        input_shape: (C, H, W), any size.
        num_classes: Number of classes.
        norm: ``bn``, ``gn`` or ``none``, after both convolutions of a block.
        norm_groups: Groups of ``gn``.
        width_multiplier: Factor on all widths (the paper's alpha).
    """
    widths = [max(1, round(width_multiplier * width)) for width in (STEM_WIDTH, *(w for w, _ in STAGES))]
    channels = image_channels("mobilenet_v1_cifar", input_shape)
    stem = named_layers(_conv_norm_relu(channels, widths[0], 3, 1, 1, norm, norm_groups))
    encoder: list[Block] = [("stem", stem)]
    for i, (_, stride) in enumerate(STAGES, start=1):
        block = _separable_block(widths[i - 1], widths[i], stride, norm, norm_groups)
        encoder.append((f"block{i}", block))
    return Network(encoder, [pooled_linear(widths[-1], num_classes)], input_shape, num_classes)


def _separable_block(n_in: int, n_out: int, stride: int, norm: str, norm_groups: int) -> nn.Sequential:
    """Build a depthwise 3x3 and a pointwise 1x1 convolution, each with norm and ReLU."""
    depthwise = _conv_norm_relu(n_in, n_in, 3, stride, n_in, norm, norm_groups)
    pointwise = _conv_norm_relu(n_in, n_out, 1, 1, 1, norm, norm_groups)
    return named_layers(
        [(f"depthwise_{name}", layer) for name, layer in depthwise]
        + [(f"pointwise_{name}", layer) for name, layer in pointwise]
    )


def _conv_norm_relu(
    n_in: int, n_out: int, kernel_size: int, stride: int, groups: int, norm: str, norm_groups: int
) -> list[tuple[str, nn.Module | None]]:
    # The source has no bias because its norm has one; without a norm the bias is needed.
    conv = (nn.Conv2d if groups == 1 else GroupedConv2d)(
        n_in, n_out, kernel_size, stride=stride, padding=kernel_size // 2, groups=groups, bias=norm == "none"
    )
    return [("conv", conv), ("norm", make_norm(norm, n_out, norm_groups)), ("relu", nn.ReLU())]
