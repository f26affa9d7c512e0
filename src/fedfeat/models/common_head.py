"""Networks of any architecture with one last layer: the same input width, the same name."""

from collections import OrderedDict

from torch import nn

from fedfeat.models.draws import draw_layers
from fedfeat.models.network import DROPOUTS, Network


def with_common_head(network: Network, width: int) -> Network:
    """Make everything in front of the last layer the encoder, and the head a single layer that reads ``width`` numbers.

    Features of another width are averaged over neighbours to it, without parameters, as in TsingZ0/HtFLlib.

    Args:
        network: The network, whose layers are taken; its last one is drawn anew where its width differs.
        width: What ``head.last.linear`` reads.
    """
    blocks = [(name, OrderedDict(block.named_children())) for name, block in network.blocks()]
    _, last = blocks[-1][1].popitem()
    # A dropout in front of the last layer belongs to it, as in `Network.representation`.
    head: list[tuple[str, nn.Module]] = []
    while blocks and (not blocks[-1][1] or isinstance(next(reversed(blocks[-1][1].values())), DROPOUTS)):
        if blocks[-1][1]:
            head.insert(0, blocks[-1][1].popitem())
        else:
            blocks.pop()
    assert isinstance(last, nn.Linear)
    if last.in_features != width:
        blocks.append(("features", OrderedDict(pool=nn.AdaptiveAvgPool1d(width))))
        last = _last_layer(width, network)
    encoder = [(name, nn.Sequential(layers)) for name, layers in blocks]
    classifier = nn.Sequential(OrderedDict([*head, ("linear", last)]))
    made = Network(encoder, [("last", classifier)], network.input_shape, network.num_classes)
    made.draw = network.draw
    return made


def _last_layer(width: int, network: Network) -> nn.Linear:
    """Draw a last layer as the network's own has been."""
    layer = nn.Linear(width, network.num_classes)
    draw_layers(layer, network.draw)
    return layer
