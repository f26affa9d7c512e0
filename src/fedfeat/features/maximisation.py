"""Activation maximisation: the picture that a neuron answers to most, by regularised gradient ascent.

Erhan et al. 2009 ("Visualizing higher-layer features of a deep network"), with the regularisers of Yosinski et al.
2015 ("Understanding neural networks through deep visualization"); Fed2, section 3.1, names it beside its class
preference vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.transforms.functional import gaussian_blur

from fedfeat.config.conditions import Count, Natural, NotNegative, Positive, Share
from fedfeat.features.capture import Point, captured, eval_mode
from fedfeat.models.network import Network
from fedfeat.seeding import derive_seed

START = 0.1
"""Standard deviation of the noise around the mean pixel from which the ascent starts, where white - black is 1."""
LAST = 0.25
"""Share of the steps, the last ones, that go without blur and jitter: these make the best picture of many places, where
the activation that is written down is that at one."""
PART = 256
"""Examples that pass at once where activations are only read."""


@dataclass(frozen=True)
class Ascent:
    """How the ascent goes; lengths are in pixels, grey values on a scale from black, 0, to white, 1.

    Attributes:
        steps: Steps of the ascent.
        lr: Root mean square, over the pixels of a picture, of the first step along the gradient; steps shrink linearly
            to 0, and the decay with them.
        decay: Share of its distance to the mean pixel, what the network reads as 0, that every pixel loses at the
            first step (L2 decay).
        blur: Standard deviation of a Gaussian blur; 0 is none.
        blur_every: Steps from one blur to the next.
        jitter: The picture is shifted, around its border, by up to so many pixels at each step and back again.
        seed: Of the starting noise and the shifts, which are the same for all networks and neurons.
    """

    steps: Count = 256
    lr: Positive = 0.1
    decay: Share = 0.05
    blur: NotNegative = 0.5
    blur_every: Count = 4
    jitter: Natural = 1
    seed: int = 0

    def __str__(self) -> str:
        """Say the settings in a line."""
        blur = f"blur {self.blur:g} every {self.blur_every} steps" if self.blur else "no blur"
        return (
            f"{self.steps} steps, lr {self.lr:g}, L2 decay {self.decay:g}, {blur}, jitter {self.jitter}, "
            f"seed {self.seed}"
        )


class PixelRange(NamedTuple):
    """What the network reads for black and for white, each broadcastable to (B, C, H, W).

    Attributes:
        black: Input of a pixel of 0.
        white: Input of a pixel of 1 (255 as it is stored).
    """

    black: Tensor
    white: Tensor

    def inputs(self, pixels: Tensor) -> Tensor:
        """Give pixels from 0 to 1 as the network reads them."""
        return self.black + pixels * (self.white - self.black)

    @property
    def mean(self) -> Tensor:
        """The pixel that is read as 0: the mean that normalisation takes off."""
        return (-self.black / (self.white - self.black)).clamp(0, 1)


class Maximised(NamedTuple):
    """Pictures of some neurons of a layer.

    Attributes:
        pixels: From 0 to 1, float32 (n, C, H, W), on the CPU.
        before: Each neuron's activation at the start, float32 (n,).
        after: At its picture.
    """

    pixels: Tensor
    before: Tensor
    after: Tensor


def activations(network: Network, point: Point, inputs: Tensor) -> Tensor:
    """Give the activations at a point, (B, neurons): a channel's is the mean over its positions."""
    with captured(network, {"": point}) as taken:
        network(inputs)
    return taken[""].flatten(2).mean(2) if taken[""].ndim > 2 else taken[""]


@torch.no_grad()
def largest(network: Network, point: Point, neurons: Sequence[int], inputs: Tensor) -> Tensor:
    """Give each neuron's largest activation over inputs (N, ...), float32 (n,), on the CPU."""
    chosen = torch.as_tensor(neurons)
    with eval_mode(network):
        found = [activations(network, point, part).cpu()[:, chosen].amax(0) for part in inputs.split(PART)]
    return torch.stack(found).amax(0).float()


def maximise(
    network: Network, point: Point, neurons: Sequence[int], pixels: PixelRange, ascent: Ascent
) -> Maximised:
    """Find for each neuron a picture that raises its activation as far as the regularisers let it.

    A step moves along the gradient, scaled to `Ascent.lr`, then takes the decay and the blur and ends between black
    and white. The network runs in eval mode and is left as it was; parameters get no gradients.

    Args:
        network: A network that reads images (B, C, H, W), on the device of ``pixels``.
        point: Where the activation is, see `features.capture.layer_points`.
        neurons: Channels or units at that point.
        pixels: From grey values to inputs.
        ascent: The settings.
    """
    with eval_mode(network), torch.inference_mode(False), torch.enable_grad():
        device, dtype = pixels.black.device, next(network.parameters()).dtype
        rows, chosen = torch.arange(len(neurons), device=device), torch.as_tensor(neurons, device=device)
        draw = torch.Generator().manual_seed(derive_seed(ascent.seed, "activation maximisation"))

        def own(images: Tensor) -> Tensor:
            return activations(network, point, pixels.inputs(images).to(dtype))[rows, chosen]

        mean = pixels.mean
        noise = torch.randn((1, *network.input_shape), generator=draw).to(device)
        x = (mean + START * noise).clamp(0, 1).repeat(len(neurons), 1, 1, 1)
        before = own(x).detach()
        for step in range(1, ascent.steps + 1):
            free = step > (1 - LAST) * ascent.steps
            reach = 0 if free else ascent.jitter
            shift = torch.randint(-reach, reach + 1, (2,), generator=draw).tolist()
            moved = x.roll(shift, (2, 3)).requires_grad_()
            # Examples do not touch each other in eval mode, so the gradient of the sum holds that of each of them.
            (gradient,) = torch.autograd.grad(own(moved).sum(), moved)
            # Towards steps of 0, so that the maximum is met and not jumped over.
            rate = 1 - (step - 1) / ascent.steps
            ahead = _unit(gradient.roll([-s for s in shift], (2, 3)))
            x = x + rate * (ascent.lr * ahead - ascent.decay * (x - mean))
            if ascent.blur and not free and step % ascent.blur_every == 0:
                x = _blurred(x, ascent.blur)
            x = x.clamp(0, 1)
        after = own(x).detach()
    return Maximised(x.cpu(), before.float().cpu(), after.float().cpu())


def _unit(gradient: Tensor) -> Tensor:
    """Scale the gradient of each picture to a root mean square of 1; one of zeros stays zeros."""
    size = gradient.square().mean((1, 2, 3), keepdim=True).sqrt()
    return gradient / size.clamp(min=torch.finfo(size.dtype).tiny)


def _blurred(x: Tensor, sigma: float) -> Tensor:
    """Blur pictures (B, C, H, W); the kernel reaches over two standard deviations where the picture is large enough."""
    radius = min(math.ceil(2 * sigma), x.shape[2] - 1, x.shape[3] - 1)
    return gaussian_blur(x, [2 * radius + 1, 2 * radius + 1], [sigma, sigma]) if radius else x
