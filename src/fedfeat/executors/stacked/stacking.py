"""Many models of one architecture as one: their tensors stacked along a new first axis, (K, *)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedfeat.data.batches import PADDED
from fedfeat.executors.stacked.dropout import DropoutCall
from fedfeat.executors.stacked.norms import BatchNorm, at_rest, batch_norms, normalised, resting_norms
from fedfeat.models.twin import Twin

if TYPE_CHECKING:
    from fedfeat.types import Params

ELEMENTWISE = (
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam),
    *(torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Adadelta, torch.optim.Rprop),
)
"""Optimizers that step every number by itself and have no state before their first step."""


def repeated(params: Params, count: int) -> Params:
    """Stack ``count`` copies of tensors (*), (count, *)."""
    layout = torch.contiguous_format
    return {
        key: tensor.detach().expand(count, *tensor.shape).clone(memory_format=layout)
        for key, tensor in params.items()
    }


@torch.no_grad()
def write_row(stack: Params, index: int, params: Params) -> None:
    """Write one model's tensors (*) into a stack (K, *), in place; entries that the stack lacks are passed over."""
    torch._foreach_copy_([tensor[index] for tensor in stack.values()], [params[key] for key in stack])


@torch.no_grad()
def narrow(optimizer: torch.optim.Optimizer, full: dict[nn.Parameter, Tensor], count: int) -> None:
    """Go on with the first ``count`` models, at most as many as until now.

    Their parameters and the state of their optimizer, an elementwise one, become views of those in ``full``: from every
    stacked parameter to its tensor of all models, which keeps what the others have reached.
    """
    for parameter, tensor in full.items():
        state = optimizer.state.get(parameter, {})
        per_model = [k for k, v in state.items() if isinstance(v, Tensor) and v.shape == parameter.shape]
        for key in per_model:
            state[key] = state[key][:count]
        parameter.grad = None
        parameter.data = tensor[:count]


def restack(optimizer: torch.optim.Optimizer, stacked: dict[nn.Parameter, nn.Parameter]) -> None:
    """Have an optimizer that has made no step yet work on stacked parameters.

    It was made for the parameters of one model, from which ``stacked`` leads to the stacked ones. So what it treats by
    the shape of a single model's parameter, such as biases, stays apart.
    """
    for group in optimizer.param_groups:
        group["params"] = [stacked[parameter] for parameter in group["params"]]


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Compute what ``nn.Linear`` does, but by the product whose gradient has the layout of the weights.

    Stacked, the other one's is copied into that layout at every step: 40 % of the time of an MLP's step on a CPU.
    """
    if x.dim() != 2:
        return type(layer).forward(layer, x)
    product = (layer.weight @ x.mT).mT
    return product if layer.bias is None else product + layer.bias


class Objective(nn.Module):
    """A client half whose forward pass is its local objective, as `functional_call` wants it."""

    def __init__(self, client: Any, calls: Sequence[DropoutCall] = (), unused: Collection[str] = ()) -> None:
        """Keep the client half.

        Args:
            client: A `client.ClientModule`.
            calls: The dropout of one forward pass.
            unused: Parameters that the objective does not depend on, which no optimizer changes then.
        """
        super().__init__()
        self.client = client
        self.calls, self.unused = calls, frozenset(unused)
        self._waiting: list[Tensor] = []
        self._real: Tensor | None = None
        self._moved: Params = {}
        norms = batch_norms(self)
        self.moving = [
            f"{path}.{name}"
            for path, layer in norms.items()
            for name, _ in layer.named_buffers(recurse=False)
        ]
        # Kept, for a compiled step is only good for the very functions that it was made from.
        self._forms: dict[nn.Module, Callable[..., Tensor]] = {
            layer: partial(_linear, layer) for layer in client.modules() if type(layer) is nn.Linear
        }
        self._forms |= {call.layer: self._masked for call in calls}
        self._forms |= {layer: partial(self._normalised, path, layer) for path, layer in norms.items()}
        self._forms |= {layer: partial(at_rest, layer) for layer in resting_norms(client)}
        self._forms |= {twin: twin.run for twin in client.modules() if isinstance(twin, Twin)}

    def forward(self, inputs: Tensor, labels: Tensor, masks: Sequence[Tensor] = ()) -> tuple[Tensor, Params]:
        """Loss, a scalar, of inputs (B, ...) and labels (B,), with the mask (B, ...) of each call of dropout.

        Beside it, what follows the buffers that move.
        """
        self._waiting, self._real, self._moved = list(masks), labels != PADDED, {}
        loss = self.client.loss((inputs, labels))
        # Nothing of a step may stay: a compiled one would have to give it back.
        moved, self._real, self._moved = self._moved, None, {}
        return loss, moved

    @contextmanager
    def stacked_forms(self) -> Iterator[None]:
        """Have layers compute in the form that is for stacks, in the plain layout, and multiply by given masks."""
        for layer, forward in self._forms.items():
            layer.forward = forward
        channels_last, self.client.channels_last = self.client.channels_last, False
        try:
            yield
        finally:
            self.client.channels_last = channels_last
            for layer in self._forms:
                del layer.forward

    def _masked(self, x: Tensor) -> Tensor:
        return x * self._waiting.pop(0)

    def _normalised(self, path: str, layer: BatchNorm, x: Tensor) -> Tensor:
        real = self._real
        # Inputs of another number are not those of the batch, so none of them is padding.
        if real is None or len(x) != len(real):
            real = torch.ones(len(x), dtype=torch.bool, device=x.device)
        running = {
            name: self._moved.get(f"{path}.{name}", buffer)
            for name, buffer in layer.named_buffers(recurse=False)
        }
        out, moved = normalised(layer, x, real, running)
        self._moved |= {f"{path}.{name}": tensor for name, tensor in moved.items()}
        return out


def gradients(
    objective: Objective, own: Params, fixed: Params, inputs: Tensor, labels: Tensor, masks: Sequence[Tensor]
) -> tuple[Params, Tensor, Params]:
    """Compute gradients (K, *) and losses (K,) of K models, each on a batch of its own, and what follows their buffers.

    Args:
        objective: Around the client half, within its `Objective.stacked_forms`.
        own: Tensors (K, *) to differentiate by, under the names of the objective's.
        fixed: More of them; what is in neither is common to all.
        inputs: (K, B, ...).
        labels: (K, B).
        masks: The masks of each call of dropout, (K, B, ...).
    """

    def loss(own: Params, fixed: Params, x: Tensor, y: Tensor, masks: list[Tensor]) -> tuple[Tensor, Params]:
        return functional_call(objective, own | fixed, (x, y, masks))

    found, (losses, moved) = vmap(grad_and_value(loss, has_aux=True))(own, fixed, inputs, labels, list(masks))
    return found, losses, moved
