"""Tables and pictures of what a method watches by channel."""

import numpy as np
import pytest
from PIL import Image

from fedfeat.rounds.evaluation import summarise_observed
from fedfeat.runs.observed import channels_figure, draw_observed, read_table, table_path

ROUNDS = np.array([0.0, 2.0, 4.0])
VALUES = np.array([[0.5, 0.0, 0.1], [0.5, 0.2, 0.1], [0.9, 0.3, 0.0]])


def write_table(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_table_is_named_after_its_quantity(tmp_path):
    assert table_path(tmp_path, "fusion/lambda") == tmp_path / "observed" / "fusion_lambda.csv"


@pytest.mark.parametrize(("text", "values"), [("1,2.5\n3,-1\n", [[2.5], [-1.0]]), ("0,1,2\n", [[1.0, 2.0]])])
def test_a_table_is_read_as_rounds_and_values(tmp_path, text, values):
    path = table_path(tmp_path, "x")
    write_table(path, "round," + ",".join(map(str, range(len(values[0])))) + "\n" + text)
    rounds, found = read_table(path)
    assert rounds.tolist() == [float(line.split(",")[0]) for line in text.split()]
    assert found.tolist() == values


def test_channels_are_sorted_by_their_last_value_above_their_mean():
    map_panel, mean_panel, *_ = channels_figure(ROUNDS, VALUES, "lambda").axes
    (mesh,) = map_panel.collections
    # Last values .9, .3, 0: from below, channels 2, 1, 0.
    assert mesh.get_array().reshape(3, 3).tolist() == VALUES[:, [2, 1, 0]].T.tolist()
    (line,) = mean_panel.lines
    assert line.get_xdata().tolist() == ROUNDS.tolist()
    assert line.get_ydata().tolist() == pytest.approx([0.2, 0.8 / 3, 0.4])
    (band,) = mean_panel.collections
    # Of .5, 0, .1 the 10th percentile is a fifth of the way from 0 to .1, the 90th four fifths from .1 to .5.
    heights = band.get_paths()[0].vertices
    at_first = heights[heights[:, 0] == 0.0, 1]
    assert (at_first.min(), at_first.max()) == pytest.approx((0.02, 0.42))


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_single_number_is_a_line(rounds):
    (panel,) = channels_figure(ROUNDS[:rounds], VALUES[:rounds, :1], "lambda").axes
    assert panel.lines[0].get_ydata().tolist() == VALUES[:rounds, 0].tolist()
    assert panel.get_ylabel() == "lambda"


def test_every_table_of_a_run_is_drawn(tmp_path):
    write_table(table_path(tmp_path, "fusion/lambda"), "round,0,1\n0,0,0\n1,0.5,0.25\n")
    write_table(table_path(tmp_path, "other"), "round,0\n0,1\n")
    write_table(table_path(tmp_path, "empty"), "round,0\n")
    paths = draw_observed(tmp_path)
    assert set(paths) == {"fusion_lambda", "other"}
    for name, path in paths.items():
        assert path == tmp_path / "figures" / f"{name}.png"
        with Image.open(path) as image:
            assert len(set(image.convert("L").tobytes())) > 10


def test_a_run_without_tables_has_no_pictures(tmp_path):
    assert draw_observed(tmp_path) == {}
    assert not (tmp_path / "figures").exists()


def test_what_is_watched_is_summed_up():
    found = summarise_observed({"fusion/lambda": (0.0, 1.0, 0.5, 0.5)})
    expected = {"mean": 0.5, "std": 0.125**0.5, "min": 0.0, "max": 1.0}
    assert found == pytest.approx({f"fusion/lambda_{name}": value for name, value in expected.items()})
