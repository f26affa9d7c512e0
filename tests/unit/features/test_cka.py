"""CKA and HSIC against trace formulas written out, their invariances, gradients and degenerate inputs."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_harness import Shapes, doubly_centred, few, normal

from fedfeat.features.cka import Target, cka, cka_matrix, hsic, mean_of_pairs
from fedfeat.features.kernels import Kernel, KernelMean, kernel_of, linear_kernel, rbf_kernel

ESTIMATORS = ["biased", "unbiased"]
both = pytest.mark.parametrize("estimator", ESTIMATORS)
SEEDS = st.integers(0, 2**31)
SIZES = st.integers(4, 9)
WIDTHS = st.integers(1, 12)


def reference_hsic(k, other, estimator):
    """The trace formulas of Kornblith et al. (Eq. 3) and Song et al. (Eq. 5), as they stand there."""
    m = len(k)
    if estimator == "biased":
        return torch.trace(doubly_centred(k) @ doubly_centred(other)) / (m - 1) ** 2
    k, other = (x - torch.diag(x.diagonal()) for x in (k, other))
    ones = torch.ones(m, dtype=k.dtype)
    sums = (ones @ k @ ones) * (ones @ other @ ones) / ((m - 1) * (m - 2))
    return (torch.trace(k @ other) + sums - 2 / (m - 2) * (ones @ k @ other @ ones)) / (m * (m - 3))


def reference_cka(k, other, estimator):
    own = reference_hsic(k, k, estimator) * reference_hsic(other, other, estimator)
    return reference_hsic(k, other, estimator) / own.sqrt()


def forms(a):
    return linear_kernel(a), Kernel(a @ a.T, dense=True)


def test_biased_by_hand():
    """Centred (-1, 0, 1) and (-1, 1, 0): a.b = 1 with |a|^2 = |b|^2 = 2, so CKA = 1/4; HSIC 1^2 / 2^2."""
    k = linear_kernel(torch.tensor([[0.0], [1.0], [2.0]]))
    other = linear_kernel(torch.tensor([[4.0], [6.0], [5.0]]))
    assert float(hsic(k, other)) == pytest.approx(1 / 4)
    assert float(cka(k, other)) == pytest.approx(1 / 4)
    assert float(hsic(k, k)) == pytest.approx(1.0)


def test_unbiased_by_hand():
    """m = 4, K without diagonal pairs 1-2 and 3-4, L pairs 1-2 only.

    <K, L> = 2, sums 4 and 2, and 1'KL1 = 2: (2 + 4 * 2 / 6 - 2 / 2 * 2) / 4 = 1/3. For K itself
    (4 + 16 / 6 - 4) / 4 = 2/3, for L (2 + 4 / 6 - 2) / 4 = 1/6, hence CKA = 1 for K and L.
    """
    a = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    b = torch.tensor([[1.0], [1.0], [0.0], [0.0]])
    for k, other in itertools.product(forms(a), forms(b)):
        assert float(hsic(k, other, "unbiased")) == pytest.approx(1 / 3, rel=1e-5)
        assert float(hsic(k, k, "unbiased")) == pytest.approx(2 / 3, rel=1e-5)
        assert float(hsic(other, other, "unbiased")) == pytest.approx(1 / 6, rel=1e-5)
        assert float(cka(k, other, "unbiased")) == pytest.approx(1.0, rel=1e-5)


@both
@few
@given(SIZES, WIDTHS, WIDTHS, SEEDS)
def test_all_forms_agree_with_the_traces(estimator, m, d, r, seed):
    a, b = normal(m, d, seed=seed) + 2, normal(m, r, seed=seed + 1) - 1
    k, other = a @ a.T, b @ b.T
    for left, right in itertools.product(forms(a), forms(b)):
        torch.testing.assert_close(
            hsic(left, right, estimator), reference_hsic(k, other, estimator), rtol=1e-7, atol=1e-9
        )
        torch.testing.assert_close(
            cka(left, right, estimator), reference_cka(k, other, estimator), rtol=1e-5, atol=1e-6
        )


@both
@few
@given(SIZES, WIDTHS, WIDTHS, SEEDS)
def test_rbf_agrees_with_the_traces(estimator, m, d, r, seed):
    left, right = rbf_kernel(normal(m, d, seed=seed), 0.8), rbf_kernel(normal(m, r, seed=seed + 1), 0.8)
    expected = reference_cka(left.matrix(), right.matrix(), estimator)
    torch.testing.assert_close(cka(left, right, estimator), expected, rtol=1e-6, atol=1e-7)


@both
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_rotation_scale_and_shift_change_nothing(estimator, kernel):
    a, b = normal(10, 4), normal(10, 3, seed=1)
    rotation = torch.linalg.qr(normal(4, 4, seed=2)).Q
    target = kernel_of(b, kernel)
    expected = cka(kernel_of(a, kernel), target, estimator)
    for other in (a @ rotation, 7 * a, a + normal(1, 4, seed=3), a[:, [2, 0, 3, 1]]):
        torch.testing.assert_close(cka(kernel_of(other, kernel), target, estimator), expected)


@both
def test_an_invertible_linear_map_does_change_it(estimator):
    """Otherwise any two full-rank representations of at least m - 1 features would be equal."""
    a, stretch = normal(10, 4), torch.diag(torch.tensor([10.0, 1.0, 1.0, 1.0], dtype=torch.float64))
    k = linear_kernel(a)
    assert float(cka(k, k, estimator)) == pytest.approx(1.0)
    assert float(cka(k, linear_kernel(a @ stretch), estimator)) < 0.8


@both
def test_order_of_instances_matters_only_where_it_differs(estimator):
    a, b, order = normal(9, 3), normal(9, 20, seed=1), torch.tensor([3, 1, 8, 0, 2, 7, 5, 6, 4])
    k, other = linear_kernel(a), linear_kernel(b)
    expected = cka(k, other, estimator)
    torch.testing.assert_close(cka(k.restrict(order), other.restrict(order), estimator), expected)
    assert abs(float(cka(k.restrict(order), other, estimator) - expected)) > 1e-2


@both
@few
@given(SIZES, WIDTHS, WIDTHS, SEEDS)
def test_cka_is_symmetric_and_bounded(estimator, m, d, r, seed):
    k, other = linear_kernel(normal(m, d, seed=seed)), linear_kernel(normal(m, r, seed=seed + 1))
    found = float(cka(k, other, estimator))
    assert found == pytest.approx(float(cka(other, k, estimator)), abs=1e-9)
    assert (0 if estimator == "biased" else -1 - 1e-6) <= found <= 1 + 1e-6


def test_unbiased_is_the_mean_over_all_subsets_and_biased_is_not():
    a, b, m, n = normal(7, 3), normal(7, 2, seed=1), 7, 4
    subsets = [torch.tensor(rows) for rows in itertools.combinations(range(m), n)]
    k, other = linear_kernel(a), linear_kernel(b)
    means = {
        estimator: sum(hsic(k.restrict(rows), other.restrict(rows), estimator) for rows in subsets)
        / len(subsets)
        for estimator in ESTIMATORS
    }
    torch.testing.assert_close(means["unbiased"], hsic(k, other, "unbiased"))
    assert abs(means["biased"] / hsic(k, other) - 1) > 0.05


def test_biased_exceeds_unbiased_on_few_instances_of_unrelated_representations():
    """With 8 instances of 256 independent features the biased CKA is near 1 although nothing is shared."""
    pairs = [
        (linear_kernel(normal(8, 256, seed=s)), linear_kernel(normal(8, 256, seed=s + 99))) for s in range(30)
    ]
    biased, unbiased = (sum(float(cka(k, other, e)) for k, other in pairs) / len(pairs) for e in ESTIMATORS)
    assert biased > 0.9
    assert abs(unbiased) < 0.15


@both
@pytest.mark.parametrize("width", [2, 9])
@pytest.mark.parametrize("dense", [False, True])
def test_gradients_are_those_of_finite_differences(estimator, width, dense):
    b = normal(6, 3, seed=1)
    target = Kernel(b @ b.T, dense=True) if dense else linear_kernel(b)
    a = normal(6, width).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: cka(linear_kernel(x), target, estimator), a)
    assert torch.autograd.gradcheck(lambda x: hsic(linear_kernel(x), target, estimator), a)


@both
def test_descent_on_the_distance_aligns(estimator):
    target = linear_kernel(normal(12, 2, seed=1))
    a = normal(12, 5)
    assert float(cka(linear_kernel(a), target, estimator)) < 0.7
    for _ in range(100):
        a.requires_grad_()
        (gradient,) = torch.autograd.grad(1 - cka(linear_kernel(a), target, estimator), a)
        a = a.detach() - 5 * gradient
    assert float(cka(linear_kernel(a), target, estimator)) > 0.95


@both
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("width", [1, 3, 40])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e4])
def test_a_constant_representation_aligns_with_nothing(estimator, kernel, width, value):
    """0.1 is no binary fraction: its mean over 12 differs from it, and noise would be compared."""
    target = kernel_of(normal(12, 3, dtype=torch.float32), kernel)
    a = torch.full((12, width), value, requires_grad=True)
    for left, right in ((kernel_of(a, kernel), target), (target, kernel_of(a, kernel))):
        found = cka(left, right, estimator)
        (gradient,) = torch.autograd.grad(found, a)
        assert found.item() == 0
        assert gradient.abs().max() == 0


def test_a_constant_matrix_aligns_with_nothing():
    k = Kernel(torch.full((12, 12), 0.1), dense=True)
    assert float(cka(k, linear_kernel(normal(12, 3, dtype=torch.float32)))) == 0


@pytest.mark.parametrize("m", [9, 11, 30])
def test_a_single_active_instance_has_structure_only_for_the_biased(m):
    """Off its diagonal the kernel is 0; float32 leaves rounding errors there after centring, of either sign."""
    a = torch.zeros(m, 3).index_fill(0, torch.tensor([4]), 0.3).requires_grad_()
    target = linear_kernel(normal(m, 2, dtype=torch.float32))
    assert cka(linear_kernel(a), linear_kernel(a)).item() == pytest.approx(1.0)
    found = cka(linear_kernel(a), target, "unbiased")
    assert found.item() == 0
    assert torch.autograd.grad(found, a)[0].isfinite().all()


@both
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_duplicates_and_dead_features_have_finite_gradients(estimator, kernel):
    """As behind a ReLU: many instances exactly alike, features that are always 0."""
    a = normal(16, 4, dtype=torch.float32).relu()
    a[:12] = 0
    a[:, 1] = 0
    a.requires_grad_()
    target = kernel_of(normal(16, 3, seed=1, dtype=torch.float32), kernel)
    (gradient,) = torch.autograd.grad(cka(kernel_of(a, kernel), target, estimator), a)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


@both
@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1e12])
def test_float32_is_exact_at_any_scale_and_mean(estimator, scale):
    a, b = normal(64, 6), normal(64, 3, seed=1)
    b = b + a[:, :3]
    expected = float(cka(linear_kernel(a), linear_kernel(b), estimator))
    target = linear_kernel(b.float())
    for other in (a * scale, (a + 50) * scale):
        assert float(cka(linear_kernel(other.float()), target, estimator)) == pytest.approx(
            expected, abs=1e-4
        )


@both
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_autocast_does_not_round_the_arithmetic(estimator, kernel):
    """Only the representation itself may come as bfloat16."""
    a, b = normal(32, 8, dtype=torch.float32), normal(32, 40, seed=1, dtype=torch.float32)
    expected = cka(kernel_of(a, kernel), kernel_of(b, kernel), estimator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert cka(kernel_of(a, kernel), kernel_of(b, kernel), estimator).equal(expected)
        mean = KernelMean()
        for _ in range(5):
            mean.add(kernel_of(a, kernel))
    assert float(cka(kernel_of(a, kernel), mean.result(), estimator)) == pytest.approx(1.0, abs=1e-5)
    half = cka(kernel_of(a.bfloat16(), kernel), kernel_of(b, kernel), estimator)
    assert half.dtype == torch.float32
    assert float(half) == pytest.approx(float(expected), abs=1e-2)


def test_values_that_are_not_finite_stay_visible():
    a = normal(6, 2)
    a[2, 1] = float("nan")
    for estimator in ESTIMATORS:
        assert cka(linear_kernel(a), linear_kernel(normal(6, 3)), estimator).isnan()
        assert cka(rbf_kernel(a), linear_kernel(normal(6, 3)), estimator).isnan()


@both
def test_types_mix(estimator):
    a, b = normal(8, 3), normal(8, 2, seed=1)
    found = cka(linear_kernel(a.float()), linear_kernel(b), estimator)
    torch.testing.assert_close(
        found, cka(linear_kernel(a), linear_kernel(b), estimator), rtol=1e-5, atol=1e-6
    )


def test_narrow_factors_are_compared_without_a_matrix():
    """Forward and backward; a wide one is reduced to (m, m) and never made (r, r)."""
    m = 40
    a = normal(m, 5).requires_grad_()
    with Shapes() as shapes:
        cka(linear_kernel(a), linear_kernel(normal(m, 39)), "unbiased").backward()
    assert (m, m) not in shapes.seen
    assert (5, 39) in shapes.seen
    with Shapes() as shapes:
        cka(linear_kernel(a), linear_kernel(normal(m, 60)), "unbiased").backward()
    assert (m, m) in shapes.seen
    assert (60, 60) not in shapes.seen


@both
@pytest.mark.parametrize("widths", [(2, 3), (4, 30)])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_a_subset_of_the_mean_is_the_mean_of_the_subset(estimator, widths, kernel):
    """That the mean is centred on all instances does not show on some of them."""
    representations = [normal(20, width, seed=width) + width for width in widths]
    kernels = [kernel_of(representation, kernel) for representation in representations]
    mean = KernelMean()
    for each in kernels:
        mean.add(each, 0.5)
    rows = torch.tensor([3, 17, 5, 11, 2, 8])
    plain = sum(each.matrix() for each in kernels)[rows][:, rows] / 2
    own = normal(6, 4)
    expected = reference_cka(own @ own.T, plain, estimator)
    torch.testing.assert_close(cka(linear_kernel(own), mean.result().restrict(rows), estimator), expected)


def test_refusals_name_rule_and_value():
    k = linear_kernel(torch.ones(3, 1))
    with pytest.raises(ValueError, match="unbiased HSIC must have at least 4 instances, but it has 3"):
        hsic(k, k, "unbiased")
    with pytest.raises(ValueError, match="same instances, but they have 3 and 4"):
        cka(k, linear_kernel(torch.ones(4, 1)))


@both
@pytest.mark.parametrize("form", ["narrow", "wide", "matrix", "rbf"])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_target_gives_what_both_sides_give(estimator, form, kernel, dtype):
    """Against the trace formulas and, with the slopes, against `cka` of two kernels."""
    a, b = normal(12, 5, dtype=dtype).requires_grad_(), normal(12, 20 if form == "wide" else 3, seed=1)
    b = b + a[:, :1].detach()
    other = {"matrix": Kernel(b @ b.T, dense=True), "rbf": rbf_kernel(b)}.get(form, linear_kernel(b))
    target = Target(other, estimator)
    expected = reference_cka(kernel_of(a.double(), kernel).matrix(), other.matrix(), estimator)
    (slopes,) = torch.autograd.grad(expected, a)
    for _ in range(2):  # a target is used at every step
        found = target.cka(kernel_of(a, kernel))
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(torch.autograd.grad(found, a)[0], slopes, rtol=1e-3, atol=1e-5)
        both_sides = cka(kernel_of(a, kernel), other, estimator)
        torch.testing.assert_close(found, both_sides, rtol=0, atol=0)


def test_a_target_of_narrow_factors_makes_no_matrix():
    m = 40
    with Shapes() as shapes:
        target = Target(linear_kernel(normal(m, 39)), "unbiased")
        target.cka(linear_kernel(normal(m, 5).requires_grad_())).backward()
    assert (m, m) not in shapes.seen
    assert (5, 39) in shapes.seen


def test_a_target_is_not_computed_again():
    """A step on narrow factors makes no matrix, although the target is one."""
    m = 40
    target = Target(rbf_kernel(normal(m, 3)))
    with Shapes() as shapes:
        target.cka(linear_kernel(normal(m, 5).requires_grad_())).backward()
    assert (m, m) not in shapes.seen
    assert (m, 5) in shapes.seen


@both
def test_targets_refuse_as_cka_does(estimator):
    target = Target(linear_kernel(normal(5, 1)), estimator)
    with pytest.raises(ValueError, match="same instances, but they have 4 and 5"):
        target.cka(linear_kernel(torch.ones(4, 1)))


@both
def test_the_matrix_of_all_pairs_and_its_mean(estimator):
    kernels = [linear_kernel(normal(6, width, seed=width)) for width in (2, 3, 9)]
    found = cka_matrix(kernels, estimator)
    for (i, one), (j, other) in itertools.product(enumerate(kernels), repeat=2):
        assert float(found[i, j]) == pytest.approx(float(cka(one, other, estimator)), abs=1e-12)
    assert mean_of_pairs(found) == pytest.approx(float(found[0, 1] + found[0, 2] + found[1, 2]) / 3)
