"""Principal components of kernels against the PCA of representations, and turning one picture onto another."""

import pytest
import torch
from kernel_harness import normal
from sklearn.decomposition import PCA, KernelPCA

from fedfeat.features.components import principal_components, turned_to
from fedfeat.features.kernels import Kernel, linear_kernel, rbf_kernel


@pytest.mark.parametrize("width", [3, 12])
def test_components_of_a_linear_kernel_are_the_pca(width):
    a = normal(9, width)
    found, shares = principal_components(linear_kernel(a), 3)
    pca = PCA(3).fit(a.numpy())
    torch.testing.assert_close(found.abs(), torch.tensor(pca.transform(a.numpy())).abs())
    torch.testing.assert_close(shares, torch.tensor(pca.explained_variance_ratio_))


def test_components_of_an_rbf_kernel_are_those_of_kernel_pca():
    kernel = rbf_kernel(normal(9, 4))
    found, _ = principal_components(kernel)
    expected = KernelPCA(2, kernel="precomputed").fit_transform(kernel.matrix().numpy())
    torch.testing.assert_close(found.abs(), torch.tensor(expected).abs())


def test_the_furthest_entry_is_positive_and_a_mirror_changes_nothing():
    a = normal(8, 3)
    found, _ = principal_components(linear_kernel(a))
    assert (found[found.abs().argmax(0), torch.arange(2)] > 0).all()
    torch.testing.assert_close(principal_components(linear_kernel(-a))[0], found)


def test_nothing_beyond_the_rank_and_nothing_of_a_constant():
    found, shares = principal_components(linear_kernel(normal(6, 1)), 3)
    torch.testing.assert_close(shares, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(found[:, 1:], torch.zeros(6, 2, dtype=torch.float64), atol=1e-6, rtol=0)
    found, shares = principal_components(Kernel(torch.ones(4, 4), dense=True))
    assert not found.any()
    assert not shares.any()


@pytest.mark.parametrize("number", [0, 5])
def test_a_number_of_components_that_there_are_not(number):
    with pytest.raises(ValueError, match=rf"^number must be from 1 to 4, but it is {number}\.$"):
        principal_components(linear_kernel(normal(4, 9)), number)


def test_turning_undoes_a_rotation_and_a_mirror_and_nothing_else():
    a = normal(7, 2)
    turn = torch.tensor([[0.6, 0.8], [0.8, -0.6]], dtype=torch.float64)
    torch.testing.assert_close(turned_to(a @ turn, a), a)
    torch.testing.assert_close(turned_to(3 * a @ turn, a), 3 * a)
