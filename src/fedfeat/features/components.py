"""Principal components of kernels: what CKA compares, drawn in a plane.

With the centred kernel H K H = V diag(l) V^T, l falling, the components of its m instances are V diag(sqrt(l)) (kernel
PCA, Schoelkopf et al. 1998); of a linear kernel they are the PCA of the representation. Rotating or mirroring a
representation changes neither its kernel nor CKA, but it turns such a picture: `turned_to` undoes that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedfeat.features.kernels import Kernel


@torch.no_grad()
def principal_components(kernel: Kernel, number: int = 2) -> tuple[Tensor, Tensor]:
    """Give the first components (m, number), and the share of the variance that each holds, (number,); float64.

    Components beyond the rank are 0, and so are all shares of a constant. The entry of a component that is furthest
    from 0 is positive, so that equal kernels give equal components.

    Args:
        kernel: Of m instances.
        number: How many components, at most m.
    """
    if not 1 <= number <= kernel.num_instances:
        raise ValueError(f"number must be from 1 to {kernel.num_instances}, but it is {number}.")
    lengths, vectors = torch.linalg.eigh(kernel.centred(torch.float64).matrix())
    lengths, vectors = lengths.flip(0).clamp(min=0.0), vectors.flip(1)
    first, total = lengths[:number], lengths.sum()
    # Of equal entries, and of opposite ones, the first one decides.
    furthest = vectors[:, :number].abs().round(decimals=9).argmax(dim=0)
    signs = vectors[furthest, torch.arange(number)].sign()
    return vectors[:, :number] * signs * first.sqrt(), first / torch.where(total == 0, 1.0, total)


def turned_to(components: Tensor, reference: Tensor) -> Tensor:
    """Turn and mirror components (m, n) so that they lie as near to others (m, n) as that alone can bring them."""
    left, _, right = torch.linalg.svd(components.T @ reference)
    return components @ (left @ right)
