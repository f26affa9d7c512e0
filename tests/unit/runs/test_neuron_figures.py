"""Pictures of single neurons draw the numbers that they are given, with labels that do not touch."""

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fedfeat.runs.neuron_figures import maximised_grid, preference_bars

CLIENTS = [f"client {k}" for k in range(11)]


def no_texts_overlap(figure):
    FigureCanvasAgg(figure).draw()
    texts = [figure._suptitle, figure._supxlabel]
    for axes in figure.axes:
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label]
    boxes = [text.get_window_extent() for text in texts if text is not None and text.get_text()]
    width, height = figure.canvas.get_width_height()
    inside = all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height for box in boxes)
    return inside and not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


def bars_of(axes):
    return [bar.get_width() for bar in axes.patches]


def test_bars_are_the_shares_in_the_colours_of_the_classes():
    shares = {
        "server": torch.tensor([[0.2, 0.8], [1.0, 0.0]]),
        "client 4": torch.tensor([[0.5, 0.5], [0.1, 0.9]]),
    }
    present = {"server": torch.tensor([True, True]), "client 4": torch.tensor([True, False])}
    figure = preference_bars("T", [3, 9], shares, present, ["cat", "dog"])
    assert [axes.get_title() for axes in figure.axes] == ["server", "client 4", "", ""]
    assert [axes.get_ylabel() for axes in figure.axes] == ["neuron 3", "", "neuron 9", ""]
    assert [bars_of(axes) for axes in figure.axes[:3]] == [
        pytest.approx([0.2, 0.8]),
        pytest.approx([0.5, 0.5]),
        pytest.approx([1.0, 0.0]),
    ]
    assert [text.get_text() for text in figure.axes[3].texts] == ["lacks it"]
    assert bars_of(figure.axes[3]) == []
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["cat", "dog"]
    first, second = (bar.get_facecolor() for bar in figure.axes[0].patches)
    assert first != second
    assert no_texts_overlap(figure)


def test_a_neuron_without_any_preference_says_so_and_one_models_neurons_stand_side_by_side():
    shares = {"server": torch.tensor([[0.3, 0.7], [torch.nan, torch.nan]])}
    figure = preference_bars("T", [3, 9], shares, {"server": torch.tensor([True, True])}, ["cat", "dog"])
    assert [axes.get_title() for axes in figure.axes] == ["neuron 3", "neuron 9"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["server", ""]
    assert bars_of(figure.axes[0]) == pytest.approx([0.3, 0.7])
    assert bars_of(figure.axes[1]) == []
    assert [text.get_text() for text in figure.axes[1].texts] == ["no class"]
    assert no_texts_overlap(figure)


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_labels_stay_apart_for_many_clients_and_classes(classes):
    shares = {name: torch.rand(3, classes) for name in CLIENTS}
    present = {name: torch.ones(3, dtype=torch.bool) for name in CLIENTS}
    names = [f"class number {i}" for i in range(classes)]
    figure = preference_bars("digits-fed2, round 50: conv1", [0, 10, 200], shares, present, names)
    assert no_texts_overlap(figure)
    assert len(figure.axes[0].get_yticklabels()) <= 20


@pytest.mark.parametrize("models", [["server"], CLIENTS])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_pictures_are_drawn_between_black_and_white(channels, models):
    draw = np.random.default_rng(0)
    pixels = {name: draw.random((2, channels, 6, 6)) for name in models}
    pixels[models[-1]][1] = np.nan
    classes = {name: [1, -1] for name in models}
    below = "256 steps, lr 0.1, L2 decay 0.05, blur 0.5 every 4 steps, jitter 1, seed 0"
    figure = maximised_grid("T", [0, 7], pixels, classes, ["cat", "a class of a very long name"], below)
    image = figure.axes[0].images[0]
    assert image.get_clim() == (0, 1)
    picture = pixels[models[0]][0]
    expected = picture.transpose(1, 2, 0) if channels == 3 else picture.mean(0)
    np.testing.assert_allclose(image.get_array(), expected)
    assert figure.axes[0].get_xlabel() == "a class of a …"
    assert [text.get_text() for text in figure.axes[-1].texts] == ["lacks it"]
    assert not figure.axes[-1].images
    assert below in figure._supxlabel.get_text().replace("\n", " ")
    assert no_texts_overlap(figure)
