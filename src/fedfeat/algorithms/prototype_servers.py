"""What server halves have in common that receive prototypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from fedfeat.models.network import Network

if TYPE_CHECKING:
    from torch import nn

    from fedfeat.types import Federation


def width_of(model: nn.Module, federation: Federation) -> int:
    """Give what all clients' last layers read (`Server.needs_common_width`); ``model`` is the server's network."""
    key = federation.networks.key(0)
    network = model if key is None else federation.networks.build(key)
    return cast(Network, network).last_layer.in_features
