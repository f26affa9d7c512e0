"""Input transforms: per-sample augmentation of a whole batch at once, and the papers' named transforms.

The operations work on raw uint8 pixels, before normalising (so zero padding is black, as in torchvision),
on the batch's device. Random numbers are drawn on the generator's device; each operation draws the same count
for every batch of one size, whatever the pixels are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.errors import ConfigError

Operation = Callable[[Tensor, torch.Generator], Tensor]

CROP_TRIES = 10
"""How often torchvision's RandomResizedCrop draws a box before it falls back to the centre."""


@dataclass(frozen=True)
class Transform:
    """How raw images become inputs of the network.

    Attributes:
        mean: Mean of each channel, or of all, on a scale where 255 is 1; None takes the data set's own.
        std: Standard deviation of each channel, or of all, on the same scale; None takes the data set's own.
        augment: Operations on training batches, in this order, ``(B, C, H, W)`` to ``(B, C, H', W')``.
    """

    mean: tuple[float, ...] | float | None = None
    std: tuple[float, ...] | float | None = None
    augment: tuple[Operation, ...] = ()


def random_flip(x: Tensor, generator: torch.Generator, p: float = 0.5) -> Tensor:
    """Mirror each image left to right with probability p.

    Args:
        x: Images ``(B, C, H, W)`` of any type.
        generator: Source of randomness.
        p: Probability.
    """
    flipped = torch.rand(len(x), generator=generator, device=generator.device) < p
    return torch.where(flipped.to(x.device)[:, None, None, None], x.flip(3), x)


def random_crop(
    x: Tensor,
    generator: torch.Generator,
    pad: int,
    mode: Literal["reflect", "constant"] = "constant",
    p: float = 1.0,
) -> Tensor:
    """Pad each image on all sides and cut a window of the old size at a random place of its own.

    Args:
        x: Images ``(B, C, H, W)`` of any type.
        generator: Source of randomness.
        pad: Pixels added on each side.
        mode: ``reflect`` mirrors at the border pixel, ``constant`` adds zeros.
        p: Probability; the other images stay as they are.
    """
    batch, _, height, width = x.shape
    if mode == "reflect" and pad >= min(height, width):
        raise ConfigError.rule("pad", f"be smaller than the {height}x{width} images where it reflects", pad)
    places = torch.randint(2 * pad + 1, (2, batch), generator=generator, device=generator.device)
    if p < 1:
        stays = torch.rand(batch, generator=generator, device=generator.device) >= p
        places = torch.where(stays, pad, places)  # by a mask as an index the host would wait for a GPU
    top, left = places.to(x.device)
    # Reflected are floating-point tensors only.
    wide = x if mode == "constant" or x.is_floating_point() else x.float()
    padded = F.pad(wide, (pad, pad, pad, pad), mode).to(x.dtype)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (B, C, 2 pad + 1, 2 pad + 1, H, W), a view
    return windows[torch.arange(batch, device=x.device), :, top, left]


def random_resized_crop(
    x: Tensor,
    generator: torch.Generator,
    size: int,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """Cut a box of random area, shape and place from each image and resize it, bilinear with antialiasing.

    Boxes are distributed and pixels weighted as in torchvision's RandomResizedCrop, whose defaults these are.

    Args:
        x: Images ``(B, C, H, W)`` of any type.
        generator: Source of randomness.
        size: Height and width of the result.
        scale: Smallest and largest area of a box, as a share of the image.
        ratio: Smallest and largest width over height of a box.
    """
    height, width = x.shape[2:]
    top, left, rows, columns = random_boxes(len(x), height, width, scale, ratio, generator).to(x.device)
    vertical = _resize_weights(top, rows, height, size)  # (B, size, H)
    horizontal = _resize_weights(left, columns, width, size)  # (B, size, W)
    resized = vertical[:, None] @ x.float() @ horizontal[:, None].transpose(2, 3)
    return resized if x.is_floating_point() else resized.round_().to(x.dtype)


def random_boxes(
    count: int,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
) -> Tensor:
    """Draw boxes as torchvision's RandomResizedCrop does, all at once.

    Args:
        count: Number of boxes, B.
        height: Height of the images.
        width: Width of the images.
        scale: See `random_resized_crop`.
        ratio: See `random_resized_crop`.
        generator: Source of randomness.

    Returns:
        Top, left, height and width of each box, int64 ``(4, B)``.
    """
    # float64: in float32 a draw just below 1, times a count, can round up to the count.
    shape = (2 * CROP_TRIES + 2, count)
    draws = torch.rand(shape, dtype=torch.float64, generator=generator, device=generator.device)
    area = height * width * (scale[0] + draws[:CROP_TRIES] * (scale[1] - scale[0]))
    log_low, log_high = math.log(ratio[0]), math.log(ratio[1])
    aspect = torch.exp(log_low + draws[CROP_TRIES:-2] * (log_high - log_low))
    columns, rows = (area * aspect).sqrt().round().long(), (area / aspect).sqrt().round().long()  # (tries, B)
    fits = (columns > 0) & (columns <= width) & (rows > 0) & (rows <= height)
    first = fits.int().argmax(0, keepdim=True)  # argmax gives the first of equals
    found = fits.any(0)
    whole_rows, whole_columns = _centre_box(height, width, ratio)
    rows = torch.where(found, rows.gather(0, first)[0], whole_rows)
    columns = torch.where(found, columns.gather(0, first)[0], whole_columns)
    top = torch.where(found, (draws[-2] * (height - rows + 1)).long(), (height - rows) // 2)
    left = torch.where(found, (draws[-1] * (width - columns + 1)).long(), (width - columns) // 2)
    return torch.stack([top, left, rows, columns])


def _centre_box(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """Give rows and columns of the largest box of an allowed shape, torchvision's last resort."""
    if width / height < ratio[0]:
        return round(width / ratio[0]), width
    if width / height > ratio[1]:
        return height, round(height * ratio[1])
    return height, width


def _resize_weights(start: Tensor, length: Tensor, total: int, size: int) -> Tensor:
    """Give the weights of every pixel of an axis in every resized pixel, ``(B, size, total)``.

    A triangle filter as wide as the source step (at least one pixel), restricted to the box: what bilinear
    interpolation with antialiasing is.
    """
    step = (length.float() / size)[:, None, None]
    centres = start[:, None, None] + (torch.arange(size, device=start.device)[:, None] + 0.5) * step
    places = torch.arange(total, device=start.device)
    weights = (1 - (places + 0.5 - centres).abs() / step.clamp(min=1)).clamp(min=0)
    inside = (places >= start[:, None, None]) & (places < (start + length)[:, None, None])
    weights = weights * inside
    return weights / weights.sum(2, keepdim=True)


# The named transforms, each after the public code that it names.


def none() -> Transform:
    """Normalise with the data set's own moments, no augmentation."""
    return Transform()


def cifar_fedma() -> Transform:
    """Reflect-pad 4, crop, flip (code: IBM/FedMA ``utils.py``)."""
    mean, std = (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)
    return Transform(mean, std, (partial(random_crop, pad=4, mode="reflect"), random_flip))


def cifar_niid() -> Transform:
    """Reflect-pad 4, crop, flip; pixels in [0, 1] (code: Xtra-Computing/NIID-Bench ``utils.py``)."""
    return Transform(0.0, 1.0, cifar_fedma().augment)


def cifar_fednova() -> Transform:
    """Zero-pad 4, crop, flip; own moments (code: JYWa/FedNova ``util_v4.py``)."""
    return Transform((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), _padded_crop_and_flip())


def cifar_feddyn() -> Transform:
    """Flip, then every second image zero-pad 4, crop; own moments (code: alpemreacar/FedDyn ``utils_dataset.py``).

    That code pads after normalising, with the mean; here it is black.
    """
    augment = (random_flip, partial(random_crop, pad=4, mode="constant", p=0.5))
    return Transform((0.491, 0.482, 0.447), (0.247, 0.243, 0.262), augment)


def pfllib() -> Transform:
    """Pixels in [-1, 1], whatever the channels (code: TsingZ0/PFLlib ``dataset/generate_*.py``)."""
    return Transform(0.5, 0.5)


def unscaled() -> Transform:
    """Pixels in [0, 1], whatever the channels (code: adap/flower ``baselines/fedavgm``)."""
    return Transform(0.0, 1.0)


def imagenet() -> Transform:
    """Normalise only, by ImageNet's moments, which torchvision's pre-trained networks expect."""
    return Transform((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def cifar_fedrep() -> Transform:
    """Zero-pad 4, crop, flip; ImageNet moments (code: lgcollins/FedRep ``utils/train_utils.py``, FedHeNN)."""
    return Transform((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), _padded_crop_and_flip())


def cifar100_fedrep() -> Transform:
    """Zero-pad 4, crop, flip; own moments (code: lgcollins/FedRep ``utils/train_utils.py``, FedHeNN)."""
    return Transform((0.507, 0.487, 0.441), (0.267, 0.256, 0.276), _padded_crop_and_flip())


def cifar_fusion(size: int = 32) -> Transform:
    """Random resized crop to ``size``, flip (code: thu-media/FedFusion ``data/cifar_data.py``)."""
    augment = (partial(random_resized_crop, size=size), random_flip)
    return Transform((0.491, 0.482, 0.447), (0.247, 0.243, 0.262), augment)


def mnist_fusion(size: int = 28) -> Transform:
    """Random resized crop to ``size``, flip (code: thu-media/FedFusion ``data/mnist_data.py``)."""
    return Transform((0.131,), (0.308,), (partial(random_resized_crop, size=size), random_flip))


def mnist_plain() -> Transform:
    """Normalise only (code: IBM/FedMA and lgcollins/FedRep)."""
    return Transform(mean=(0.1307,), std=(0.3081,))


def _padded_crop_and_flip() -> tuple[Operation, ...]:
    return partial(random_crop, pad=4, mode="constant"), random_flip
