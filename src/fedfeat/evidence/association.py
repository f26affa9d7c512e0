"""Whether one quantity predicts another over the arms of studies: Spearman's rank correlation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

_NUM_RESAMPLES = 9999


class Association(NamedTuple):
    """A rank correlation.

    Attributes:
        rho: Spearman's coefficient; NaN of fewer than three arms, or where one of the two is the same for all.
        p_value: Of the hypothesis that the order of one says nothing about the other's, two-sided, by permutations: all
            of them of up to seven arms, `_NUM_RESAMPLES` drawn ones of more.
        num_arms: Arms that have both.
    """

    rho: float
    p_value: float
    num_arms: int


def association(one: Mapping[str, float], other: Mapping[str, float]) -> Association:
    """Correlate two quantities over the arms that have both.

    Args:
        one: Mean over seeds by arm.
        other: Mean over seeds by arm.
    """
    from scipy import stats

    arms = [arm for arm in one if arm in other and np.isfinite([one[arm], other[arm]]).all()]
    left, right = [one[arm] for arm in arms], [other[arm] for arm in arms]
    if len(arms) < 3 or len({*left}) == 1 or len({*right}) == 1:
        return Association(float("nan"), float("nan"), len(arms))
    ranks, others = stats.rankdata(left), stats.rankdata(right)

    def rho(ranks: np.ndarray) -> float:
        return float(np.corrcoef(ranks, others)[0, 1])

    # Student's t, SciPy's default, gives p = 0 where four arms have one order, which one draw in twelve has by chance.
    found = stats.permutation_test(
        (ranks,), rho, permutation_type="pairings", n_resamples=_NUM_RESAMPLES, rng=0
    )
    return Association(float(found.statistic), float(found.pvalue), len(arms))
