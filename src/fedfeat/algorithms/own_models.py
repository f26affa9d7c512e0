"""What methods share whose clients keep a whole model of their own beside the server's."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.func import functional_call, grad_and_value

from fedfeat.client import ClientModule
from fedfeat.errors import ConfigError
from fedfeat.models.clipping import Bound
from fedfeat.models.twin import Twin
from fedfeat.types import Params


class OwnModel(NamedTuple):
    """Memory: a client's own model, under the names of the network's tensors."""

    params: dict[str, Tensor]


class Precise(nn.Module):
    """Buffers that go where the module goes, but never to half precision, in which small steps of theirs are none."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for name, tensor in self.named_buffers(recurse=False):
            moved = fn(tensor)
            if moved.is_floating_point():
                # Of the tensor itself, for what was moved is rounded already.
                moved = tensor.to(moved.device, torch.promote_types(moved.dtype, torch.float32))
            setattr(self, name, moved)
        return self


def refuse_personal(method: str, personal: Sequence[str]) -> None:
    """Refuse parts that stay with the client where it keeps a whole model anyway.

    Raises:
        ConfigError: There are some.
    """
    if personal:
        rule = f"be empty for {method}, whose clients keep a whole model each"
        raise ConfigError.rule("algorithm.client.personal", rule, list(personal))


class TwinClient(ClientModule):
    """FedAvg's client that trains a model of its own, ``own``, in one fit with the common one.

    Attributes:
        method: Name of the method, for a refusal.

    Args:
        arguments: As in `ClientModule`, without parts that stay with the client.
    """

    method: ClassVar[str]
    keeps_model = True
    apart = None  # both models are in the state dict, so turns can be stacked

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        refuse_personal(self.method, arguments.get("personal", ()))
        self.own = Twin(self.model)

    def clip(self, gradients: Params, bound: Bound, tensors: Params) -> None:
        """Clip each model's gradients by themselves, so that w's are those of FedAvg."""
        for part in ("own.", "model."):
            bound([name for name in gradients if name.startswith(part)])

    def turn_metrics(self) -> dict[str, float]:
        """As `ClientModule`, with the FLOPs of both models; ``train/loss`` is the sum of their objectives."""
        metrics = super().turn_metrics()
        metrics["flops"] += self._num_seen * self.flops_per_example
        return metrics


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
