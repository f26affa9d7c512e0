"""Weights by which models of several clients are combined for one: a quadratic program over the simplex for each.

With what client j knows, H_j, and how uncertain it is, V_j, the weights for client i are those of

    min over alpha >= 0, sum_j alpha_j = 1 of   sum_j alpha_j^2 V_j + || H_i - sum_j alpha_j H_j ||^2

which is alpha^T P_i alpha with P_i = diag(V) + (<H_i - H_j, H_i - H_k>)_jk, for on the simplex H_i is
sum_j alpha_j H_i. P_i follows from the products of the H_j; it is a Gram matrix plus a diagonal one, so positive
semidefinite.
"""

import numpy as np
from scipy.optimize import nnls


def quadratic_form(variances: np.ndarray, products: np.ndarray, client: int) -> np.ndarray:
    """Give P of one client, float64 (m, m).

    Args:
        variances: V, (m,).
        products: ``<H_j, H_k>``, (m, m), of vectors from any common origin.
        client: i.
    """
    own = products[client]
    return np.diag(variances) + (own[client] - own[:, None] - own[None, :] + products)


def least_on_simplex(matrix: np.ndarray) -> np.ndarray:
    """Give alpha (m,) on the simplex with the least ``alpha^T P alpha``, one of them where there are several.

    With P = A^T A, u >= 0 of the least ``||A u||^2 + (sum u - 1)^2`` is a multiple of it: for u = s alpha the best s
    gives ``q / (1 + q)``, q = ||A alpha||^2, which grows with q. So non-negative least squares, which are exact, do.

    Args:
        matrix: P, symmetric and positive semidefinite but for rounding, (m, m).
    """
    values, vectors = np.linalg.eigh(matrix)
    largest = values[-1]
    if not largest > 0:
        return np.full(len(matrix), 1 / len(matrix))
    # Another scale of P has the same alpha; directions below 0 by rounding count as 0.
    root = np.sqrt(np.clip(values / largest, 0, None))[:, None] * vectors.T
    rows, wanted = np.vstack([root, np.ones(len(matrix))]), np.append(np.zeros(len(matrix)), 1.0)
    found, _ = nnls(rows, wanted, maxiter=30 * len(matrix))
    return found / found.sum()


def combining_weights(variances: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Give alpha of all clients, float64 (m, m): row i has the weights for client i.

    Args:
        variances: V, (m,).
        vectors: H, (m, r).
    """
    # Only differences matter, and those of centred vectors lose nothing to a large common part.
    centred = vectors - vectors.mean(0)
    products = centred @ centred.T
    forms = (quadratic_form(variances, products, client) for client in range(len(vectors)))
    return np.stack([least_on_simplex(form) for form in forms])
