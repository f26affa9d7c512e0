"""Tensors beside a network that do not train: what was received, what is compared with, what corrects a gradient."""

from collections.abc import Mapping
from copy import deepcopy

from torch import Tensor, nn

from fedfeat.params import copy_into


class FrozenCopy(nn.Module):
    """A copy of a network that is never trained and always in eval mode.

    As a part of a client half it follows the half's device and is stacked with it (`executor=vectorized`); as a part of
    a network it has no share in what is sent or kept (policy ``dropped``).

    Args:
        network: What is copied; stays as it is.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = deepcopy(network).requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "FrozenCopy":
        """Stay in eval mode: statistics do not move and nothing is dropped."""
        return super().train(False)

    def fill(self, source: nn.Module | Mapping[str, Tensor]) -> None:
        """Take the tensors of a network, or some of them by name.

        Raises:
            ValueError: A name or a shape is not the copy's; nothing has been changed then.
        """
        copy_into(self.network, dict(source.state_dict() if isinstance(source, nn.Module) else source))

    def named_tensors(self) -> dict[str, Tensor]:
        """Give the tensors that are parameters of the network copied, by name."""
        return dict(self.network.named_parameters())

    def forward(self, *inputs: Tensor) -> Tensor:
        """Give what the copied network gives."""
        return self.network(*inputs)


def frozen_keys(module: nn.Module) -> list[str]:
    """Name the tensors of frozen copies in a module's state_dict."""
    copies = [name for name, part in module.named_modules() if isinstance(part, FrozenCopy)]
    prefixes = tuple(f"{name}." for name in copies)
    return [key for key in module.state_dict() if key.startswith(prefixes)] if prefixes else []
