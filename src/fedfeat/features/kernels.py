"""Kernels of representations: how alike the instances of a set are to a network, as a matrix over their pairs.

Linear kernels stay factors, so that nothing of size (m, m) is made where representations are narrower than the set.
Everything is computed in float32, or float64 where an input is, also under autocast.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedfeat.features.matrices import double_centred, gaussian, quadratic

KernelName = Literal["linear", "rbf"]
KernelNorm = Literal["none", "fro"]


class Kernel(NamedTuple):
    """A symmetric positive semi-definite matrix over m instances, whole or as factors.

    Attributes:
        values: Factors F (m, r) of F F^T, or the matrix itself (m, m).
        dense: Whether it is the matrix itself.
    """

    values: Tensor
    dense: bool

    @property
    def num_instances(self) -> int:
        """The m of an (m, m) matrix."""
        return self.values.shape[0]

    def restrict(self, rows: Tensor) -> Kernel:
        """Give the kernel of some instances.

        Args:
            rows: Their indices, int64 (n,).
        """
        return Kernel(self.values[rows[:, None], rows] if self.dense else self.values[rows], self.dense)

    def matrix(self) -> Tensor:
        """Give the matrix (m, m)."""
        with full_precision(self.values):
            return self.values if self.dense else self.values @ self.values.T

    def diagonal(self) -> Tensor:
        """Give the diagonal (m,)."""
        return self.values.diagonal() if self.dense else self.values.square().sum(dim=1)

    def inner(self, other: Kernel) -> Tensor:
        """Give the sum over all pairs of instances of the product of both entries, a scalar.

        For factors that is |F^T G|^2, which takes r times s numbers instead of m times m.
        """
        with full_precision(self.values):
            if self is other and self.dense:
                return self.values.square().sum()
            if self.dense and other.dense:
                return (self.values * other.values).sum()
            if self.dense:
                return quadratic(self.values, other.values)
            if other.dense:
                return other.inner(self)
            return (self.values.T @ other.values).square().sum()

    def centred(self, dtype: torch.dtype = torch.float32) -> Kernel:
        """Give H K H with H = I - 1 1^T / m; as a matrix if the factors are wider than m.

        A constant representation or matrix becomes exactly 0.

        Args:
            dtype: Compute in this type, or in that of the values where it is wider.
        """
        values = self.values.to(torch.promote_types(self.values.dtype, dtype))
        if self.dense:
            return Kernel(double_centred(values), dense=True)
        # A shift that centring undoes; a constant leaves no rounding errors behind then, and large means fewer.
        values = values - values[:1].detach()
        return Kernel(values - values.mean(dim=0), dense=False).compact()

    def compact(self) -> Kernel:
        """Give the same kernel in no more than (m, m) numbers: as a matrix if the factors are wider than m."""
        return Kernel(self.matrix(), dense=True) if self.values.shape[1] > self.num_instances else self

    def scaled(self) -> Kernel:
        """Divide by the largest absolute value, a constant to gradients, against over- and underflow."""
        peak = torch.stack(self.values.detach().aminmax()).abs().amax()
        return Kernel(self.values / torch.where(peak == 0, 1.0, peak), self.dense)


def full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """Switch autocast off where this tensor lives."""
    return torch.autocast(tensor.device.type, enabled=False)


def linear_kernel(representation: Tensor) -> Kernel:
    """Give K = A A^T, as factors.

    Args:
        representation: A, (m, d) or (m, ...).
    """
    dtype = torch.promote_types(representation.dtype, torch.float32)
    return Kernel(representation.to(dtype).flatten(1), dense=False)


def gaussian_kernel(linear: Kernel, sigma_factor: float) -> Kernel:
    """Give the `rbf_kernel` of a representation whose linear kernel is at hand, centred or not.

    Args:
        linear: The linear kernel.
        sigma_factor: See `rbf_kernel`.
    """
    # The scale does not change the result.
    return Kernel(gaussian(linear.scaled().matrix(), sigma_factor), dense=True)


def rbf_kernel(representation: Tensor, sigma_factor: float = 0.4) -> Kernel:
    """Give K_ab = exp(-|a - b|^2 / (2 sigma^2)), sigma a multiple of the median distance between two instances.

    The median is that of this very representation, the lower one of an even number, and has no gradient. Where it is
    0, as most instances coincide, the root mean square distance stands in; of a constant all entries are 1.

    Args:
        representation: (m, d) or (m, ...), at least two instances.
        sigma_factor: Kornblith et al. 2019 try 0.2, 0.4 and 0.8.
    """
    # The shift does not change the result either.
    return gaussian_kernel(linear_kernel(representation).centred(), sigma_factor)


def kernel_of(representation: Tensor, kernel: KernelName = "linear", sigma_factor: float = 0.4) -> Kernel:
    """Give the named kernel of a representation.

    Args:
        representation: (m, d) or (m, ...).
        kernel: See `linear_kernel` and `rbf_kernel`.
        sigma_factor: Of the latter.
    """
    return linear_kernel(representation) if kernel == "linear" else rbf_kernel(representation, sigma_factor)


class KernelMean:
    """The weighted mean of a stream of kernels, each centred, in the memory of one matrix.

    Centring changes no HSIC or CKA, of these instances or of some of them, and keeps large means out of the sum.
    Factors are put side by side while they are together narrower than m; then they are summed to a matrix.

    Args:
        kernel_norm: ``fro`` divides each centred kernel by its Frobenius norm, so that none counts more for its
            scale: aligning with the mean is then, up to a factor, the mean of the biased CKA with each of them.
            ``none`` is FedHeNN's plain sum.
    """

    def __init__(self, kernel_norm: KernelNorm = "none") -> None:
        self._norm = kernel_norm
        self._factors: list[Tensor] = []
        self._matrix: Tensor | None = None
        self._num_instances: int | None = None
        self._total = 0.0

    @torch.no_grad()
    def add(self, kernel: Kernel, weight: float = 1.0) -> None:
        """Add one kernel.

        Args:
            kernel: Of the same instances every time.
            weight: Its weight; a kernel of weight 0 changes nothing.

        Raises:
            ValueError: The weight is negative or not finite, or the number of instances is not the first kernel's.
        """
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight must be finite and at least 0, but it is {weight!r}.")
        m = kernel.num_instances
        if self._num_instances not in (None, m):
            raise ValueError(f"kernel must have {self._num_instances} instances, but it has {m}.")
        if weight == 0:
            return
        self._num_instances = m
        self._total += weight
        kernel = kernel.centred()
        if self._norm == "fro":
            kernel = _normalised(kernel)
        width = kernel.values.shape[1] + sum(values.shape[1] for values in self._factors)
        if self._matrix is None and not kernel.dense and width < m:
            self._factors.append(kernel.values * math.sqrt(weight))
            return
        if self._matrix is None:
            self._matrix = kernel.values.new_zeros(m, m)
        for values in self._factors:
            _accumulate(self._matrix, Kernel(values, dense=False))
        self._factors = []
        _accumulate(self._matrix, kernel, weight)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of positive weight was added."""
        return self._num_instances is None

    def result(self) -> Kernel:
        """Give the mean of what was added so far, as a new kernel.

        Raises:
            ValueError: Nothing of positive weight was added.
        """
        if self._matrix is not None:
            return Kernel(self._matrix / self._total, dense=True)
        if not self._factors:
            raise ValueError("A mean of kernels needs at least one of positive weight, but it has none.")
        return Kernel(torch.cat(self._factors, dim=1) / math.sqrt(self._total), dense=False)


def _normalised(kernel: Kernel) -> Kernel:
    """Divide by the Frobenius norm; a kernel of zeros stays one."""
    kernel = kernel.scaled()
    norm = kernel.inner(kernel).sqrt()
    norm = torch.where(norm == 0, 1.0, norm)
    return Kernel(kernel.values / (norm if kernel.dense else norm.sqrt()), kernel.dense)


def _accumulate(total: Tensor, kernel: Kernel, weight: float = 1.0) -> None:
    with full_precision(total):
        if kernel.dense:
            total.add_(kernel.values, alpha=weight)
        else:
            total.addmm_(kernel.values, kernel.values.T, alpha=weight)
