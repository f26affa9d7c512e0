"""A second network that trains beside the first."""

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedfeat.params import copy_into


class Twin(nn.Module):
    """A copy of a network that trains beside it, and whose dropout draws what the network's own will draw next.

    So run it before the network, on the same batch: both have the same masks, and the network has those that it would
    have without a twin. As a part of a client half it follows the half's device and is stacked with it.

    Args:
        network: What is copied; stays as it is.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = deepcopy(network)

    def fill(self, source: Mapping[str, Tensor]) -> None:
        """Take tensors of a network by name, all or some.

        Raises:
            ValueError: A name or a shape is not the copy's; nothing has been changed then.
        """
        copy_into(self.network, dict(source))

    def named_tensors(self) -> dict[str, Tensor]:
        """Give the parameters by the names that they have in the network copied."""
        return dict(self.network.named_parameters())

    def forward(self, inputs: Tensor, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
        """Give what the network gives of inputs (B, ...), with other tensors where given, by name."""
        if not self.training:
            return self.run(inputs, tensors)
        with torch.random.fork_rng([inputs.device] if inputs.is_cuda else []):
            return self.run(inputs, tensors)

    def run(self, inputs: Tensor, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
        """As `forward`, but draw like any network: the form for stacks, whose masks are drawn outside."""
        if tensors is None:
            return self.network(inputs)
        return functional_call(self.network, dict(tensors), (inputs,))


def own_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give a twin's tensors, of its ``state_dict``, by the names that they have in the network copied."""
    return {key.removeprefix("network."): tensor for key, tensor in tensors.items()}
