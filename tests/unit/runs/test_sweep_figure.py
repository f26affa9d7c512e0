"""Figures over a swept key: lines, bars, levels, two axes."""

import numpy as np
import pytest

from fedfeat.runs.figures import PALETTE
from fedfeat.runs.legend import GREY
from fedfeat.runs.quantities import Metric
from fedfeat.runs.sweep_figure import Point, Quantity, sweep_figure


def quantity(name, curves, levels=None, chosen=None):
    """Points are lists of the runs' numbers."""
    points = {
        label: {x: Point(tuple(v), max(2, len(v))) for x, v in one.items()} for label, one in curves.items()
    }
    flat = {label: Point(tuple(v), len(v)) for label, v in (levels or {}).items()}
    texts = chosen or dict.fromkeys((*points, *flat), name)
    return Quantity(Metric.parse(name), points, flat, texts, frozenset(texts.values()))


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_point_is_mean_and_sample_deviation():
    point = Point((0.4, 0.5, 0.9), 3)
    assert (point.mean, point.std) == pytest.approx((0.6, 0.07**0.5))
    assert not point.is_nan
    assert not point.is_partial
    assert Point((0.5,), 1).std == 0
    assert Point((0.5, float("nan")), 2).is_nan
    assert Point((0.5,), 2).is_partial
    assert not Point((), 2).is_nan


def test_numbers_are_lines_with_spread_and_a_setting_without_the_key_goes_across():
    curves = {"fed2": {10: [0.5, 0.7], 2: [0.4, 0.4]}, "psi_net": {2: [0.3, 0.3], 5: [0.2, 0.2]}}
    figure = sweep_figure("structure.groups", [quantity("global/acc", curves, {"fedavg": [0.1, 0.3]})])
    (axes,) = figure.axes
    assert axes.get_xlabel() == "structure.groups"
    assert axes.get_ylabel() == "global model, accuracy (mean ± std)"
    assert legend(figure) == ["fed2", "psi_net", "fedavg"]
    container = axes.containers[0]
    np.testing.assert_allclose(container.lines[0].get_xydata(), [[2, 0.4], [10, 0.6]])
    spread = container.lines[2][0].get_segments()[1][:, 1]
    np.testing.assert_allclose(spread, [0.6 - 0.02**0.5, 0.6 + 0.02**0.5])
    (level,) = [line for line in axes.lines if line.get_label() == "fedavg"]
    assert level.get_ydata() == pytest.approx([0.2, 0.2])
    assert level.get_xdata() == [0, 1]  # of the axes, from side to side
    (band,) = axes.patches
    assert band.get_y() == pytest.approx(0.2 - 0.02**0.5)
    assert band.get_height() == pytest.approx(2 * 0.02**0.5)
    assert axes.get_xticks().tolist() == [2, 5, 10]


@pytest.mark.parametrize(
    ("values", "bars"), [((1, 10), True), (("contiguous", "random"), False), ((2, "last6"), False)]
)
def test_words_are_bars_and_numbers_too_where_that_is_asked_for(values, bars):
    first, second = values
    curves = {"a": {first: [0.2, 0.4], second: [0.4, 0.4]}, "b": {second: [0.5, 0.5]}}
    (axes,) = sweep_figure("key", [quantity("x", curves)], bars).axes
    heights = {round(bar.get_x() + bar.get_width() / 2, 6): bar.get_height() for bar in axes.patches}
    assert heights == pytest.approx({-0.2: 0.3, 0.8: 0.4, 1.2: 0.5})
    assert [text.get_text() for text in axes.get_xticklabels()] == [str(first), str(second)]
    assert axes.get_ylim()[0] == 0


def test_two_quantities_have_two_axes_and_say_which_is_which():
    acc = quantity("global/acc", {"fed2": {1: [0.5, 0.7], 2: [0.6, 0.6]}}, {"fedavg": [0.1]})
    tv = quantity("align/tv_conv1", {"fed2": {1: [30.0, 30.0], 2: [50.0, 50.0]}}, {"fedavg": [90.0]})
    figure = sweep_figure("structure.depth", [acc, tv])
    left, right = figure.axes
    assert legend(figure) == [
        "fed2: global/acc",
        "fedavg: global/acc",
        "fed2: align/tv_conv1",
        "fedavg: align/tv_conv1",
    ]
    line = next(line for line in right.lines if line.get_label().startswith("fed2"))
    assert line.get_ydata().tolist() == [30, 50]
    assert line.get_color() == PALETTE[0]
    assert right.get_ylabel() == "align/tv_conv1"
    assert left.get_ylim()[1] < 1 < right.get_ylim()[1]


def test_two_accuracies_have_one_scale():
    figure = sweep_figure(
        "k", [quantity("global/acc", {"a": {1: [0.9]}}), quantity("personal/acc_mean", {"a": {1: [0.1]}})]
    )
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_bars_of_one_quantity_stand_beside_marks_of_the_other():
    figure = sweep_figure(
        "k", [quantity("x", {"a": {"u": [1.0], "v": [2.0]}}), quantity("y", {"a": {"u": [3.0], "v": [4.0]}})]
    )
    left, right = figure.axes
    assert [bar.get_height() for bar in left.patches] == [1, 2]
    assert right.lines[0].get_xydata().tolist() == [[0, 3], [1, 4]]
    assert right.lines[0].get_linestyle() == "None"  # from word to word leads no line


def test_each_label_says_its_quantity_where_these_differ():
    chosen = {"fedhenn": "personal/acc_mean", "fedavg": "global/client_acc_mean"}
    name = "personal/acc_mean,global/client_acc_mean"
    curves = {"fedhenn": {0.0: [0.5], 1.0: [0.4]}, "fedavg": {0.0: [0.3], 1.0: [0.2]}}
    figure = sweep_figure("scenario.reduced_fraction", [quantity(name, curves, chosen=chosen)])
    assert legend(figure) == ["fedhenn: personal/acc_mean", "fedavg: global/client_acc_mean"]
    assert figure.axes[0].get_ylabel() == "personal models, accuracy\nor global model, client accuracy"


def test_nan_stands_at_the_foot_and_a_mean_over_some_runs_is_hollow():
    curves = {"a": {1: [0.5, float("nan")], 2: [0.4, 0.4], 3: [0.3]}}
    (axes,) = sweep_figure("k", [quantity("x", curves, {"b": [float("nan")]})]).axes
    assert [(text.get_text(), text.get_position()[0]) for text in axes.texts] == [
        ("nan", 1),
        ("b: nan", 0.01),
    ]
    line, hollow, _ = axes.lines
    assert line.get_xydata().tolist() == [[2, 0.4], [3, 0.3]]
    assert hollow.get_xydata().tolist() == [[3, 0.3]]
    assert hollow.get_markerfacecolor() == "white"
    assert 1 in axes.get_xticks()


@pytest.mark.parametrize(
    ("values", "scale"), [((0.1, 0.5, 5), "log"), ((1, 2, 10), "linear"), ((0, 1, 100), "linear")]
)
def test_an_axis_over_orders_of_magnitude_is_logarithmic(values, scale):
    (axes,) = sweep_figure("k", [quantity("x", {"a": {value: [0.5] for value in values}})]).axes
    assert axes.get_xscale() == scale
    assert [text.get_text() for text in axes.get_xticklabels()] == [f"{value:g}" for value in values]


def test_settings_for_which_no_look_is_left_are_grey_and_counted_and_their_nan_has_no_name():
    curves = {f"s{k}": {1: [0.5, 0.7], 2: [0.4, k / 40]} for k in range(30)}
    levels = {"lost": [float("nan")], "level": [0.1, 0.3]}
    figure = sweep_figure("structure.groups", [quantity("global/acc", curves, levels)])
    assert legend(figure) == [*(f"s{k}" for k in range(28)), "4 more, in the table"]
    (axes,) = figure.axes
    colours = [container.lines[0].get_color() for container in axes.containers]
    assert [colour == GREY for colour in colours] == [k >= 28 for k in range(30)]
    assert [text.get_text() for text in axes.texts] == []
    assert {
        line.get_color() for line in axes.lines if line.get_xdata()[-1] == 1 and len(line.get_xdata()) == 2
    } == {GREY}
