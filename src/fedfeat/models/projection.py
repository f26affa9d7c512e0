"""A projection head: a small network between a network's representation and its last layer (MOON, section 3.1)."""

from collections import OrderedDict

from torch import nn

from fedfeat.errors import ConfigError
from fedfeat.models.draws import draw_layers
from fedfeat.models.grouped import GroupedNetwork
from fedfeat.models.network import Network


def project(network: Network, width: int) -> None:
    """Put two linear layers with a ReLU between them in front of the last layer, which is made anew for them.

    Args:
        network: The network, changed in place: its representation has ``width`` numbers then.
        width: Outputs of the projection.

    Raises:
        ConfigError: The network has groups, which would meet in the projection, or its last layer is frozen.
    """
    if isinstance(network, GroupedNetwork):
        rule = "be null for a network with groups, which would meet in the projection"
        raise ConfigError.rule("algorithm.client.projection", rule, width)
    last = network.last_layer
    if last in network.frozen:
        rule = "leave the last layer to train beside algorithm.client.projection, which draws a new one"
        raise ConfigError.rule("model.freeze", rule, network.last_layer_name)
    before = last.in_features
    into, out = nn.Linear(before, before), nn.Linear(before, width)
    path, _, name = network.last_layer_name.rpartition(".")
    block = network.get_submodule(path)
    children = [child for child in block.named_children() if child[0] != name]
    classifier = nn.Linear(width, last.out_features, bias=last.bias is not None)
    for layer in (into, out, classifier):
        draw_layers(layer, network.draw)
    projection = nn.Sequential(OrderedDict([("in", into), ("relu", nn.ReLU()), ("out", out)]))
    whole = [*children, ("projection", projection), (name, classifier)]
    setattr(network.head, path.removeprefix("head."), nn.Sequential(OrderedDict(whole)))
