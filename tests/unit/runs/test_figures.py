"""Figures draw the numbers of metrics.csv."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from fedfeat.errors import ConfigError
from fedfeat.runs.figures import (
    PALETTE,
    convergence,
    panels,
    save_figure,
)
from fedfeat.runs.legend import GREY, legend_below
from fedfeat.runs.metrics_table import read_metrics
from fedfeat.runs.run_figure import run_figure, run_figures


def columns(acc, rounds=None, step=1_000_000, **more):
    acc = np.array(acc, dtype=float)
    rounds = np.arange(len(acc), dtype=float) if rounds is None else np.array(rounds, dtype=float)
    extra = {name: np.array(values, dtype=float) for name, values in more.items()}
    return pd.DataFrame({"round": rounds, "global/acc": acc, "comm/total_bytes": rounds * step, **extra})


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


def test_equal_accuracies_in_the_figure_of_a_run_are_both_seen():
    """Where the clients' test parts make up the test set, their mean is the server's model's accuracy."""
    more = {"global/client_acc_mean": [0.1, 0.6], "personal/acc_mean": [0.1, 0.6]}
    upper, _ = run_figure(columns([0.1, 0.6], **more)).axes
    below, above, dashed = upper.lines
    assert below.get_linewidth() > 2 * above.get_linewidth()
    assert below.get_zorder() <= above.get_zorder()
    assert dashed.get_linestyle() == "--"


def test_equal_curves_of_settings_are_both_seen():
    (axes,) = convergence({"a": [columns([0.1, 0.5])], "b": [columns([0.1, 0.5])]}).axes
    below, above = axes.lines
    assert below.get_linewidth() > above.get_linewidth() + 1


@pytest.mark.parametrize(("number", "named"), [(28, 28), (29, 29), (300, 29)])
def test_curves_for_which_no_look_is_left_are_grey_and_counted(number, named):
    """Three hundred rows would make a picture of a hundred megabytes, and name none that can be found."""
    runs = {f"s{k}": [columns([0.1, k / number])] * 2 for k in range(28)}
    runs |= {f"s{k}": [columns([0.1, k / number]), columns([0.2, 0.3])] for k in range(28, number)}
    figure = convergence(runs)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    last = [] if number == 28 else [f"{number - 28} more, in the table"]
    assert texts == [f"s{k}" for k in range(28)] + last
    assert len(texts) == named
    assert len(figure.axes[0].collections) == 0
    lines = figure.axes[0].lines
    assert [line.get_color() == GREY for line in lines] == [k >= 28 for k in range(number)]
    assert len(lines) == number


def test_many_words_of_a_curve_go_over_several_lines():
    figure = convergence({"structure.groups=10, " * 60: [columns([0.1])]})
    (text,) = figure.legends[0].get_texts()
    assert text.get_text().count("\n") >= 7
    FigureCanvasAgg(figure).draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    assert box.y0 >= 0
    assert figure.get_size_inches()[0] < 12


def test_a_method_without_the_first_metric_is_drawn_by_the_next_and_says_so():
    runs = {"a": [columns([0.1])], "b": [columns([np.nan], **{"personal/acc_mean": [0.8]})]}
    figure = convergence(runs)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "a: global/acc",
        "b: personal/acc_mean",
    ]
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines] == [[0.1], [0.8]]


def test_a_long_label_is_not_cut():
    figure = convergence({"structure.groups=10, " * 7: [columns([0.1])]})
    FigureCanvasAgg(figure).draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width


def test_a_long_name_of_a_vertical_axis_is_not_cut():
    runs = [columns([0.1, 0.5]), columns([0.2, 0.6])]
    for run in runs:
        run["local_pre_agg/acc_mean"] = run["global/acc"]
    figure = convergence({"a": runs}, "round", "local_pre_agg/acc_mean")
    FigureCanvasAgg(figure).draw()
    label = figure.axes[0].yaxis.label.get_window_extent()
    assert figure.axes[0].get_ylabel() == "local models after their fits, accuracy\n(mean ± std)"
    assert label.y0 >= 0
    assert label.y1 <= figure.bbox.height


def test_a_second_metric_has_an_axis_of_its_own():
    runs = {"a": [columns([0.1, 0.2], **{"align/agreement": [np.nan, 5.0]})]}
    left, right = convergence(runs, y="global/acc", beside="align/agreement").axes
    assert left.lines[0].get_ydata().tolist() == [0.1, 0.2]
    assert right.lines[0].get_xydata().tolist() == [[1, 5]]
    assert right.get_ylabel() == "align/agreement"


def test_counts_on_a_vertical_axis_have_prefixes():
    runs = {"a": [columns([0.1, 0.2], **{"compute/examples": [0, 2_500_000]})]}
    left, right = convergence(runs, y="comm/total_bytes", beside="compute/examples").axes
    assert left.get_ylabel() == "communication, up and down (B)"
    assert right.get_ylabel() == "training examples processed"
    assert (left.yaxis.get_major_formatter()(400_000), right.yaxis.get_major_formatter()(2.5e6)) == (
        "400k",
        "2.5M",
    )
    (axes,) = convergence(runs).axes
    assert axes.yaxis.get_major_formatter()(0.5) != "500m"


def test_a_curve_ends_where_a_run_diverges_and_says_so(tmp_path):
    for name, last in (("good", "2,0.3\n"), ("bad", "2,nan\n")):
        (tmp_path / name).write_text(f"round,global/loss\n0,0.1\n1,0.2\n{last}")
    good, bad = (read_metrics(tmp_path / name) for name in ("good", "bad"))
    (axes,) = convergence({"a": [good, bad], "b": [bad], "c": [good]}, y="global/loss").axes
    assert [line.get_label() for line in axes.lines] == [
        "a (nan from round 2 in 1 of 2 runs)",
        "b (nan from round 2)",
        "c",
    ]
    assert [line.get_xdata().tolist() for line in axes.lines] == [[0, 1], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_same_numbers_same_file(tmp_path, form, start):
    for name in "ab":
        save_figure(convergence({"a": [columns([0.1, 0.2])]}), tmp_path / f"{name}.{form}")
    first = (tmp_path / f"a.{form}").read_bytes()
    assert first.startswith(start)
    assert first == (tmp_path / f"b.{form}").read_bytes()


def test_a_dollar_in_a_name_is_a_dollar_and_the_numbers_of_a_logarithmic_axis_are_formulas(tmp_path):
    figure, (axes,) = panels(title="$5 and $x_$")
    (curve,) = axes.plot([0, 1], [0.001, 10], label=r"$\frac$")
    axes.set_yscale("log")
    axes.set_xticks([0, 1], ["$_$", "b"])
    legend_below(figure, [curve])
    save_figure(
        figure, tmp_path / "dollars.png"
    )  # matplotlib would end with "Expected ... found end of text"
    read = {text.get_text() for text in figure.findobj(Text) if text.get_parse_math() and text.get_text()}
    assert r"$\mathdefault{10^{-3}}$" in read
    assert all(one.startswith(r"$\mathdefault{") for one in read)


def test_a_long_title_has_several_lines_and_a_single_round_whole_numbers():
    figure = run_figure(
        pd.DataFrame({"round": [0], "global/acc": [0.1], "train/loss": [2.3]}), "a long name " * 12
    )
    lines = figure.axes[0].get_title(loc="left").splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 70
    figure.draw_without_rendering()
    assert all(tick == round(tick) for tick in figure.axes[1].get_xticks())
