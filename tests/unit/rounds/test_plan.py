"""What a plan of the rounds refuses."""

import pytest
from harness import parties

from fedfeat.errors import ConfigError


@pytest.mark.parametrize(
    ("fraction", "size", "refused"), [(0.9, 3, True), (0.8, 3, False), (0.9, 6, False), (0.6, 1, True)]
)
def test_somebody_is_left_where_stragglers_are_dropped(fraction, size, refused, tmp_path):
    options = {"num_clients": 6, "cohort_size": size, "straggler_fraction": fraction}
    federation = parties(tmp_path, drop_stragglers=True, **options)
    if refused:
        with pytest.raises(
            ConfigError, match=rf"^scenario\.straggler_fraction must leave somebody of the {size} part"
        ):
            federation.plan.check_work(federation.data)
    else:
        federation.plan.check_work(federation.data)
    parties(tmp_path, **options).plan.check_work(federation.data)
