"""Steps on kernel matrices: values by hand, gradients against automatic differentiation of the formulas."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_harness import doubly_centred, few, normal

from fedfeat.features.matrices import _typical, double_centred, gaussian, quadratic

SEEDS = st.integers(0, 2**31)


def gram_of(m, d, seed=0):
    a = normal(m, d, seed=seed)
    return a @ a.T


def slopes_of(value, matrix):
    return torch.autograd.grad(value, matrix)[0]


@few
@given(st.integers(2, 9), SEEDS)
def test_centring_and_its_gradient(m, seed):
    """Of a weight that is not symmetric, too; only the symmetric part of a slope reaches a symmetric matrix."""
    matrix, weights = (gram_of(m, 3, seed) + 5).requires_grad_(), normal(m, m, seed=seed + 1)
    found, expected = double_centred(matrix), doubly_centred(matrix)
    torch.testing.assert_close(found, expected)
    slopes = [slopes_of((weights * each).sum(), matrix) for each in (found, expected)]
    torch.testing.assert_close(*slopes)


def test_centring_changes_neither_its_input_nor_the_slopes_it_is_given():
    matrix = gram_of(4, 2).requires_grad_()
    before, slopes = matrix.detach().clone(), normal(4, 4, seed=1)
    given_slopes = slopes.clone()
    double_centred(matrix).backward(slopes)
    assert matrix.detach().equal(before)
    assert slopes.equal(given_slopes)


@pytest.mark.parametrize("m", [2, 3, 4, 5, 8, 11])
def test_each_pair_counts_once_in_the_median(m):
    """Numbers of the pairs, all different: the lower median of their m (m - 1) / 2 is a number of its own."""
    pairs = torch.triu_indices(m, m, 1)
    values = torch.randperm(pairs.shape[1], generator=torch.Generator().manual_seed(m)).double() + 1
    matrix = torch.zeros(m, m, dtype=torch.float64)
    matrix[pairs[0], pairs[1]] = values
    matrix = matrix + matrix.T
    assert _typical(matrix) == (len(values) + 1) // 2 == values.median()


def test_what_stands_in_for_a_median_of_zero():
    """Five of six pairs are at distance 0, the other one's half square is 6: the mean over pairs is 1."""
    matrix = torch.zeros(4, 4)
    matrix[1, 2] = matrix[2, 1] = 6.0
    assert _typical(matrix) == 1
    assert _typical(torch.zeros(4, 4)) == 1


@few
@given(st.integers(2, 9), st.integers(1, 5), SEEDS)
def test_gaussian_and_its_gradient(m, d, seed):
    a, weights = normal(m, d, seed=seed).requires_grad_(), normal(m, m, seed=seed + 1)
    found = gaussian(a @ a.T, 0.5)
    squares = (a[:, None] - a).square().sum(2)
    width = torch.nn.functional.pdist(a.detach()).square().median()
    expected = torch.exp(-squares / (2 * 0.25 * width))
    torch.testing.assert_close(found, expected)
    slopes = [slopes_of((weights * each).sum(), a) for each in (found, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("trained", [False, True])
def test_quadratic_and_its_gradients(trained):
    """F'KF of K = [[2, 1], [1, 0]] and F = (3, 5): 2*9 + 2*15 = 48, slopes 2 K F = (22, 6) and F F'."""
    matrix = torch.tensor([[2.0, 1.0], [1.0, 0.0]], requires_grad=trained)
    factors = torch.tensor([[3.0], [5.0]], requires_grad=True)
    value = quadratic(matrix, factors)
    value.backward()
    assert value.item() == 48
    assert factors.grad.tolist() == [[22.0], [6.0]]
    if trained:
        assert matrix.grad.tolist() == [[9.0, 15.0], [15.0, 25.0]]
