"""Figures draw the numbers of metrics.csv."""

import numpy as np
import pandas as pd
import pytest

from fedfeat.errors import ConfigError
from fedfeat.runs.figures import (
    PALETTE,
    convergence,
    mean_and_std,
    read_metrics,
    run_figure,
    run_figures,
    save_figure,
)


def columns(acc, rounds=None, step=1_000_000, **more):
    acc = np.array(acc, dtype=float)
    rounds = np.arange(len(acc), dtype=float) if rounds is None else np.array(rounds, dtype=float)
    extra = {name: np.array(values, dtype=float) for name, values in more.items()}
    return pd.DataFrame({"round": rounds, "global/acc": acc, "comm/total_bytes": rounds * step, **extra})


def test_read_metrics_turns_what_is_empty_into_nan(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("round,cohort_size,a,b\n0,3,,x\n5,3,0.25,nan\n")
    found = read_metrics(path)
    assert list(found) == ["round", "cohort_size", "a", "b"]
    assert found["round"].tolist() == [0, 5]
    np.testing.assert_array_equal(found["a"], [np.nan, 0.25])
    np.testing.assert_array_equal(found["b"], [np.nan, np.nan])


def test_mean_and_sample_std_over_the_rounds_that_all_runs_have():
    """Rounds 0 and 2 are common: means 0.2 and 0.5, deviations sqrt(2) * 0.1 and sqrt(2) * 0.2."""
    first = columns([0.1, 0.2, 0.3], step=10)
    second = columns([0.3, 0.7, 0.9], rounds=[0, 2, 3], step=30)
    found = mean_and_std([first, second], "comm/total_bytes", "global/acc")
    np.testing.assert_allclose(found["x"], [0, 40])
    np.testing.assert_allclose(found["mean"], [0.2, 0.5])
    np.testing.assert_allclose(found["std"], [np.sqrt(2) * 0.1, np.sqrt(2) * 0.2])


def test_a_round_without_a_value_is_left_out():
    found = mean_and_std([columns([0.1, np.nan, 0.3, np.inf])], "round", "global/acc")
    assert found.to_dict("list") == {"x": [0, 2], "mean": [0.1, 0.3], "std": [0, 0]}


def test_convergence_draws_mean_band_unit_and_legend():
    figure = convergence(
        {"a": [columns([0.1, 0.5]), columns([0.3, 0.7])], "b": [columns([0.2, 0.4])]}, "comm/total_bytes"
    )
    (axes,) = figure.axes
    mean, single = axes.lines
    np.testing.assert_allclose(mean.get_ydata(), [0.2, 0.6])
    np.testing.assert_allclose(mean.get_xdata(), [0, 1])  # one megabyte
    assert (mean.get_color(), single.get_color()) == PALETTE[:2]
    assert len(axes.collections) == 1  # b has one run, hence no band
    assert axes.get_xlabel() == "communication, up and down (MB)"
    assert axes.get_ylabel() == "global model, accuracy (mean ± std)"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


@pytest.mark.parametrize(
    ("largest", "label", "end"),
    [
        (500, "training examples processed", 500),
        (2_000, "training examples processed (thousands)", 2),
        (3_000_000, "training examples processed (millions)", 3),
    ],
)
def test_units_follow_the_size(largest, label, end):
    run = columns([0.1, 0.2], **{"compute/examples": [0, largest]})
    (axes,) = convergence({"a": [run]}, "compute/examples").axes
    assert axes.get_xlabel() == label
    assert axes.lines[0].get_xdata()[-1] == end


def test_more_curves_than_colours_differ_in_line_style():
    (axes,) = convergence({str(k): [columns([0, k])] for k in range(9)}).axes
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 9


def test_a_curve_without_the_metric_is_left_out_and_none_is_an_error():
    runs = {"a": [columns([0.1])], "b": [columns([0.1], **{"personal/acc_mean": [0.8]})]}
    (axes,) = convergence(runs, y="personal/acc_mean").axes
    assert [line.get_label() for line in axes.lines] == ["b"]
    with pytest.raises(ConfigError, match=r"align/cka over round must be columns .* personal/acc_mean"):
        convergence(runs, y="align/cka")


def test_run_figure_shows_what_the_run_has():
    more = {
        "global/client_acc_mean": [0.3, 0.95],
        "global/client_acc_std": [0.1, 0.1],
        "global/client_acc_worst": [0.0, 0.6],
        "train/loss": [np.nan, 1.5],
    }
    upper, lower = run_figure(columns([0.1, 0.6], **more)).axes
    assert [line.get_label() for line in upper.lines] == [
        "global model, test set",
        "global model, clients: mean ± std",
        "global model, clients: worst",
    ]
    band = upper.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == 1  # an accuracy, not 1.05
    assert band.min() == pytest.approx(0.2)
    assert lower.lines[0].get_ydata().tolist() == [1.5]


def test_run_figures_writes_a_png(tmp_path):
    (tmp_path / "metrics.csv").write_text("round,global/acc,train/loss\n0,0.1,\n1,0.5,2.0\n")
    (path,) = run_figures(tmp_path).values()
    assert path == tmp_path / "figures" / "convergence.png"
    from PIL import Image

    with Image.open(path) as image:
        assert image.size == (960, 960)  # 6.4 inches at 150 dots


def test_same_numbers_same_png(tmp_path):
    for name in ("a.png", "b.png"):
        save_figure(convergence({"a": [columns([0.1, 0.2])]}), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
