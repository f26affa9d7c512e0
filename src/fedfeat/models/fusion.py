"""Fusion of two extractors' features: the client's own E_l and the frozen global E_g (FedFusion, section 3).

    conv    W_conv [E_g(x) || E_l(x)]                      W_conv: a 1x1 convolution from 2C to C channels
    multi   lambda * E_g(x) + (1 - lambda) * E_l(x)        lambda: one number per channel
    single  the same                                       lambda: one number

In a group-separated network whose features belong to groups, ``conv`` fuses each group's features on their own, so
that groups still never meet.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from fedfeat.errors import ConfigError
from fedfeat.models.frozen import FrozenCopy
from fedfeat.models.grouped import GroupedNetwork
from fedfeat.models.grouped_layers import GroupedLinear, grouped_conv, owned
from fedfeat.models.network import Network
from fedfeat.models.shapes import output_shape

Op = Literal["conv", "multi", "single"]
Concat = Literal["global_first", "local_first"]
ConvInit = Literal["default", "average"]


class LambdaFusion(nn.Module):
    """``multi`` and ``single``: a convex combination where lambda is between 0 and 1, which nothing enforces.

    Args:
        size: Channels C for ``multi``, 1 for ``single``.
        start: First value of lambda; 0 in thu-media/FedFusion, which starts from the local features alone.
    """

    def __init__(self, size: int, start: float) -> None:
        super().__init__()
        self.lambdas = nn.Parameter(torch.full((size,), float(start)))

    def forward(self, frozen: Tensor, local: Tensor) -> Tensor:
        """Fuse (B, C, ...) with (B, C, ...)."""
        return torch.lerp(local, frozen, self.lambdas.to(local.dtype).view(-1, *[1] * (local.dim() - 2)))

    def global_part(self) -> Tensor:
        """Give lambda, (C,) or (1,): how much of each fused channel is the global extractor's."""
        return self.lambdas.detach()


class ConvFusion(nn.Module):
    """``conv``: a 1x1 convolution over both extractors' channels; a linear map where features are vectors.

    Args:
        widths: Channels of each group of the features; a single number C without groups.
        grouped: Whether they belong to groups.
        init: ``default`` of the framework, or ``average``: half the identity on either side, no bias.
        bias: Whether there is a bias.
        concat: Which of the two comes first; the paper has the global one, thu-media/FedFusion the local one.
    """

    def __init__(
        self, widths: Sequence[int], grouped: bool, init: ConvInit, bias: bool, concat: Concat
    ) -> None:
        super().__init__()
        total = sum(widths)
        dense = nn.Conv2d(2 * total, total, 1, bias=bias)
        self.conv = grouped_conv(dense, [2 * w for w in widths], widths) if grouped else dense
        self.concat = concat
        by_group = torch.arange(2 * total).view(2, total).split(list(widths), 1)
        index = torch.cat([halves.flatten() for halves in by_group])
        self.order: Tensor | None
        self.register_buffer("order", index if grouped else None, persistent=False)
        if init == "average":
            self._average()

    @torch.no_grad()
    def _average(self) -> None:
        for conv in self._convs():
            width = conv.out_channels // conv.groups
            half = torch.eye(width).repeat(conv.groups, 1) / 2
            conv.weight.copy_(torch.cat([half, half], 1)[:, :, None, None])
            if conv.bias is not None:
                conv.bias.zero_()

    def _convs(self) -> list[nn.Conv2d]:
        return [module for module in self.modules() if isinstance(module, nn.Conv2d)]

    def forward(self, frozen: Tensor, local: Tensor) -> Tensor:
        """Fuse (B, C, H, W) with (B, C, H, W), or (B, C) with (B, C)."""
        both = torch.cat([frozen, local] if self.concat == "global_first" else [local, frozen], 1)
        if self.order is not None:
            both = both.index_select(1, self.order)
        if local.dim() > 2:
            return self.conv(both)
        return self.conv(both[:, :, None, None])[:, :, 0, 0]

    def global_part(self) -> Tensor:
        """Give, per output channel (C,), the share of the global half in the norm of its weights."""
        weights = torch.cat([conv.weight.detach().flatten(1).unflatten(1, (2, -1)) for conv in self._convs()])
        norms = weights.norm(dim=2)
        shares = norms / norms.sum(1, keepdim=True).clamp_min(torch.finfo(norms.dtype).tiny)
        return shares[:, 0 if self.concat == "global_first" else 1]


class Fusion(nn.Module):
    """The fusion module F with the frozen extractor E_g, which is no part of what is trained, sent or averaged.

    Args:
        operator: `ConvFusion` or `LambdaFusion`.
        encoder: The extractor E; a copy of it is frozen.
    """

    def __init__(self, operator: ConvFusion | LambdaFusion, encoder: nn.Module) -> None:
        super().__init__()
        self.operator = operator
        self.frozen = FrozenCopy(encoder)

    @torch.no_grad()
    def frozen_features(self, x: Tensor) -> Tensor:
        """Give E_g(x) for inputs (B, ...)."""
        return self.frozen(x)

    def forward(self, local: Tensor, x: Tensor, frozen_features: Tensor | None = None) -> Tensor:
        """Fuse E_l(x) with E_g(x), of which the latter is computed unless it is given."""
        if frozen_features is None:
            frozen_features = self.frozen_features(x)
        return self.operator(frozen_features, local)


def fuse(
    network: Network,
    op: Op,
    lambda_init: float = 0.0,
    conv_init: ConvInit = "default",
    conv_bias: bool = True,
    concat: Concat = "global_first",
) -> Fusion:
    """Put a fusion module between encoder and head of a network.

    Args:
        network: The network, changed in place.
        op: ``conv``, ``multi`` or ``single``.
        lambda_init: See `LambdaFusion`.
        conv_init: See `ConvFusion`.
        conv_bias: Likewise; with it the module has 2 C^2 + C numbers, 8,256 for C = 64.
        concat: Likewise.

    Raises:
        ConfigError: The network has no encoder, or one that does not train.
    """
    if not len(network.encoder):
        raise ConfigError("model must have an encoder whose features can be fused, but this one is all head.")
    if network.frozen and not any(parameter.requires_grad for parameter in network.encoder.parameters()):
        raise ConfigError(
            "model.freeze must leave a part of the encoder whose features are fused, but it names all."
        )
    channels = output_shape(network.encoder, network.input_shape)[0]
    widths = _group_widths(network, channels)
    operator: ConvFusion | LambdaFusion
    if op == "conv":
        operator = ConvFusion(widths or [channels], widths is not None, conv_init, conv_bias, concat)
    else:
        operator = LambdaFusion(channels if op == "multi" else 1, lambda_init)
        if widths is not None and op == "multi":
            owned(operator, widths)
    network.fusion = Fusion(operator, network.encoder)
    return network.fusion


def fusion_of(network: nn.Module) -> Fusion | None:
    """Give a network's fusion module; None if it has none."""
    return cast("Fusion | None", getattr(network, "fusion", None))


def _group_widths(network: Network, channels: int) -> list[int] | None:
    """Count the feature channels of each group; None where the features belong to no group."""
    if not isinstance(network, GroupedNetwork):
        return None
    widths: Counter[int] = Counter()
    # What has a single number, a PReLU for example, treats all channels alike.
    layers = [m for m in network.encoder.modules() if any(p.numel() > 1 for p in m.parameters(recurse=False))]
    for layer in reversed(layers):  # uneven groups are several layers side by side
        of_row = getattr(layer, "group_of_row", None)
        if not isinstance(of_row, Tensor) or len(widths) == len(network.class_sets):
            break
        rows = of_row.repeat_interleave(layer.out_features) if isinstance(layer, GroupedLinear) else of_row
        widths.update(rows.tolist())
    if not widths:
        return None
    pixels = channels // widths.total()  # of each channel, where the encoder flattens its features
    return [pixels * widths[group] for group in sorted(widths)]
