"""Numbers of several seeds as the pages write them."""

import json
import math

import pytest

from fedfeat.evidence.archive import Archive
from fedfeat.evidence.campaign import Campaign, Cell, Study
from fedfeat.evidence.intervals import Interval, Needed, mean_interval
from fedfeat.evidence.tables import Tables
from fedfeat.evidence.wording import interval_text, levels_text, mean_text


def test_a_mean_says_how_many_seeds_never_came_there():
    assert mean_text({0: 14.0, 1: 16.0, 2: 18.0}) == "16.0 ± 5.0"
    # A step of 2 is .58 of standard deviation, and 4.3 / 3 ** .5 of that the half.
    assert mean_text({0: 14.0, 1: 14.0, 2: 14.0}, step=2.0) == "14.0 ± 1.4"
    assert mean_text({0: 14.0, 1: 16.0, 2: 18.0}, step=2.0) == "16.0 ± 5.0"
    assert mean_text({0: 14e6, 1: 14e6, 2: 14e6}, "to_target/0.5/bytes", step=2e6) == "14.0 ± 1.4 MB"
    assert mean_text({0: 14.0, 1: math.inf, 2: 18.0}) == "not reached in 1 of 3"
    assert mean_text({0: math.inf, 1: math.inf, 2: math.inf}) == "not reached"
    assert mean_text({0: math.inf, 1: math.inf}) == "not reached (2)"
    assert mean_text({0: math.inf}, "to_target/0.5/bytes") == "not reached (1)"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.0103, 0.0104, 0.0105], "0.0104 [0.0102, 0.0106]"),
        ([0.0003, 0.0005, 0.0004], "0.0004 [0.0002, 0.0006]"),
        ([0.81, 0.82, 0.83], "0.820 [0.795, 0.845]"),
        ([2.3026, 2.3027, 2.3028], "2.3027 [2.3025, 2.3029]"),
        ([-8.0, -3.0, -5.5], "-5.5 [-11.7, 0.7]"),
        ([-0.0002, 0.1, -0.1], "0.000 [-0.248, 0.248]"),
        ([14.0, 14.0, 14.0], "14.0 [14.0, 14.0]"),
        ([496.6, 496.6, 496.6 + 1e-12], "496.6 [496.6, 496.6]"),
        ([0.5, 0.5, 0.5 + 1e-12], "0.500 [0.500, 0.500]"),
    ],
)
def test_an_interval_has_places_enough_for_its_width_the_same_in_all_of_it(values, said):
    found = mean_interval(values)
    assert interval_text(found) == f"{said} (3 seeds)"
    mean = said.split(" [")[0]
    assert mean_text(dict(enumerate(values))).startswith(f"{mean} ± ")


def test_a_claim_about_bytes_is_told_in_megabytes():
    found = Interval(-5368e6, -6063e6, -4672e6, 3)
    assert interval_text(found, "to_target/0.5/bytes") == "-5368.0 [-6063.0, -4672.0] MB (3 seeds)"
    assert interval_text(Interval(math.nan, 0.1, 0.2, 3)) == "a run diverged (3 seeds)"


def test_rounds_have_one_place_however_few_they_are():
    quantity = "to_target/0.5/rounds"
    assert interval_text(Interval(4 / 3, -1.535, 4.202, 3), quantity) == "1.3 [-1.5, 4.2] (3 seeds)"
    assert interval_text(Interval(0.0, -math.inf, math.inf, 1), quantity) == "0.0 (1 seed)"
    assert levels_text([{0: 1.0}, {0: 34.0}], quantity) == "1.0 against 34.0"
    assert mean_text({0: 1.0, 1: 1.0, 2: 1.0}, quantity, step=1.0) == "1.0 ± 0.7"
    assert mean_text({0: 1.0}, quantity) == "1.0 (1)"


def test_two_arms_are_told_over_the_seeds_that_both_have():
    assert levels_text([{0: 0.5, 1: 0.6, 2: 0.9}, {0: 0.1, 1: 0.3, 3: 0.0}]) == "0.550 against 0.200"
    far = {0: Needed(30e6, 2e6), 1: Needed(32e6, 2e6, never=True)}
    assert levels_text([{0: 14e6, 1: 16e6}, far], "to_target/0.5/bytes") == "15.0 against ≥31.0"
    assert levels_text([{0: 14e6}, {0: far[0]}], "to_target/0.5/bytes") == "14.0 against 30.0"
    assert levels_text([{0: 0.5}, {0: math.nan}]) == "0.500 against diverged"
    assert levels_text([{0: math.inf}, {0: 1.0}]) == "not reached against 1.000"


def test_runs_that_diverged_are_counted_beside_the_mean_of_the_others():
    assert mean_text({0: 0.5, 1: 0.5, 2: 0.5, 3: math.nan}) == "0.500 ± 0.000, 1 diverged"
    assert mean_text({0: math.nan}) == "1 diverged"
    assert mean_text({0: math.nan, 1: math.inf}) == "not reached (1), 1 diverged"


def test_bytes_stand_in_megabytes(tmp_path):
    archive = Archive(
        Campaign("k", (), {}, {"s": Study("s", (), {"a": ()}, {"": ()}, {"": ()}, (0,))}), tmp_path
    )
    place = tmp_path / Cell("s", "", "a", "", 0).name
    place.mkdir(parents=True)
    (place / "config.yaml").write_text("seed: 0\n")
    (place / "metrics.csv").write_text("round,comm/total_bytes\n0,0\n1,250000000\n")
    reached = {"0.5": {"rounds": 4, "bytes": 12500000}}
    (place / "summary.json").write_text(json.dumps({"seed": 0, "to_target": reached, "final": {}}))
    tables = Tables(archive, tmp_path)
    assert "| a | 12.5 MB (1) |" in tables.accuracy_part("s", "to_target/0.5/bytes")
    assert "| a | 4.0 (1) |" in tables.accuracy_part("s", "to_target/0.5/rounds")
