"""The named blocks that the networks are lists of, and the checks of their options."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, Literal

from torch import nn

from fedfeat.config.conditions import integer, interval
from fedfeat.errors import ConfigError
from fedfeat.models.draws import drawn, xavier
from fedfeat.models.network import Block, Network
from fedfeat.models.shapes import feature_shape

Norm = Literal["none", "bn", "gn"]
Init = Literal["xavier", "default"]
NORM_GROUPS = 2
"""Groups of GroupNorm: 2, common in federated ResNet-18 code; it divides every width here."""

Size = Annotated[int, integer(1)._replace(text="be a positive whole number")]
Dropout = Annotated[float, interval("[0, 1)")._replace(text="be at least 0 and below 1")]


def image_channels(model: str, input_shape: Sequence[int]) -> int:
    """Give C of an image shape (C, H, W), or refuse a shape that is none.

    Args:
        model: The model's name, for the message.
        input_shape: Shape of one example.
    """
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ConfigError(
            f"model {model} needs images of shape (C, H, W), but the data set gives {tuple(input_shape)}."
        )
    return input_shape[0]


def make_norm(norm: str, channels: int, groups: int = NORM_GROUPS) -> nn.Module | None:
    """Build a normalisation layer for (B, C, H, W), or None for ``none``.

    Args:
        norm: ``none``, ``bn`` (batch) or ``gn`` (group).
        channels: C.
        groups: Number of groups of ``gn``; must divide C.
    """
    if norm != "gn":
        return {"none": None, "bn": nn.BatchNorm2d(channels)}[norm]
    if channels % groups:
        raise ConfigError.rule("model.norm_groups", f"divide the {channels} channels of a layer", groups)
    return nn.GroupNorm(groups, channels)


def conv_block(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    padding: int = 0,
    norm: str = "none",
    norm_groups: int = NORM_GROUPS,
    pool: nn.Module | None = None,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Build convolution (with bias), norm, ReLU, pool and channel dropout: (B, C, H, W) to (B, C', H', W').

    Args:
        in_channels: C.
        out_channels: C'.
        kernel_size: Side of the square kernel.
        padding: Zeros on each side.
        norm: ``none``, ``bn`` or ``gn``.
        norm_groups: Groups of ``gn``.
        pool: Pooling layer, or None.
        dropout: Probability of dropping a whole channel; no layer where it is 0.
    """
    layers: list[tuple[str, nn.Module | None]] = [
        ("conv", nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding)),
        ("norm", make_norm(norm, out_channels, norm_groups)),
        # Not in place: class preferences and probes read the value before the activation.
        ("relu", nn.ReLU()),
        ("pool", pool),
        ("dropout", nn.Dropout2d(dropout) if dropout else None),
    ]
    return named_layers(layers)


def fc_blocks(
    in_features: int,
    widths: Sequence[int],
    num_classes: int,
    *,
    dropout: Sequence[float] = (),
    input_dropout: float = 0.0,
) -> list[Block]:
    """Build fully connected blocks ``fc1``, ``fc2``, ..., ReLU after all but the last.

    They map (B, ...) to (B, num_classes).

    Args:
        in_features: Size of one flattened (channel-major) example.
        widths: Sizes of the hidden layers.
        num_classes: Size of the last layer, which has no activation.
        dropout: Dropout after each hidden layer; empty for none.
        input_dropout: Dropout between flattening and the first layer.
    """
    sizes = [in_features, *widths, num_classes]
    after = [*(dropout or [0.0] * len(widths)), 0.0]
    blocks = []
    for i, (n_in, n_out, p) in enumerate(zip(sizes[:-1], sizes[1:], after, strict=True), start=1):
        layers: list[tuple[str, nn.Module | None]] = [
            ("flatten", nn.Flatten() if i == 1 else None),
            ("input_dropout", nn.Dropout(input_dropout) if i == 1 and input_dropout else None),
            ("linear", nn.Linear(n_in, n_out)),
            ("relu", nn.ReLU() if i <= len(widths) else None),
            ("dropout", nn.Dropout(p) if p else None),
        ]
        blocks.append((f"fc{i}", named_layers(layers)))
    return blocks


def conv_net(
    model: str,
    encoder: Sequence[Block],
    input_shape: Sequence[int],
    num_classes: int,
    *,
    hidden: Sequence[int] = (),
    dropout: Sequence[float] = (),
    input_dropout: float = 0.0,
    init: Init = "default",
) -> Network:
    """Put a fully connected head of the fitting width on a convolutional encoder.

    Args:
        model: The model's name, for messages.
        encoder: Convolutional blocks.
        input_shape: (C, H, W).
        num_classes: Number of classes.
        hidden: Sizes of the head's hidden layers.
        dropout: Dropout after each of them.
        input_dropout: Dropout in front of the head.
        init: `draws.xavier`, or the framework's ``default``.
    """
    size = math.prod(feature_shape(model, encoder, input_shape))
    head = fc_blocks(size, hidden, num_classes, dropout=dropout, input_dropout=input_dropout)
    network = Network(encoder, head, input_shape, num_classes)
    return drawn(network, xavier) if init == "xavier" else network


def pooled_linear(width: int, num_classes: int) -> Block:
    """Build the block ``fc`` of networks without hidden layers: the mean over the image, then one linear layer.

    Args:
        width: Channels of the features (B, width, H, W).
        num_classes: Number of classes.
    """
    linear = nn.Linear(width, num_classes)
    return "fc", named_layers(
        [("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten()), ("linear", linear)]
    )


def named_layers(layers: Sequence[tuple[str, nn.Module | None]]) -> nn.Sequential:
    """Join the layers that are there, under their names."""
    return nn.Sequential(OrderedDict((name, layer) for name, layer in layers if layer is not None))
