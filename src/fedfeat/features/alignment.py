"""Representations of shared inputs: how they are made, how they are sent, and a term that aligns them."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedfeat.features.cka import Hsic, Target, cka
from fedfeat.features.kernels import Kernel, KernelName, kernel_of

PART = 128
"""Shared inputs that pass through a network at once on a CPU: activations of thousands leave its caches and are given
back to the system after every step, which made a step with 2,000 inputs 3.5 times as long (fedrep_cnn10)."""


def represented(represent: Callable[[Tensor], Tensor], inputs: Tensor, part: int) -> Tensor:
    """Represent inputs part by part, as float32 or float64 (m, d), which is held once.

    Args:
        represent: Gives (B, ...) of inputs (B, ...).
        inputs: (m, ...), at least one.
        part: Inputs at once.
    """
    found: Tensor | None = None
    for start in range(0, len(inputs), part):
        rows = represent(inputs[start : start + part]).flatten(1)
        if found is None:
            dtype = torch.promote_types(rows.dtype, torch.float32)
            found = rows.new_empty(len(inputs), rows.shape[1], dtype=dtype)
        found[start : start + part] = rows
    assert found is not None
    return found


def centred_kernel_(representation: Tensor) -> Kernel:
    """Give the linear kernel of a representation (m, d), centred, in no more than m x min(m, d) numbers.

    The representation is overwritten, hence peaks stay at it and the result. Centring changes no comparison; rbf
    kernels follow from the inner products in it.
    """
    # As in `Kernel.centred`: the shift leaves no rounding errors of a constant.
    representation.sub_(representation[:1].clone())
    representation.sub_(representation.mean(dim=0))
    return Kernel(representation, dense=False).compact()


class AlignmentTerm:
    """``1 - CKA(K(A), Kbar)`` of shared inputs in one fit, where A is their representation by the model as it is.

    Args:
        kernel: See `features.kernels.kernel_of`.
        sigma_factor: Of rbf kernels.
        hsic: See `features.cka.hsic`.
        batch: Inputs in the term at a step, drawn anew for each; None takes all of them.
        whole: Whether inputs have to pass through the network together (`models.freezing.mixes_examples`).

    Attributes:
        num_inputs: Inputs that have passed in terms so far.
        num_targets: Those that have passed for the target.
    """

    def __init__(
        self, kernel: KernelName, sigma_factor: float, hsic: Hsic, batch: int | None, whole: bool = False
    ) -> None:
        self._kernel_name, self._sigma_factor, self._hsic = kernel, sigma_factor, hsic
        self._batch, self._whole = batch, whole
        self.begin()

    def begin(self) -> None:
        """Start a fit without inputs."""
        self.num_inputs = self.num_targets = 0
        self.forget()

    def forget(self) -> None:
        """Drop inputs and target."""
        self._inputs = torch.empty(0)
        self._target_of: Callable[[Tensor], Kernel] | None = None
        self._fixed: Target | None = None

    @torch.no_grad()
    def fix(self, inputs: Tensor, target: Kernel | None, represent: Callable[[Tensor], Tensor]) -> None:
        """Set the inputs (m, ...) and the target of a fit; without one it is the kernel of the model as it is now.

        Args:
            inputs: As the network reads them.
            target: Kbar, or None.
            represent: Gives (B, d) of inputs (B, ...), here in eval mode.
        """
        self.forget()
        self._inputs = inputs
        if self._batch is None or self._batch >= len(inputs):
            # What depends on the target alone is computed once.
            whole = self._kernel_of(self._received(inputs, represent)) if target is None else target
            self._fixed = Target(whole, self._hsic)
        elif target is None:
            # Of some inputs an rbf kernel has the width of just these, as the other side of the term has: so the term
            # is 0 and has no gradient where the model has not moved.
            own = self._received(inputs, represent)
            self._target_of = lambda rows: self._kernel_of(own[rows])
        else:
            self._target_of = target.restrict

    def _received(self, inputs: Tensor, represent: Callable[[Tensor], Tensor]) -> Tensor:
        """Represent the inputs by the model as it is before the fit, (m, d)."""
        self.num_targets = len(inputs)
        return represented(lambda some: self._in_parts(represent, some), inputs, self._batch or len(inputs))

    def distance(self, represent: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute the term, a scalar, for the random part of the shared inputs that this step takes."""
        if self._fixed is not None:
            return 1.0 - self._fixed.cka(self._kernel(represent, self._inputs))
        rows = torch.randperm(len(self._inputs))[: self._batch].to(self._inputs.device)
        kernel = self._kernel(represent, self._inputs[rows])
        assert self._target_of is not None  # `fix` comes first
        return 1.0 - cka(kernel, self._target_of(rows), self._hsic)

    def _kernel(self, represent: Callable[[Tensor], Tensor], inputs: Tensor) -> Kernel:
        self.num_inputs += len(inputs)
        return self._kernel_of(self._in_parts(represent, inputs))

    def _kernel_of(self, representation: Tensor) -> Kernel:
        return kernel_of(representation, self._kernel_name, self._sigma_factor)

    def _in_parts(self, represent: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        whole = self._whole or inputs.device.type != "cpu"
        return torch.cat([represent(part) for part in inputs.split(len(inputs) if whole else PART)])
