"""Pictures of kernels draw the numbers that they are given."""

import itertools

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba

from fedfeat.runs.kernel_figures import cka_maps, component_maps


def test_maps_show_their_matrices_on_one_scale_with_numbers_where_there_is_room():
    maps = {"first": torch.tensor([[1.0, 0.25], [0.25, 1.0]]), "last": torch.tensor([[1.0, 0.9], [0.9, 1.0]])}
    figure = cka_maps(maps, ["0 cnn", "1 mlp"])
    *panels, bar = figure.axes
    assert bar.get_ylabel() == "CKA"
    for axes, (title, matrix) in zip(panels, maps.items(), strict=True):
        assert axes.get_title(loc="left") == title
        (image,) = axes.images
        assert np.array_equal(image.get_array(), matrix.numpy())
        assert image.get_clim() == (0, 1)
        assert [text.get_text() for text in axes.texts] == [f"{value:.2f}" for value in matrix.flatten()]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["0 cnn", "1 mlp"]
    assert list(cka_maps({"": torch.eye(11)}, [str(k) for k in range(11)]).axes[0].texts) == []


def test_labels_of_a_map_do_not_touch():
    figure = cka_maps({"": torch.eye(6)}, [f"{k} mobilenet" for k in range(6)])
    FigureCanvasAgg(figure).draw()
    places = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(places))
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {45.0}


@pytest.mark.parametrize("classes", [3, 12])
def test_instances_lie_where_their_components_say_in_the_colours_of_their_classes(classes):
    labels = torch.tensor([0, 2, 1, 2])
    first, second = torch.arange(8.0).view(4, 2), -torch.arange(8.0).view(4, 2)
    rows = {"alone": {"0": first, "1": second}, "together": {"0": second}}
    figure = component_maps(rows, labels, [f"c{k}" for k in range(classes)])
    FigureCanvasAgg(figure).draw()
    drawn = [axes for axes in figure.axes if axes.collections and axes.get_label() != "<colorbar>"]
    for axes, components in zip(drawn, (first, second, second), strict=True):
        (points,) = axes.collections
        assert np.array_equal(points.get_offsets(), components.numpy())
        colors = points.get_facecolors()
        assert np.array_equal(colors[1], colors[3])
        assert len(np.unique(colors, axis=0)) == 3
    if classes == 3:
        names = [text.get_text() for text in figure.legends[0].get_texts()]
        assert names == ["c0", "c1", "c2"]
        patch = figure.legends[0].get_patches()[2]
        assert to_rgba(patch.get_facecolor()) == tuple(drawn[0].collections[0].get_facecolors()[1])
