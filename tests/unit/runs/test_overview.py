"""The first picture of a run."""

import numpy as np
import pandas as pd

from fedfeat.runs.overview import draw_overview, last_accuracies, overview_figure

COUNTS = np.array([[4, 0, 2], [0, 0, 1]])


def test_a_cell_has_the_colour_of_its_class_and_is_paler_with_fewer_examples():
    run = pd.DataFrame({"round": [0, 1], "global/acc": [0.1, 0.6]})
    figure = overview_figure(run, np.array([0.5, np.nan]), COUNTS, ["a", "b", "c"], "digits-fed2")
    curve, below, above = figure.axes
    assert curve.lines[0].get_ydata().tolist() == [0.1, 0.6]
    assert above.patches[0].get_data().values[0] == 0.5
    image = np.asarray(below.images[0].get_array())
    assert (image[1] == 1).all()  # nobody has class b
    assert image[2, 0].sum() < image[2, 1].sum() < 3
    assert [tick.get_text() for tick in below.get_yticklabels()] == ["a", "b", "c"]


def test_who_has_everything_is_no_client_beside_others():
    run = pd.DataFrame({"round": [0, 1], "global/acc": [0.1, 0.5]})
    figure = overview_figure(run, np.array([0.5]), COUNTS[:1], ["a", "b", "c"], "digits-centralized")
    assert [axes.get_xlabel() for axes in figure.axes] == ["round"]


def test_clients_are_judged_by_the_servers_model_else_by_their_own_in_the_last_round_that_has_any():
    table = pd.DataFrame(
        {"round": [0, 0, 1, 1], "client_id": [0, 1, 0, 2], "personal_acc": [0.1, 0.2, 0.7, 0.9]}
    )
    assert last_accuracies(table, 2).tolist()[0] == 0.7
    assert np.isnan(last_accuracies(table, 2)[1])
    assert last_accuracies(table.assign(global_acc=[0.3, 0.4, np.nan, np.nan]), 2).tolist() == [0.3, 0.4]
    assert np.isnan(last_accuracies(table[:0], 2)).all()


def test_the_picture_is_drawn_from_the_tables_of_the_run(tmp_path):
    (tmp_path / "metrics.csv").write_text("round,global/acc\n0,0.1\n1,0.5\n")
    (tmp_path / "clients.csv").write_text("round,client_id,global_acc\n1,0,0.5\n1,1,0.25\n")
    ((name, path),) = draw_overview(tmp_path, "x", COUNTS, ["a", "b", "c"]).items()
    assert (name, path) == ("overview", tmp_path / "figures" / "overview.png")
    assert path.read_bytes().startswith(b"\x89PNG")
