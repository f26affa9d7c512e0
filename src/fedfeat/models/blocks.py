"""The named blocks that the networks are lists of, and the checks of their options."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from torch import Tensor, nn

from fedfeat.config.conditions import Condition, integer, interval
from fedfeat.errors import ConfigError
from fedfeat.models.grouped_layers import ClassLinear, GroupedLinear
from fedfeat.models.network import Block, Network, feature_shape

Norm = Literal["none", "bn", "gn"]
NORMS = ("none", "bn", "gn")
DEFAULT_NORM_GROUPS = 2
"""Groups of GroupNorm: 2, common in federated ResNet-18 code; it divides every width here."""

SIZE = Condition(integer(1).holds, "be a positive whole number")
PROBABILITY = Condition(interval("[0, 1)").holds, "be at least 0 and below 1")
Size = Annotated[int, SIZE]
Dropout = Annotated[float, PROBABILITY]


def check_choice(key: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse a value that is not in the list, naming key, list and value."""
    if value not in allowed:
        raise ConfigError.rule(key, f"be one of {', '.join(allowed)}", value)


def check_positive(key: str, value: int) -> int:
    """Give the value back if it is a positive whole number."""
    if not SIZE.holds(value):
        raise ConfigError.rule(key, SIZE.text, value)
    return value


def check_probability(key: str, value: float) -> float:
    """Give a dropout probability back if it is in [0, 1)."""
    if not PROBABILITY.holds(value):
        raise ConfigError.rule(key, PROBABILITY.text, value)
    return value


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


def make_norm(norm: str, channels: int, groups: int = DEFAULT_NORM_GROUPS) -> nn.Module | None:
    """Build a normalisation layer for (B, C, H, W), or None for ``none``.

    Args:
        norm: ``none``, ``bn`` (batch) or ``gn`` (group).
        channels: C.
        groups: Number of groups of ``gn``; must divide C.
    """
    check_choice("model.norm", norm, NORMS)
    if norm == "none":
        return None
    if norm == "bn":
        return nn.BatchNorm2d(channels)
    if channels % check_positive("model.norm_groups", groups):
        raise ConfigError.rule("model.norm_groups", f"divide the {channels} channels of a layer", groups)
    return nn.GroupNorm(groups, channels)


def conv_block(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    padding: int = 0,
    norm: str = "none",
    norm_groups: int = DEFAULT_NORM_GROUPS,
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
        ("dropout", nn.Dropout2d(check_probability("model.conv_dropout", dropout)) if dropout else None),
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
    sizes = [in_features, *(check_positive("model.hidden", width) for width in widths), num_classes]
    after = [*(dropout or [0.0] * len(widths)), 0.0]
    blocks = []
    for i, (n_in, n_out, p) in enumerate(zip(sizes[:-1], sizes[1:], after, strict=True), start=1):
        layers: list[tuple[str, nn.Module | None]] = [
            ("flatten", nn.Flatten() if i == 1 else None),
            ("input_dropout", _dropout(input_dropout) if i == 1 else None),
            ("linear", nn.Linear(n_in, n_out)),
            ("relu", nn.ReLU() if i <= len(widths) else None),
            ("dropout", _dropout(p)),
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
    """
    channels, height, width = feature_shape(model, encoder, input_shape)
    head = fc_blocks(
        channels * height * width, hidden, num_classes, dropout=dropout, input_dropout=input_dropout
    )
    return Network(encoder, head, input_shape, num_classes)


def named_layers(layers: Sequence[tuple[str, nn.Module | None]]) -> nn.Sequential:
    """Join the layers that are there, under their names."""
    return nn.Sequential(OrderedDict((name, layer) for name, layer in layers if layer is not None))


def xavier_(network: Network) -> Network:
    """Draw all weights Xavier-uniform and set all biases to 0, in place (Glorot and Bengio 2010)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear | GroupedLinear):
            for weight in _single_maps(module):
                nn.init.xavier_uniform_(weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    network.is_xavier = True
    return network


def _single_maps(module: nn.Conv2d | nn.Linear | GroupedLinear) -> Iterable[Tensor]:
    """Give the weights of each of a layer's independent maps: xavier looks at both sides of one."""
    if isinstance(module, GroupedLinear):
        return module.weight
    if isinstance(module, ClassLinear):
        return module.weight.split(module.rows_of_groups)
    return module.weight.chunk(module.groups) if isinstance(module, nn.Conv2d) else [module.weight]


def _dropout(p: float) -> nn.Dropout | None:
    return nn.Dropout(check_probability("model.dropout", p)) if p else None
