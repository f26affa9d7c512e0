"""What methods share whose clients keep a whole model of their own beside the server's."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.func import functional_call, grad_and_value
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from fedfeat.errors import ConfigError


class OwnModel(NamedTuple):
    """Memory: a client's own model, under the names of the network's tensors."""

    params: dict[str, Tensor]


def refuse_personal(method: str, personal: Sequence[str]) -> None:
    """Refuse parts that stay with the client where it keeps a whole model anyway.

    Raises:
        ConfigError: There are some.
    """
    if personal:
        rule = f"be empty for {method}, whose clients keep a whole model each"
        raise ConfigError.rule("algorithm.client.personal", rule, list(personal))


def clip_each(networks: Iterable[nn.Module], value: float | int | None, algorithm: str | None) -> None:
    """Clip the gradients of every network by its own norm, or by value, as a Trainer clips a single one's."""
    clip = clip_grad_value_ if algorithm == "value" else clip_grad_norm_
    for network in networks if value else ():
        clip(network.parameters(), value)  # type: ignore[arg-type]


def gradient_at(
    network: nn.Module, params: dict[str, Tensor], inputs: Tensor, loss: Callable[[Tensor], Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    """Give the gradient of a loss by a network's parameters, and the loss; within a step, also a stacked one.

    Args:
        network: Its form, and the tensors that ``params`` does not name.
        params: Where the gradient is taken, by name.
        inputs: (B, ...).
        loss: Of logits (B, num_classes), a scalar.
    """

    def objective(own: dict[str, Tensor]) -> Tensor:
        return loss(functional_call(network, own, (inputs,)))

    # Transforms know no `autograd.grad`; outside of them they know no batch norm and no hooks on saved tensors.
    if any(map(is_functorch_wrapped_tensor, params.values())):
        slopes, value = grad_and_value(objective)(params)
        return slopes, value.detach()
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
    with torch.enable_grad():
        value = objective(leaves)
    found = torch.autograd.grad(value, list(leaves.values()))
    return dict(zip(leaves, found, strict=True)), value.detach()
