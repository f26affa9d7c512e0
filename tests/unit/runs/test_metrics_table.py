"""metrics.csv, read back."""

import numpy as np
import pandas as pd
import pytest

from fedfeat.errors import CheckpointError
from fedfeat.runs.metrics_table import last_value, mean_and_std, not_finite_since, read_metrics


def columns(acc, rounds=None, step=1):
    rounds = np.arange(len(acc), dtype=float) if rounds is None else np.array(rounds, dtype=float)
    return pd.DataFrame({"round": rounds, "global/acc": acc, "comm/total_bytes": rounds * step})


def test_what_is_empty_is_nan_and_nan_is_known_as_such(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("round,cohort_size,a,b,c,d\n0,3,,x,1,2\n5,3,0.25,nan,inf,2.5\n6,3,,nan,inf,\n")
    found = read_metrics(path)
    assert list(found) == ["round", "cohort_size", "a", "b", "c", "d"]
    assert found["round"].tolist() == [0, 5, 6]
    np.testing.assert_array_equal(found["a"], [np.nan, 0.25, np.nan])
    np.testing.assert_array_equal(found["b"], [np.nan] * 3)
    assert [not_finite_since(found, name) for name in "abcd"] == [None, 5, 5, None]
    assert [last_value(found, name) for name in "acd"] == [0.25, np.inf, 2.5]
    assert np.isnan(last_value(found, "b"))


@pytest.mark.parametrize(
    ("cells", "last"), [(["nan", ".5", ""], 0.5), ([".5", "nan", ""], np.nan), (["nan", ".5", "inf"], np.inf)]
)
def test_a_number_that_comes_back_is_the_last_one(tmp_path, cells, last):
    """A metric of some rounds alone may end in an empty cell, whatever it was before."""
    path = tmp_path / "metrics.csv"
    path.write_text("round,a\n" + "".join(f"{at},{cell}\n" for at, cell in enumerate(cells)))
    np.testing.assert_equal(last_value(read_metrics(path), "a"), last)
    # And among the first rounds alone.
    np.testing.assert_equal(last_value(read_metrics(path)[:2], "a"), float(cells[1]))


def test_what_is_no_table_is_named(tmp_path):
    (tmp_path / "metrics.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(
        CheckpointError, match=r"metrics\.csv must be a table of a run, but it cannot be read"
    ):
        read_metrics(tmp_path / "metrics.csv")


def test_a_column_without_any_number_has_no_last_value(tmp_path):
    (tmp_path / "metrics.csv").write_text("round,a\n0,\n1,\n")
    assert last_value(read_metrics(tmp_path / "metrics.csv"), "a") is None


def test_mean_and_sample_std_over_the_rounds_that_all_runs_have():
    """Rounds 0 and 2 are common: means 0.2 and 0.5, deviations sqrt(2) * 0.1 and sqrt(2) * 0.2."""
    first = columns([0.1, 0.2, 0.3], step=10)
    second = columns([0.3, 0.7, 0.9], rounds=[0, 2, 3], step=30)
    found = mean_and_std([first, second], "comm/total_bytes", "global/acc")
    np.testing.assert_allclose(found["x"], [0, 40])
    np.testing.assert_allclose(found["mean"], [0.2, 0.5])
    np.testing.assert_allclose(found["std"], [np.sqrt(2) * 0.1, np.sqrt(2) * 0.2])


@pytest.mark.parametrize("hole", [np.nan, np.inf])
def test_a_round_without_a_value_is_left_out(hole):
    found = mean_and_std([columns([0.1, hole, 0.3, np.inf])], "round", "global/acc")
    assert found.to_dict("list") == {"x": [0, 2], "mean": [0.1, 0.3], "std": [0, 0]}
