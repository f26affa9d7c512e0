"""Kernels and their streamed mean: hand values, plain sums, shapes that are never made, and refusals."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_harness import Shapes, doubly_centred, few, normal

from fedfeat.features.cka import cka
from fedfeat.features.kernels import Kernel, KernelMean, kernel_of, linear_kernel, rbf_kernel

SEEDS = st.integers(0, 2**31)


def test_linear_kernel_by_hand():
    kernel = linear_kernel(torch.tensor([[1, 2], [3, 0], [0, 1]]))
    assert kernel.matrix().tolist() == [[5.0, 3.0, 2.0], [3.0, 9.0, 0.0], [2.0, 0.0, 1.0]]
    assert kernel.diagonal().tolist() == [5.0, 9.0, 1.0]
    assert (kernel.dense, kernel.num_instances, kernel.values.dtype) == (False, 3, torch.float32)


def test_further_dimensions_are_features():
    maps = normal(5, 2, 3, 3)
    torch.testing.assert_close(linear_kernel(maps).matrix(), torch.einsum("achw,bchw->ab", maps, maps))


def test_centred_by_hand():
    """(0), (1), (5) have mean 2, hence are (-2), (-1), (3); the same from the matrix, as it is 1 by 1 no wider."""
    expected = [[4.0, 2.0, -6.0], [2.0, 1.0, -3.0], [-6.0, -3.0, 9.0]]
    kernel = linear_kernel(torch.tensor([[0.0], [1.0], [5.0]]))
    assert kernel.centred().matrix().tolist() == expected
    dense = Kernel(kernel.matrix() + 7, dense=True).centred()
    torch.testing.assert_close(dense.matrix(), torch.tensor(expected))


@few
@given(st.integers(2, 9), st.integers(1, 12), SEEDS)
def test_centred_is_h_k_h_and_a_matrix_only_where_wide(m, d, seed):
    a = normal(m, d, seed=seed) + 3
    kernel = linear_kernel(a).centred()
    assert kernel.dense == (d > m)
    torch.testing.assert_close(kernel.matrix(), doubly_centred(a @ a.T))
    torch.testing.assert_close(Kernel(a @ a.T, dense=True).centred().matrix(), doubly_centred(a @ a.T))


def test_scaled_divides_by_the_largest_absolute_value():
    for values, expected in (([[-4.0], [1.0]], [[-1.0], [0.25]]), ([[-4.0], [0.0]], [[-1.0], [0.0]])):
        assert Kernel(torch.tensor(values), dense=False).scaled().values.tolist() == expected


def test_rbf_by_hand():
    """Points 0, 3 and 4 on a line: distances 3, 4 and 1, median 3; with factor 1/2 sigma^2 is 9/4."""
    kernel = rbf_kernel(torch.tensor([[0.0], [3.0], [4.0]], dtype=torch.float64), 0.5)
    by_distance = {d: math.exp(-(d**2) / 4.5) for d in (0, 1, 3, 4)}
    expected = [[by_distance[abs(a - b)] for b in (0, 3, 4)] for a in (0, 3, 4)]
    torch.testing.assert_close(kernel.matrix(), torch.tensor(expected, dtype=torch.float64))
    assert kernel.dense


@few
@given(st.integers(2, 9), st.integers(1, 12), st.sampled_from([0.2, 0.4, 0.8]), SEEDS)
def test_rbf_against_distances_pair_by_pair(m, d, factor, seed):
    """Value and gradient, with the median as a constant: the lower one of an even number."""
    a = normal(m, d, seed=seed).requires_grad_()
    squares = (a[:, None] - a).square().sum(2)
    sigma = factor * torch.nn.functional.pdist(a.detach()).median()
    expected = torch.exp(-squares / (2 * sigma**2))
    found = rbf_kernel(a, factor).matrix()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    weights = normal(m, m, seed=seed + 1)
    gradients = [torch.autograd.grad((weights * k).sum(), a)[0] for k in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)


def test_rbf_where_most_instances_coincide():
    """Of six distances three are 0, and the lower median is one of them; the mean square is 3 * 4 / 6 = 2."""
    kernel = rbf_kernel(torch.tensor([[0.0], [0.0], [0.0], [2.0]], dtype=torch.float64), 1.0).matrix()
    assert kernel[0, 1] == 1
    assert kernel[0, 3] == pytest.approx(math.exp(-4 / (2 * 2)))


def test_rbf_is_the_same_at_any_scale_and_far_from_the_origin():
    a = normal(12, 4, dtype=torch.float32)
    expected = rbf_kernel(a).matrix()
    for other in (a * 1e-30, a * 1e15):
        torch.testing.assert_close(rbf_kernel(other).matrix(), expected)
    torch.testing.assert_close(rbf_kernel(a + 1000).matrix(), expected, rtol=5e-3, atol=1e-4)


def test_kernel_of_names_both():
    a = normal(4, 2)
    assert kernel_of(a).matrix().equal(linear_kernel(a).matrix())
    assert kernel_of(a, "rbf", 0.8).matrix().equal(rbf_kernel(a, 0.8).matrix())


def test_restrict_is_the_submatrix():
    a, rows = normal(6, 2), torch.tensor([4, 0, 5])
    expected = (a @ a.T)[rows][:, rows]
    torch.testing.assert_close(linear_kernel(a).restrict(rows).matrix(), expected)
    torch.testing.assert_close(Kernel(a @ a.T, dense=True).restrict(rows).matrix(), expected)


@few
@given(st.integers(2, 8), st.integers(1, 10), st.integers(1, 10), SEEDS)
def test_inner_is_the_same_in_all_forms(m, d, r, seed):
    a, b = normal(m, d, seed=seed), normal(m, r, seed=seed + 1)
    expected = ((a @ a.T) * (b @ b.T)).sum()
    forms = [(linear_kernel(x), Kernel(x @ x.T, dense=True)) for x in (a, b)]
    for left in forms[0]:
        for right in forms[1]:
            torch.testing.assert_close(left.inner(right), expected)


STREAMS = st.lists(
    st.tuples(st.integers(1, 7), st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.booleans()), min_size=1, max_size=6
)


@few
@given(st.integers(2, 8), STREAMS, st.sampled_from(["none", "fro"]), SEEDS, st.randoms(use_true_random=False))
def test_mean_is_the_plain_sum_in_any_order(m, stream, norm, seed, random):
    """Sum over all w_j H K_j H / sum of w, each over its norm for ``fro``."""
    weights = [weight for _, weight, _ in stream]
    kernels = [
        (rbf_kernel if rbf else linear_kernel)(normal(m, d, seed=seed + j) + j)
        for j, (d, _, rbf) in enumerate(stream)
    ]
    centred = [doubly_centred(kernel.matrix()) for kernel in kernels]
    if norm == "fro":
        centred = [matrix / matrix.norm() for matrix in centred]
    order = list(range(len(stream)))
    random.shuffle(order)
    mean = KernelMean(norm)
    for j in order:
        mean.add(kernels[j], weights[j])
    if sum(weights) == 0:
        with pytest.raises(ValueError, match="at least one of positive weight"):
            mean.result()
        return
    expected = sum(w * k for w, k in zip(weights, centred, strict=True)) / sum(weights)
    found = mean.result()
    torch.testing.assert_close(found.matrix(), expected, rtol=1e-6, atol=1e-9)
    used = [(d, rbf) for d, w, rbf in stream if w > 0]
    assert found.dense == (any(rbf for _, rbf in used) or sum(d for d, _ in used) >= m)


def test_mean_by_hand():
    """(0), (2) are (-1), (1), and (0), (4) are (-2), (2): 1/4 of 1 and 3/4 of 4 in each entry."""
    mean = KernelMean()
    mean.add(linear_kernel(torch.tensor([[0.0], [2.0]])), 1.0)
    mean.add(linear_kernel(torch.tensor([[0.0], [4.0]])), 3.0)
    assert mean.result().matrix().tolist() == [[3.25, -3.25], [-3.25, 3.25]]


def test_mean_stays_factors_while_they_are_narrow():
    mean, m = KernelMean(), 7
    for j, (width, dense) in enumerate([(2, False), (4, False), (None, True)]):
        mean.add(linear_kernel(normal(m, 2 if j < 2 else 3, seed=j)))
        found = mean.result()
        assert (found.dense, found.values.shape) == (dense, (m, m if dense else width))


def test_mean_aligned_with_is_the_mean_of_alignments_under_fro():
    """cka(K, mean) = mean_j cka(K, K_j) / |mean|_F."""
    kernels = [linear_kernel(normal(9, d, seed=d) * 10**d) for d in (1, 2, 3)]
    own = linear_kernel(normal(9, 4, seed=5))
    mean = KernelMean("fro")
    for kernel in kernels:
        mean.add(kernel, 2.0)
    target = mean.result()
    expected = sum(cka(own, kernel) for kernel in kernels) / 3 / target.matrix().norm()
    torch.testing.assert_close(cka(own, target), expected)


@pytest.mark.parametrize("norm", ["none", "fro"])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_mean_bears_clients_whose_representation_is_constant(norm, kernel):
    mean = KernelMean(norm)
    a = normal(5, 2)
    mean.add(kernel_of(torch.full((5, 1), 0.1, dtype=torch.float64), kernel))
    mean.add(kernel_of(a, kernel))
    assert mean.result().matrix().isfinite().all()
    torch.testing.assert_close(
        cka(kernel_of(a, kernel), mean.result()), torch.tensor(1.0, dtype=torch.float64)
    )


def test_mean_keeps_neither_its_inputs_nor_their_graphs():
    a = normal(6, 2).requires_grad_()
    kernel = linear_kernel(a)
    before = kernel.values.detach().clone()
    mean = KernelMean()
    for _ in range(4):
        mean.add(kernel)
    first = mean.result()
    mean.add(kernel, 5.0)
    assert not first.values.requires_grad
    torch.testing.assert_close(first.matrix(), mean.result().matrix())
    assert kernel.values.equal(before)


def test_mean_of_large_means_in_float32():
    a = normal(20, 3, dtype=torch.float32)
    plain, shifted = KernelMean(), KernelMean()
    for _ in range(8):
        plain.add(linear_kernel(a))
        shifted.add(linear_kernel(a + 1000))
    torch.testing.assert_close(shifted.result().matrix(), plain.result().matrix(), rtol=1e-3, atol=1e-3)


def test_mean_makes_no_matrix_before_the_factors_are_wide():
    m, mean = 50, KernelMean("fro")
    with Shapes() as shapes:
        for seed in range(4):
            mean.add(linear_kernel(normal(m, 12, seed=seed)))
        mean.result()
    assert (m, m) not in shapes.seen
    with Shapes() as shapes:
        mean.add(linear_kernel(normal(m, 2)))
    assert (m, m) in shapes.seen


def test_mean_refuses():
    mean = KernelMean()
    with pytest.raises(ValueError, match="at least one of positive weight"):
        mean.result()
    for weight in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="weight must be finite and at least 0"):
            mean.add(linear_kernel(torch.ones(3, 1)), weight)
    mean.add(linear_kernel(torch.ones(3, 1)))
    with pytest.raises(ValueError, match="must have 3 instances, but it has 4"):
        mean.add(linear_kernel(torch.ones(4, 1)))
