"""Combining weights: beside a grid on the simplex, in closed form, and where a matrix decides nothing."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.features.simplex import combining_weights, least_on_simplex, quadratic_form
from fedfeat.seeding import numpy_generator


def problem(m, seed, scale=1.0):
    """Variances (m,) and vectors (m, C, d) of two classes."""
    draw = numpy_generator(seed, "simplex", m)
    return scale**2 * draw.uniform(0.01, 1, m), scale * draw.normal(size=(m, 2, 3))


def objective(alpha, i, variances, vectors):
    """The paper's, of weights (m,)."""
    gap = vectors[i] - np.einsum("j,jcd->cd", alpha, vectors)
    return (alpha**2 * variances).sum() + (gap**2).sum()


def as_published(i, variances, vectors):
    """P_i as the trace of a sum of products (d, d) over the classes."""
    m = len(variances)
    found = np.diag(variances)
    for j, k in product(range(m), repeat=2):
        outer = sum(np.outer(vectors[i, c] - vectors[j, c], vectors[i, c] - vectors[k, c]) for c in range(2))
        found[j, k] += np.trace(outer)
    return found


def grid(m, steps):
    """All points of the simplex whose coordinates are multiples of 1 / steps."""
    return [np.array(point) / steps for point in product(range(steps + 1), repeat=m) if sum(point) == steps]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_on_a_grid_is_better_and_the_best_of_it_is_near(seed):
    steps, points = 30, grid(3, 30)
    variances, vectors = problem(3, seed, scale=0.7)
    found = combining_weights(variances, vectors.reshape(3, -1))
    for i in range(3):
        values = [objective(point, i, variances, vectors) for point in points]
        assert objective(found[i], i, variances, vectors) <= min(values) + 1e-12
        np.testing.assert_allclose(found[i], points[int(np.argmin(values))], rtol=0, atol=1.5 / steps)


def test_points_of_a_finer_grid_around_a_minimum_inside_are_worse():
    """Vectors that differ little, so that everyone has a share."""
    variances, vectors = problem(4, 5)
    vectors *= 0.05
    found = combining_weights(variances, vectors.reshape(4, -1))
    assert (found > 0).all()
    for i in range(4):
        best = objective(found[i], i, variances, vectors)
        for j, k in product(range(4), repeat=2):
            if j != k:
                other = found[i] + 1e-4 * (np.eye(4)[j] - np.eye(4)[k])
                assert objective(other, i, variances, vectors) > best


@pytest.mark.parametrize("seed", range(5))
def test_two_clients_in_closed_form(seed):
    """A parabola in alpha_1, cut at 0 and 1."""
    variances, vectors = problem(2, seed, scale=0.4)
    gap = ((vectors[0] - vectors[1]) ** 2).sum()
    first = np.clip((variances[1] + gap) / (variances.sum() + gap), 0, 1)
    found = combining_weights(variances, vectors.reshape(2, -1))
    np.testing.assert_allclose(found[0], [first, 1 - first], rtol=0, atol=1e-14)
    first = variances[1] / (variances.sum() + gap)
    np.testing.assert_allclose(found[1], [first, 1 - first], rtol=0, atol=1e-14)


def test_the_matrix_is_that_of_outer_products_and_positive_semidefinite():
    variances, vectors = problem(4, 2)
    flat = vectors.reshape(4, -1)
    for i in range(4):
        form = quadratic_form(variances, flat @ flat.T, i)
        np.testing.assert_allclose(form, as_published(i, variances, vectors), rtol=0, atol=1e-13)
        np.testing.assert_allclose(form, form.T, rtol=0, atol=1e-13)
        assert np.linalg.eigvalsh(form).min() >= variances.min() - 1e-13
        alpha = np.array([0.1, 0.4, 0.2, 0.3])
        assert alpha @ form @ alpha == pytest.approx(objective(alpha, i, variances, vectors), abs=1e-13)


def test_one_client_has_all_the_weight():
    assert combining_weights(np.array([0.3]), np.ones((1, 4))).tolist() == [[1.0]]
    assert combining_weights(np.array([0.0]), np.ones((1, 4))).tolist() == [[1.0]]


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_weights_of_identical_clients_are_as_the_inverse_variances(offset):
    variances = np.array([0.1, 0.25, 2.0, 1e-3])
    expected = 1 / variances / (1 / variances).sum()
    found = combining_weights(variances, np.full((4, 5), 0.3 + offset))
    np.testing.assert_allclose(found, np.tile(expected, (4, 1)), rtol=1e-12)


def test_clients_that_are_far_apart_keep_their_own():
    found = combining_weights(np.full(3, 1e-4), 100 * np.eye(3))
    np.testing.assert_allclose(found, np.eye(3), rtol=0, atol=1e-6)


def test_where_nothing_decides_weights_are_equal():
    np.testing.assert_array_equal(combining_weights(np.zeros(4), np.ones((4, 2))), np.full((4, 4), 0.25))


def test_a_minimum_on_an_edge_has_exact_zeros():
    """To the second the third lies behind the first, of whom it takes what variance asks for."""
    found = combining_weights(np.full(3, 0.1), np.array([[0.0], [-1.0], [5.0]]))
    np.testing.assert_allclose(found[1], [0.1 / 1.2, 1.1 / 1.2, 0], rtol=1e-12)
    assert found[1, 2] == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(0, 10**6), st.sampled_from([1e-12, 1.0, 1e14]))
def test_conditions_of_a_minimum_hold_on_any_scale(m, seed, scale):
    """The slope is least, and equal, where there is weight; a rank below m and variances of 0 are allowed."""
    draw = numpy_generator(seed, "forms")
    root = draw.normal(size=(draw.integers(1, m + 1), m)) * scale
    form = root.T @ root
    alpha = least_on_simplex(form)
    assert (alpha >= 0).all()
    assert alpha.sum() == pytest.approx(1, abs=1e-14)
    slope = form @ alpha
    gaps = (slope - alpha @ slope) / np.abs(form).max()
    assert gaps.min() >= -1e-10
    assert np.abs(gaps[alpha > 0]).max() <= 1e-10
