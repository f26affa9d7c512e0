"""Kernels, HSIC and CKA by their definitions, on m x m matrices."""

import torch


def kernel_matrix(a, name="linear", factor=0.4):
    """K (m, m) of a representation (m, d); the median of rbf is a constant to gradients."""
    if name == "linear":
        return a @ a.T
    m = len(a)
    squares = (a[:, None] - a[None]).square().sum(2)
    median = sorted(squares[i, j].item() for i in range(m) for j in range(m) if i != j)[
        (m * (m - 1) - 1) // 2
    ]
    return torch.exp(-squares / (2 * factor**2 * median))


def hsic(k, other, estimator):
    m = len(k)
    if estimator == "biased":
        centre = torch.eye(m).double() - 1 / m
        return (k @ centre @ other @ centre).trace() / (m - 1) ** 2
    k, other = (kernel - kernel.diag().diag() for kernel in (k, other))
    pairs = (k @ other).trace() + k.sum() * other.sum() / ((m - 1) * (m - 2))
    return (pairs - 2 / (m - 2) * (k @ other).sum()) / (m * (m - 3))


def cka(k, other, estimator):
    own = hsic(k, k, estimator) * hsic(other, other, estimator)
    return hsic(k, other, estimator) / own.sqrt()
