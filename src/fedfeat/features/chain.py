"""Networks as a plain chain of weighted layers, which is what neuron matching works on."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fedfeat.errors import UserError
from fedfeat.features.neurons import Layer, gather_inputs, gather_outputs
from fedfeat.models.network import Network

_BETWEEN = (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Dropout, nn.Dropout2d, nn.Flatten)
"""Layers that act on every channel, or every feature, alike."""
_RULE = "model must be a chain of plain convolutions and linear layers (vgg9, mnist_cnn, mlp) where neurons are matched"


def chain_layers(network: nn.Module) -> tuple[str, ...]:
    """Name the weighted layers of a network from input to logits.

    Raises:
        UserError: The network is no chain of convolutions and linear layers: it has a normalisation, residual links,
            groups, a layer of another kind, or tensors outside its blocks, as a fusion of features has.
    """
    names = []
    blocks = network.blocks() if isinstance(network, Network) else []
    for name, block in blocks:
        part = "encoder" if name in dict(cast(nn.Module, network.encoder).named_children()) else "head"
        for child, layer in block.named_children():
            if isinstance(layer, nn.Conv2d | nn.Linear) and getattr(layer, "groups", 1) == 1:
                names.append(f"{part}.{name}.{child}")
            elif not isinstance(layer, _BETWEEN):
                raise UserError(f"{_RULE}, but block {name} has a {type(layer).__name__}.")
    # What is in no layer would never be sent.
    outside = [key for key in network.state_dict() if key.rpartition(".")[0] not in names]
    if outside:
        raise UserError(f"{_RULE}, but {outside[0]} belongs to none of its layers.")
    return tuple(names)


def layer_of(params: dict[str, Tensor], name: str) -> Layer:
    """Give the weight and bias of a layer."""
    return Layer(params[f"{name}.weight"], params.get(f"{name}.bias"))


def as_params(name: str, layer: Layer) -> dict[str, Tensor]:
    """Give a layer under its names; the inverse of `layer_of`."""
    bias = {} if layer.bias is None else {f"{name}.bias": layer.bias}
    return {f"{name}.weight": layer.weight, **bias}


def as_model(names: Sequence[str], layers: Sequence[Layer]) -> dict[str, Tensor]:
    """Give all layers of a network under their names."""
    named = (as_params(name, layer) for name, layer in zip(names, layers, strict=True))
    return {key: tensor for params in named for key, tensor in params.items()}


def sliced(
    model: dict[str, Tensor], layers: Sequence[str], assignments: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Give the global model in a client's own widths and order.

    Args:
        model: The global model.
        layers: Names of its layers.
        assignments: The client's, of all layers but the last; none where the model has its widths already.
    """
    own: list[Layer] = []
    for n, name in enumerate(layers):
        layer = layer_of(model, name)
        if n and assignments:
            width = len(layer_of(model, layers[n - 1]).weight)
            layer = layer._replace(weight=gather_inputs(layer.weight, assignments[n - 1], width))
        if n < len(assignments):
            layer = gather_outputs(layer, assignments[n])
        own.append(layer)
    return as_model(layers, own)


def fit_shapes(network: nn.Module, params: dict[str, Tensor]) -> bool:
    """Give the layers of a network the widths of some parameters, keeping device and layout; the values are arbitrary.

    Args:
        network: Changed in place.
        params: Weights and biases by name.

    Returns:
        Whether a shape has changed.
    """
    changed = False
    for key, wanted in params.items():
        name, _, kind = key.rpartition(".")
        layer = network.get_submodule(name)
        old = layer.get_parameter(kind)
        if old.shape == wanted.shape:
            continue
        changed = True
        layout = torch.contiguous_format if old.is_contiguous() else torch.channels_last
        empty = torch.empty(wanted.shape, dtype=old.dtype, device=old.device, memory_format=layout)
        setattr(layer, kind, nn.Parameter(empty))
        if kind == "weight":
            outputs, inputs = wanted.shape[:2]
            if isinstance(layer, nn.Conv2d):
                layer.out_channels, layer.in_channels = outputs, inputs
            elif isinstance(layer, nn.Linear):
                layer.out_features, layer.in_features = outputs, inputs
    return changed
