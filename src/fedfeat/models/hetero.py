"""The pool of unequal networks of FedHeNN (Makhija et al. 2022), from "1 conv + 1 FC" to "3 conv + 3 FC".

A2 to A4 are nets of dishamakhija/FedHeNN (``models_fednn.py``) without their dropout on the logits; A1 and A5
complete the range that the paper states.
"""

from collections.abc import Sequence
from typing import Literal

from fedfeat.models.blocks import Dropout
from fedfeat.models.cnn import valid_conv_net
from fedfeat.models.network import Network

Arch = Literal["A1", "A2", "A3", "A4", "A5"]
POOL: dict[str, dict[str, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "cifar10": {
        "A1": ((64,), ()),
        "A2": ((64,), (256,)),
        "A3": ((64, 64), (120,)),
        "A4": ((64, 64), (120, 64)),
        "A5": ((64, 64, 128), (120, 64)),
    },
    "cifar100": {
        "A1": ((64,), ()),
        "A2": ((64,), (256,)),
        "A3": ((64, 128), (256,)),
        "A4": ((64, 128), (256, 128)),
        "A5": ((64, 128, 128), (256, 128)),
    },
}
"""Variant to architecture to (channels of the convolutions, sizes of the hidden layers)."""
VARIANT_DROPOUT = {"cifar10": 0.0, "cifar100": 0.6}
"""Dropout in front of the last layer: none and 0.6, as in the two networks of lgcollins/FedRep."""


def hetero_cnn(
    input_shape: Sequence[int],
    num_classes: int,
    arch: Arch = "A4",
    variant: Literal["auto", "cifar10", "cifar100"] = "auto",
    dropout: Dropout | None = None,
) -> Network:
    """Build one network of the pool: conv1.., fc1...

    Args:
        input_shape: (C, H, W), at least 6x6 for A1 and A2, 16x16 for A3 and A4, 24x24 for A5.
        num_classes: Number of classes.
        arch: ``A1`` to ``A5``.
        variant: Widths for ``cifar10`` or ``cifar100``; ``auto`` takes the latter above 10 classes.
        dropout: Dropout in front of the last layer; None for the variant's own.
    """
    if variant == "auto":
        variant = "cifar10" if num_classes <= 10 else "cifar100"
    widths, hidden = POOL[variant][arch]
    rate = VARIANT_DROPOUT[variant] if dropout is None else dropout
    return valid_conv_net(f"hetero_cnn {arch}", input_shape, num_classes, widths, hidden, rate)
