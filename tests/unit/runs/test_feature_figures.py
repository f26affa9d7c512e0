"""Pictures of class preferences draw the numbers that they are given."""

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fedfeat.errors import ConfigError
from fedfeat.features.diagnostics import short_names
from fedfeat.features.preference import NO_CLASS
from fedfeat.runs.feature_figures import encoding_map, tv_curve

LAYERS = ["encoder.conv1.conv", "encoder.conv2.conv"]
NAMES = ["cat", "dog", "frog"]


def encodings():
    """Alignment in conv1: mean of 1, 1 and 1/3 under A; all 1 under B, whose third neuron is dead."""
    a = [torch.tensor(row) for row in ([0, 1, 2], [0, 1, 2], [0, 1, 0])]
    b = [torch.tensor([0, 1, NO_CLASS])] * 3
    return {"A": {LAYERS[0]: a, LAYERS[1]: a[:2]}, "B": {LAYERS[0]: b, LAYERS[1]: b}}


def labels_of(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def no_texts_overlap(figure):
    """Draw it, and compare the boxes of titles, axis labels and legend."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [
        text
        for axes in figure.axes
        for text in (axes.title, axes._left_title, axes._right_title, axes.xaxis.label, axes.yaxis.label)
    ]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    boxes += [axes.get_window_extent() for axes in figure.axes]
    return not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


@pytest.mark.parametrize("stacked", [False, True])
def test_encoding_map_draws_a_panel_per_layer_and_method(stacked):
    figure = encoding_map(encodings(), NAMES, stacked=stacked)
    titles = [(axes.get_title("left"), axes.get_title("right")) for axes in figure.axes]
    assert titles == [
        ("A, conv1", "agreement 0.78"),
        ("B, conv1", "agreement 1.00"),
        ("A, conv2", "agreement 1.00"),
        ("B, conv2", "agreement 1.00"),
    ]
    assert len({round(axes.get_position().x0, 1) for axes in figure.axes}) == (1 if stacked else 2)
    assert no_texts_overlap(figure)


def test_a_bar_has_the_colour_of_its_class_and_a_dead_neuron_is_white():
    figure = encoding_map(
        encodings(), NAMES, layers=LAYERS[:1], client_names={"A": list("xyz"), "B": list("uvw")}
    )
    first, second = figure.axes
    image = first.images[0]
    assert image.get_array().tolist() == [[0, 1, 2], [0, 1, 2], [0, 1, 0]]
    colours = image.to_rgba(image.get_array())
    legend = {
        text.get_text(): patch.get_facecolor()
        for text, patch in zip(figure.legends[0].get_texts(), figure.legends[0].get_patches(), strict=True)
    }
    assert list(legend) == [*NAMES, "no class"]
    for number, name in enumerate(NAMES):
        np.testing.assert_allclose(colours[0, number], legend[name])
    dead = second.images[0]
    np.testing.assert_array_equal(dead.to_rgba(dead.get_array())[:, 2], np.ones((3, 4)))
    rows = [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes]
    assert rows == [["x", "y", "z"], ["u", "v", "w"]]


def test_many_classes_get_a_scale_and_many_clients_fewer_labels():
    clients = [torch.arange(60) + k % 40 for k in range(80)]
    figure = encoding_map({"A": {"fc": clients}}, [f"c{i}" for i in range(100)])
    axes, scale = figure.axes
    assert figure.legends == []
    assert scale.get_ylabel() == "primary class"
    assert [label.get_text() for label in scale.get_yticklabels()] == [
        "c0",
        "c20",
        "c40",
        "c59",
        "c79",
        "c99",
    ]
    assert 10 <= len(axes.get_yticklabels()) <= 20
    assert no_texts_overlap(figure)


def test_a_layer_without_pairs_has_no_alignment():
    figure = encoding_map({"": {"fc": [torch.tensor([0, NO_CLASS])]}}, NAMES)
    assert figure.axes[0].get_title("left") == "fc"
    assert figure.axes[0].get_title("right") == ""


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"layers must be layers of A, but fc9 is not"):
        encoding_map(encodings(), NAMES, layers=["fc9"])
    with pytest.raises(ConfigError, match=r"palette must be one of .*tab10.*, but it is 'x'"):
        encoding_map(encodings(), NAMES, palette="x")
    with pytest.raises(ValueError, match="2 class names, but a neuron has class 2"):
        encoding_map(encodings(), NAMES[:2])


def test_tv_curve_has_its_threshold_and_names_the_first_layer_above_it():
    """TV from 0.1 to 0.9: threshold 0.5, which the third layer is the first to exceed."""
    figure = tv_curve(["encoder.a.conv", "encoder.b.conv", "head.c.linear"], {"digits": [0.1, 0.4, 0.9]})
    (axes,) = figure.axes
    curve, threshold = axes.lines
    assert curve.get_ydata().tolist() == [0.1, 0.4, 0.9]
    assert list(threshold.get_ydata()) == pytest.approx([0.5, 0.5])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "c"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("layer, first to last", "total variance (TV)")
    assert labels_of(figure) == ["digits", "threshold 0.50, first exceeded by c"]
    assert axes.get_title("right") == "threshold: min + 0.5 (max - min) of the layers"
    assert no_texts_overlap(figure)


def test_the_logits_count_for_no_threshold():
    figure = tv_curve(["a", "b", "c"], {"x": [0.1, 0.3, 0.9]}, with_output=True, tau=0.75)
    assert labels_of(figure) == ["x", "threshold 0.25, first exceeded by b"]
    flat = tv_curve(["a", "b", "c"], {"x": [0.2, 0.2, 0.9]}, with_output=True)
    assert labels_of(flat) == ["x", "threshold 0.20, not exceeded"]
    assert flat.axes[0].get_title("right").endswith("of the hidden layers")


def test_tv_curve_marks_where_groups_begin_in_networks_that_have_them():
    curves = {"x": [0.0, 1.0], "dense": [0.5, 0.5], "y": [1.0, 0.0]}
    figure = tv_curve(["a", "b"], curves, depths={"x": 1, "y": 0}, title="T")
    (axes,) = figure.axes
    upright = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]
    assert upright == [1.5, 0.62]
    # Down the columns: curves, thresholds, groups.
    assert labels_of(figure) == [
        *("x", "dense", "y"),
        *(
            "threshold 0.50, first exceeded by b",
            "threshold 0.50, not exceeded",
            "threshold 0.50, first exceeded by a",
        ),
        *("groups from b on", "", "groups from a on"),
    ]
    assert axes.get_title("left") == "T"
    assert no_texts_overlap(figure)


def test_a_long_networks_names_stay_apart():
    layers = [f"encoder.conv{b}_{i}.conv" for b in range(1, 6) for i in range(1, 4)] + ["head.fc1.linear"]
    curves = {f"fig7_tv-cifar{n}": np.linspace(0.1, 0.9, 16).tolist() for n in (10, 100)}
    figure = tv_curve(layers, curves, {name: 6 for name in curves}, with_output=True)
    assert no_texts_overlap(figure)
    width = figure.canvas.get_width_height()[0]
    (legend,) = figure.legends
    assert 0 <= legend.get_window_extent().x0 <= legend.get_window_extent().x1 <= width


def test_short_names_stay_different():
    assert short_names(["encoder.conv1.conv", "head.fc1.linear"]) == ["conv1", "fc1"]
    residual = ["encoder.layer1_1.residual.conv1", "encoder.layer1_1.residual.conv2"]
    assert short_names(residual) == ["layer1_1.residual.conv1", "layer1_1.residual.conv2"]
    assert short_names(["fc"]) == ["fc"]


def test_tv_that_is_not_finite_has_no_threshold():
    """Activations of finite weights may overflow, as in the last round of a run that diverges."""
    figure = tv_curve(
        ["a", "b", "c"], {"lost": [0.1, float("nan"), 0.2], "kept": [0.1, 0.3, 0.2]}, depths={"lost": 1}
    )
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sum(label.startswith("threshold") for label in labels) == 1
    assert {"lost", "kept"} <= {*labels}
