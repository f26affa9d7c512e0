"""Steps on kernel matrices (m, m) whose gradients are written out: at m = 5,000 every pass over one counts.

Automatic differentiation takes, keeps and adds up a matrix for each operation of a formula, several times as many
passes as the formula needs, and a step of FedHeNN with an rbf kernel would be mostly that.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def double_centred(matrix: Tensor) -> Tensor:
    """Give H K H (m, m) with H = I - 1 1^T / m of a symmetric K; of a constant exactly 0."""
    return _DoubleCentred.apply(matrix)


def gaussian(gram: Tensor, sigma_factor: float) -> Tensor:
    """Give exp(-|a - b|^2 / (2 sigma^2)) of all pairs, (m, m); `kernels.rbf_kernel` says what sigma is.

    Args:
        gram: Inner products of all pairs, (m, m).
        sigma_factor: Multiple of the median distance.
    """
    return _Gaussian.apply(gram, sigma_factor)


def quadratic(matrix: Tensor, factors: Tensor) -> Tensor:
    """Give the sum of F * (K F), a scalar.

    Args:
        matrix: A symmetric K, (m, m).
        factors: F, (m, r).
    """
    if matrix.requires_grad:
        return ((matrix @ factors) * factors).sum()
    product = (matrix @ factors).detach()
    # The value, as 2 F - F = F, with the gradient 2 K F, for which no second product is needed.
    return (product * (2 * factors - factors.detach())).sum()


class _DoubleCentred(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        # Centring undoes any shift; by this one a constant leaves no rounding errors behind, and large means fewer.
        return _centre_(matrix - matrix[:1, :1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        # Centring is its own adjoint.
        return _centre_(slopes[0].clone())


def _centre_(matrix: Tensor) -> Tensor:
    """Subtract the means of rows and columns (m, m), in place."""
    by_row, by_column = matrix.mean(dim=1, keepdim=True), matrix.mean(dim=0)
    return matrix.sub_(by_row).sub_(by_column - by_column.mean())


class _Gaussian(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gram: Tensor, sigma_factor: float) -> Tensor:
        half = gram.diagonal() / 2
        halves = (half[:, None] - gram).add_(half).clamp_(min=0)  # half the squared distances (m, m)
        scale = -2 * sigma_factor**2 * _typical(halves)
        kernel = halves.div_(scale).exp_()
        ctx.save_for_backward(kernel, scale)
        return kernel

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        kernel, scale = ctx.saved_tensors
        by_gram = (slopes[0] * kernel).div_(-scale)
        # A distance also has the two entries of the diagonal in it, each by a half.
        by_gram.diagonal().sub_((by_gram.sum(dim=0) + by_gram.sum(dim=1)) / 2)
        return by_gram, None


def _typical(halves: Tensor) -> Tensor:
    """Give the median over pairs of two instances of a symmetric (m, m), where it is 0 the mean, and 1 of zeros."""
    m = len(halves)
    # Rows of m + 1 begin with the entries of the diagonal. The first half of what follows holds each pair once; of an
    # odd m, its last column does so in its first half. The lower median is that of all, in which each pair is twice.
    rows = halves.flatten()[:-1].view(m - 1, m + 1)
    pairs = rows[:, 1 : m // 2 + 1]
    if m % 2:
        pairs = torch.cat([pairs.flatten(), rows[: m // 2, m // 2 + 1]])
    # median has no limit of size, unlike quantile.
    median = pairs.median()
    width = torch.where(median == 0, halves.sum() / (m * (m - 1)), median)
    return torch.where(width == 0, 1.0, width)
