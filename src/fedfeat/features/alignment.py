"""Representations of shared inputs as they are made, and as they are sent to be compared."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedfeat.features.kernels import Kernel


def represented(represent: Callable[[Tensor], Tensor], inputs: Tensor, part: int) -> Tensor:
    """Represent inputs part by part, as float32 (m, d), which is held once.

    Args:
        represent: Gives (B, ...) of inputs (B, ...).
        inputs: (m, ...), at least one.
        part: Inputs at once.
    """
    found: Tensor | None = None
    for start in range(0, len(inputs), part):
        rows = represent(inputs[start : start + part]).flatten(1)
        if found is None:
            found = rows.new_empty(len(inputs), rows.shape[1], dtype=torch.float32)
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
