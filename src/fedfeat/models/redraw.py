"""Initial weights of a network, drawn once more."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

from fedfeat.models.draws import draw_layers
from fedfeat.models.network import Network
from fedfeat.params import snapshot


def drawn_again(network: nn.Module, seed: int) -> dict[str, Tensor]:
    """Draw weights of a network anew, layer by layer, as its builder does.

    Args:
        network: The network, of layers that can reset themselves; stays as it is. What is not trained stays, too.
        seed: Of the draws.
    """
    # On the CPU, for another device's generator draws other numbers.
    model = deepcopy(network).cpu()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for layer in model.modules():
            reset: Callable[[], None] | None = getattr(layer, "reset_parameters", None)
            if reset and any(parameter.requires_grad for parameter in layer.parameters(recurse=False)):
                reset()
        if isinstance(model, Network):
            draw_layers(model, model.draw)
    return snapshot(model)
