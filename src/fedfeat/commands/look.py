"""What is taken of every model of a run that is looked at: class preferences, and pictures of chosen neurons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedfeat.client import ClientModule
from fedfeat.commands.chosen_neurons import check_neurons
from fedfeat.errors import ConfigError
from fedfeat.features.capture import layer_points
from fedfeat.features.diagnostics import own_neurons, short_names
from fedfeat.features.maximisation import Ascent, PixelRange, largest, maximise
from fedfeat.features.preference import Preferences, primary_classes
from fedfeat.models.network import Network
from fedfeat.rounds.experiment import Experiment
from fedfeat.runs.feature_numbers import SERVER

MOST_MODELS = 12
"""Models that pictures of single neurons show."""


@dataclass(frozen=True)
class Asked:
    """What is looked at beside the encodings of all layers.

    Attributes:
        bars: Layer to neurons whose preference vectors are drawn.
        maximise: Layer to neurons whose pictures are made.
        ascent: How.
        clients: Whose models are read or trained; None is all of them.
    """

    bars: Mapping[str, Sequence[int]] = field(default_factory=dict)
    maximise: Mapping[str, Sequence[int]] = field(default_factory=dict)
    ascent: Ascent = field(default_factory=Ascent)
    clients: Sequence[int] | None = None


class Pictures(NamedTuple):
    """What chosen neurons of a layer answer to most in one model; NaN for those that it lacks.

    Attributes:
        pixels: From 0 to 1, (n, C, H, W).
        before: Activation at the start of the ascent, (n,).
        after: At its end.
        images: The largest over the training images that are looked at.
        classes: Primary classes, int64 (n,).
    """

    pixels: Tensor
    before: Tensor
    after: Tensor
    images: Tensor
    classes: Tensor


class Look:
    """What is taken of every model of a run: class preferences, and the pictures that are asked for.

    Raises:
        ConfigError: The run has no such layer, neuron or client, or no images.
    """

    def __init__(self, experiment: Experiment, asked: Asked) -> None:
        self.worker, self.data, self.asked = experiment.executor.worker, experiment.data, asked
        assert self.worker.probe is not None
        self.probe = self.worker.probe
        network = self.worker.module.model
        assert isinstance(network, Network)
        self._whole = network
        widths = {layer: found.pre_act.neurons for layer, found in layer_points(network).items()}
        names = dict(zip(widths, short_names(list(widths)), strict=True))
        run, last = experiment.info.name, experiment.plan.num_clients - 1
        self.bars = check_neurons(asked.bars, widths, names, run, "--neurons")
        self.maximised = check_neurons(asked.maximise, widths, names, run, "--maximise")
        self.clients = list(range(last + 1)) if asked.clients is None else list(asked.clients)
        if max(self.clients) > last:
            raise ConfigError.rule("--clients", f"be from 0 to {last} for {run}", max(self.clients))
        inputs = self.data.dataset.train.inputs
        if self.maximised and (inputs.dtype != torch.uint8 or inputs.ndim != 4):
            kind = f"{tuple(inputs.shape[1:])} of {str(inputs.dtype).removeprefix('torch.')}"
            raise ConfigError(
                f"--maximise must be left out for {run}, because it draws images, but inputs of "
                f"{self.data.dataset.name} are {kind}."
            )
        self.models: dict[str, Preferences] = {}
        self.pictures: dict[str, dict[str, Pictures]] = {layer: {} for layer in self.maximised}

    def at(self, module: ClientModule, client_id: int | None = None) -> None:
        """Look at one model, a client's or the server's, as its module stands."""
        label = label_of(client_id)
        preferences = self.models[label] = self.worker.preferences(module, client_id)
        if len(self.models) > MOST_MODELS:
            return
        for layer, neurons in self.maximised.items():
            classes = primary_classes(preferences.vectors[preferences.layers.index(layer)])[neurons]
            self.pictures[layer][label] = self._pictures(module.model, client_id, layer, neurons, classes)

    def _pictures(
        self, network: Any, client_id: int | None, layer: str, neurons: list[int], classes: Tensor
    ) -> Pictures:
        own = own_neurons(network, self._whole, layer)[neurons]
        here = own >= 0
        pixels = torch.full((len(neurons), *network.input_shape), torch.nan)
        before, after, images = torch.full((3, len(neurons)), torch.nan)
        if here.any():
            there, point = own[here].tolist(), layer_points(network)[layer].pre_act
            found = maximise(network, point, there, self._pixels, self.asked.ascent)
            pixels[here], before[here], after[here] = found
            images[here] = largest(network, point, there, torch.cat(self.worker.probe_images(client_id)))
        return Pictures(pixels, before, after, images, classes)

    @cached_property
    def _pixels(self) -> PixelRange:
        raw = torch.zeros((1, *self.data.dataset.input_shape), dtype=torch.uint8, device=self.data.device)
        return PixelRange(self.data.plain(raw), self.data.plain(raw + 255))


def label_of(client_id: int | None = None) -> str:
    """Name a client, or the server, in what is drawn."""
    return SERVER if client_id is None else f"client {client_id}"
