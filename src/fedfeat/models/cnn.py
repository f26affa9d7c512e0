"""Small convolutional networks of the federated learning papers, and one for 8x8 digits."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

from torch import nn

from fedfeat.models.blocks import NORM_GROUPS, Dropout, Init, Norm, Size, conv_block, conv_net, image_channels
from fedfeat.models.network import Block, Network


def digits_cnn(
    input_shape: Sequence[int],
    num_classes: int,
    width: Size = 16,
    hidden: Size = 32,
    norm: Norm = "none",
    norm_groups: Size = NORM_GROUPS,
) -> Network:
    """Build a small network for 8x8 images: conv1, conv2 (3x3, max pooling), fc1, fc2.

    9,258 parameters on the handwritten digits of scikit-learn.

    Args:
        input_shape: (C, H, W), at least 4x4.
        num_classes: Number of classes.
        width: Channels of the first convolution; the second has twice as many.
        hidden: Size of the hidden fully connected layer.
        norm: ``none``, ``bn`` or ``gn``.
        norm_groups: Groups of ``gn``.
    """
    channels = image_channels("digits_cnn", input_shape)
    encoder: list[Block] = []
    for i, out in enumerate((width, 2 * width), start=1):
        pool = nn.MaxPool2d(2)
        block = conv_block(channels, out, 3, padding=1, norm=norm, norm_groups=norm_groups, pool=pool)
        encoder.append((f"conv{i}", block))
        channels = out
    return conv_net("digits_cnn", encoder, input_shape, num_classes, hidden=(hidden,))


def mnist_cnn(
    input_shape: Sequence[int],
    num_classes: int,
    arch: Literal["text", "code"] = "text",
    dropout: Dropout = 0.2,
    init: Init = "xavier",
) -> Network:
    """Build the MNIST network of McMahan et al. 2017 as FedFusion uses it: conv1, conv2, fc1, fc2.

    Args:
        input_shape: (C, H, W).
        num_classes: Number of classes.
        arch: ``text``, 5x5 kernels and 2x2 pools as printed, or ``code``, the second kernel 3x3 and
            3x3 pools of stride 2 as in thu-media/FedFusion (Yao et al. 2019).
        dropout: Dropout after the hidden layer; 0.2 in that code.
        init: ``xavier`` (uniform, zero bias) as in that code, or the framework's ``default``.
    """
    channels = image_channels("mnist_cnn", input_shape)
    second, pool = (5, partial(nn.MaxPool2d, 2)) if arch == "text" else (3, _overlapping_pool)
    encoder = [
        ("conv1", conv_block(channels, 32, 5, padding=2, pool=pool())),
        ("conv2", conv_block(32, 64, second, padding=second // 2, pool=pool())),
    ]
    return conv_net(
        "mnist_cnn", encoder, input_shape, num_classes, hidden=(512,), dropout=(dropout,), init=init
    )


def fusion_cifar_cnn(
    input_shape: Sequence[int],
    num_classes: int,
    dropout: Dropout = 0.2,
    init: Init = "xavier",
) -> Network:
    """Build the CIFAR network of FedFusion (Yao et al. 2019, thu-media/FedFusion): conv1, conv2, fc1..fc3.

    The encoder gives 64x8x8 features for 32x32 images.

    Args:
        input_shape: (C, H, W).
        num_classes: Number of classes.
        dropout: Dropout after both hidden layers.
        init: ``xavier`` (uniform, zero bias) as in the source, or the framework's ``default``.
    """
    channels = image_channels("fusion_cifar_cnn", input_shape)
    encoder = [
        ("conv1", conv_block(channels, 64, 5, padding=2, pool=_overlapping_pool())),
        ("conv2", conv_block(64, 64, 5, padding=2, pool=_overlapping_pool())),
    ]
    sizes, drops = (384, 192), (dropout, dropout)
    return conv_net(
        "fusion_cifar_cnn", encoder, input_shape, num_classes, hidden=sizes, dropout=drops, init=init
    )


def fedrep_cnn10(input_shape: Sequence[int], num_classes: int, dropout: Dropout = 0.0) -> Network:
    """Build the CIFAR-10 network of FedRep: conv1, conv2, fc1..fc3.

    Source: Collins et al. 2021, ``CNNCifar`` in lgcollins/FedRep.

    Args:
        input_shape: (C, H, W), at least 16x16.
        num_classes: Number of classes.
        dropout: Dropout in front of the last layer; none in the source.
    """
    return valid_conv_net("fedrep_cnn10", input_shape, num_classes, (64, 64), (120, 64), dropout)


def fedrep_cnn100(input_shape: Sequence[int], num_classes: int, dropout: Dropout = 0.6) -> Network:
    """Build the CIFAR-100 network of FedRep: conv1, conv2, fc1..fc3.

    Source: Collins et al. 2021, lgcollins/FedRep.

    Args:
        input_shape: (C, H, W), at least 16x16.
        num_classes: Number of classes.
        dropout: Dropout in front of the last layer.
    """
    return valid_conv_net("fedrep_cnn100", input_shape, num_classes, (64, 128), (256, 128), dropout)


def valid_cnn(
    input_shape: Sequence[int],
    num_classes: int,
    widths: Sequence[Size] = (6, 16),
    hidden: Sequence[Size] = (120, 84),
    dropout: Dropout = 0.0,
) -> Network:
    """Build the LeNet-like networks of several benchmarks: conv1, conv2 (5x5 without padding, max pooling), fc1, ...

    Args:
        input_shape: (C, H, W), at least 16x16 for two convolutions.
        num_classes: Number of classes.
        widths: Channels of the convolutions; a third one is 3x3 and has no pool.
        hidden: Sizes of the hidden fully connected layers.
        dropout: Dropout in front of the last layer.
    """
    return valid_conv_net("valid_cnn", input_shape, num_classes, widths, hidden, dropout)


def pfl_cnn(
    input_shape: Sequence[int],
    num_classes: int,
    input_dropout: Dropout = 0.25,
    dropout: Dropout = 0.5,
    init: Init = "xavier",
) -> Network:
    """Build the CIFAR-10 network of pfl-research's benchmarks: conv1, conv2 (3x3 without padding, one pool), fc1, fc2.

    Source: Granqvist et al. 2024, ``simple_cnn`` in apple/pfl-research.

    Args:
        input_shape: (C, H, W), at least 6x6.
        num_classes: Number of classes.
        input_dropout: Dropout in front of the head.
        dropout: Dropout after the hidden layer.
        init: ``xavier`` (uniform as in the source, zero bias), or the framework's ``default``.
    """
    channels = image_channels("pfl_cnn", input_shape)
    encoder = [
        ("conv1", conv_block(channels, 32, 3)),
        ("conv2", conv_block(32, 64, 3, pool=nn.MaxPool2d(2))),
    ]
    return conv_net(
        "pfl_cnn", encoder, input_shape, num_classes, hidden=(128,), dropout=(dropout,),
        input_dropout=input_dropout, init=init,
    )  # fmt: skip


def heterofl_cnn(
    input_shape: Sequence[int],
    num_classes: int,
    widths: Sequence[Size] = (64, 128, 256, 512),
    norm: Norm = "bn",
    norm_groups: Size = NORM_GROUPS,
) -> Network:
    """Build the MNIST network of HeteroFL: conv1..conv4 (3x3, max pooling behind all but the last), mean, fc.

    Source: Diao et al. 2021, dem123456789/HeteroFL-Computation-and-Communication-Efficient-....

    Args:
        input_shape: (C, H, W), at least 8x8 for four convolutions.
        num_classes: Number of classes.
        widths: Channels of the convolutions.
        norm: ``bn`` as in the source, ``gn`` or ``none``.
        norm_groups: Groups of ``gn``.
    """
    channels = image_channels("heterofl_cnn", input_shape)
    encoder: list[Block] = []
    for i, out in enumerate(widths, start=1):
        pool = nn.MaxPool2d(2) if i < len(widths) else nn.AdaptiveAvgPool2d(1)
        block = conv_block(channels, out, 3, padding=1, norm=norm, norm_groups=norm_groups, pool=pool)
        encoder.append((f"conv{i}", block))
        channels = out
    return conv_net("heterofl_cnn", encoder, input_shape, num_classes)


def valid_conv_net(
    model: str,
    input_shape: Sequence[int],
    num_classes: int,
    widths: Sequence[int],
    hidden: Sequence[int],
    dropout: float,
) -> Network:
    """Build 5x5 convolutions without padding, each with ReLU and a 2x2 pool, and a fully connected head.

    A third convolution is 3x3 and has no pool.

    Args:
        model: The model's name, for messages.
        input_shape: (C, H, W).
        num_classes: Number of classes.
        widths: Channels of the convolutions.
        hidden: Sizes of the hidden fully connected layers.
        dropout: Dropout in front of the last layer.
    """
    channels = image_channels(model, input_shape)
    encoder: list[Block] = []
    for i, out in enumerate(widths, start=1):
        block = conv_block(channels, out, 5, pool=nn.MaxPool2d(2)) if i < 3 else conv_block(channels, out, 3)
        encoder.append((f"conv{i}", block))
        channels = out
    drops = [0.0] * (len(hidden) - 1) + [dropout] * bool(hidden)
    at_input = 0.0 if hidden else dropout
    return conv_net(
        model, encoder, input_shape, num_classes, hidden=hidden, dropout=drops, input_dropout=at_input
    )


def _overlapping_pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, padding=1)
