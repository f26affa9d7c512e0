"""Centred kernel alignment (CKA): how alike two representations of the same instances are.

Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML 2019, with the biased HSIC of that
paper or the unbiased one of Song et al., "Feature Selection via Dependence Maximization", JMLR 2012 (Eq. 5). With
K and L double-centred, p and q their diagonals and <K, L> the sum of the products of their entries:

    biased     <K, L> / (m - 1)^2
    unbiased   (<K, L> - m / (m - 2) p.q + sum(p) sum(q) / ((m - 1) (m - 2))) / (m (m - 3))
    CKA        HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))

The second line is Song's formula, which takes the diagonals out, shortened: it is blind to centring, and a row of a
centred kernel without its diagonal sums to minus that entry. Hence linear kernels need no matrix over instances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fedfeat.features.kernels import Kernel

Hsic = Literal["biased", "unbiased"]

FEWEST = {"biased": 2, "unbiased": 4}
"""Instances that the denominators of the estimators need."""
ROUNDINGS = 32
"""HSIC(K, K) of at most so many rounding errors of <K, K> / m^2 is 0; this project's choice."""


def hsic(k: Kernel, other: Kernel, estimator: Hsic = "biased") -> Tensor:
    """Estimate the Hilbert-Schmidt independence criterion, a scalar.

    Args:
        k: One kernel.
        other: Another, of the same instances.
        estimator: See the module; the mean of ``unbiased`` over random subsets is its value on all instances.
    """
    _check(estimator, k, other)
    k, other = _alike(k.centred(), other.centred())
    return _estimate(k.inner(other), k.diagonal(), other.diagonal(), estimator)


def cka(k: Kernel, other: Kernel, estimator: Hsic = "biased") -> Tensor:
    """Compute centred kernel alignment, a scalar: 1 for kernels that differ by a factor and a constant.

    The biased one is from 0 to 1, the unbiased one may be as low as -1. Rotating, scaling or shifting a
    representation changes nothing; other linear maps do. Where a kernel is constant, or for ``unbiased`` has no
    structure off its diagonal, there is nothing to align: CKA is 0, and so are its gradients.

    Args:
        k: One kernel.
        other: Another, of the same instances.
        estimator: See `hsic`.
    """
    return Target(other, estimator).cka(k)


def cka_matrix(kernels: Sequence[Kernel], estimator: Hsic = "biased") -> Tensor:
    """Compute `cka` of all pairs of kernels, (n, n), symmetric.

    Args:
        kernels: n kernels of the same instances.
        estimator: See `hsic`.
    """
    found = torch.empty(len(kernels), len(kernels), dtype=torch.float64)
    for i, kernel in enumerate(kernels):
        target = Target(kernel, estimator)
        for j, other in enumerate(kernels[: i + 1]):
            found[i, j] = found[j, i] = target.cka(other)
    return found


def mean_of_pairs(matrix: Tensor) -> float:
    """Average a symmetric matrix (n, n) over the pairs of two different ones; NaN of a single one."""
    n = len(matrix)
    return float(matrix[~torch.eye(n, dtype=torch.bool)].mean())


class Target:
    """One side of CKA that stays the same while the other changes: what depends on it alone is computed once.

    Args:
        kernel: The kernel; gradients go through it as in `cka`.
        estimator: See `hsic`.
    """

    def __init__(self, kernel: Kernel, estimator: Hsic = "biased") -> None:
        _check(estimator, kernel)
        self._estimator = estimator
        self._kernel = kernel.centred().scaled()
        self._own = _self_hsic(self._kernel, estimator)

    def cka(self, k: Kernel) -> Tensor:
        """Compute `cka` of a kernel with this one."""
        _check(self._estimator, k, self._kernel)
        k, other = _alike(k.centred().scaled(), self._kernel)
        cross = _estimate(k.inner(other), k.diagonal(), other.diagonal(), self._estimator)
        return _ratio(cross, _self_hsic(k, self._estimator), self._own)


def _alike(k: Kernel, other: Kernel) -> tuple[Kernel, Kernel]:
    """Give both in the wider of their types."""
    dtype = torch.promote_types(k.values.dtype, other.values.dtype)
    return Kernel(k.values.to(dtype), k.dense), Kernel(other.values.to(dtype), other.dense)


def _self_hsic(k: Kernel, estimator: str) -> Tensor:
    """Give HSIC(K, K) >= 0 of a centred kernel, exactly 0 where only rounding errors are left of it."""
    inner, diagonal = k.inner(k), k.diagonal()
    value = _estimate(inner, diagonal, diagonal, estimator)
    floor = ROUNDINGS * torch.finfo(inner.dtype).eps * inner / k.num_instances**2
    return torch.where(value <= floor, 0.0, value)


def _estimate(inner: Tensor, p: Tensor, q: Tensor, estimator: str) -> Tensor:
    """Give the HSIC of two centred kernels by <K, L> (scalar) and their diagonals (m,)."""
    m = len(p)
    if estimator == "biased":
        return inner / (m - 1) ** 2
    without_diagonals = inner - m / (m - 2) * (p * q).sum()
    return (without_diagonals + p.sum() * q.sum() / ((m - 1) * (m - 2))) / (m * (m - 3))


def _ratio(cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Give cross / sqrt(left right), 0 where left or right is 0; values that are not finite stay visible."""
    nothing = (left == 0) | (right == 0)
    ratio = cross / torch.where(nothing, 1.0, left).sqrt() / torch.where(nothing, 1.0, right).sqrt()
    return torch.where(nothing, 0.0, ratio)


def _check(estimator: str, *kernels: Kernel) -> None:
    sizes = [kernel.num_instances for kernel in kernels]
    if len(set(sizes)) > 1:
        both = f"{sizes[0]} and {sizes[1]}"
        raise ValueError(f"The kernels must be of the same instances, but they have {both}.")
    least = FEWEST[estimator]
    if sizes[0] < least:
        raise ValueError(f"The {estimator} HSIC must have at least {least} instances, but it has {sizes[0]}.")
