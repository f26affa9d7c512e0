"""From raw images on the device to inputs of the network: augmentation, then one multiply-add."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfeat.data.transforms import Transform
from fedfeat.errors import ConfigError


class InputPipeline:
    """Applies a transform to batches; of what is no uint8 tokens pass through unchanged, features in another type.

    Args:
        mean: The data set's mean of each channel, on a scale where 255 is 1.
        std: The data set's standard deviation of each channel, on the same scale.
        transform: Augmentation and, where it has them, the moments used instead.
        device: Where the batches are.
        dtype: Of the inputs.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        transform: Transform,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        used_mean = _chosen("mean", transform.mean, mean)
        used_std = _chosen("std", transform.std, std)
        if min(used_std, default=1.0) <= 0:
            raise ConfigError.rule("data.transform.std", "be positive in every channel", used_std)
        self._augment, self._dtype = transform.augment, dtype
        # (x / 255 - mean) / std as x * scale + shift, each (C, 1, 1)
        self._scale = _per_channel([1 / (255 * s) for s in used_std], device, dtype)
        self._shift = _per_channel([-m / s for m, s in zip(used_mean, used_std, strict=True)], device, dtype)

    @property
    def scaling(self) -> tuple[Tensor, Tensor]:
        """Scale and shift of raw values, each (C, 1, 1)."""
        return self._scale, self._shift

    @property
    def augments(self) -> bool:
        """Whether training batches are augmented."""
        return bool(self._augment)

    def check(self, name: str, images: Tensor) -> None:
        """Refuse a transform that gives images of another size than those that are tested on.

        Args:
            name: That of the data set.
            images: Some of its images, as they are stored.

        Raises:
            ConfigError: It does.
        """
        size, found = images.shape[2:], self.train(images[:2], torch.Generator()).shape[2:]
        if found != size:
            asked, given = ("x".join(map(str, one)) for one in (size, found))
            raise ConfigError.rule("data.transform", f"give images of {name}'s size, {asked}", given)

    def train(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augment and normalise a training batch.

        Args:
            x: Images, uint8 ``(B, C, H, W)``.
            generator: Source of the augmentation's randomness.

        Returns:
            Inputs, ``(B, C, H', W')``.
        """
        if x.dtype == torch.uint8:
            for operation in self._augment:
                x = operation(x, generator)
        return self.test(x)

    def test(self, x: Tensor) -> Tensor:
        """Normalise a batch.

        Args:
            x: Images, uint8 ``(B, C, H, W)``.

        Returns:
            Inputs, ``(B, C, H, W)``.
        """
        if x.dtype != torch.uint8:
            return x.to(self._dtype) if x.is_floating_point() else x
        return torch.addcmul(self._shift, x.to(self._dtype), self._scale)


def _chosen(name: str, own: Sequence[float] | float | None, given: Sequence[float]) -> tuple[float, ...]:
    """Give the transform's moments where it has them, else the data set's."""
    if isinstance(own, int | float):
        return (float(own),) * len(given)
    if own is not None and len(own) != len(given):
        raise ConfigError.rule(
            "data.transform", f"have one {name} for each of the data set's {len(given)} channels", tuple(own)
        )
    return tuple(given if own is None else own)


def _per_channel(values: Sequence[float], device: torch.device | str, dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)[:, None, None]
