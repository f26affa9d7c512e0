"""The table of published and measured numbers in a report at W&B."""

import json

from report_runs import make_run

from fedfeat.commands.wandb_tables import published_table
from fedfeat.runs.finished import find_runs


def line(folder):
    table = published_table(find_runs([folder])[0], ["global/acc"])
    return [cell.strip() for cell in table.splitlines()[2].strip("|").split("|")]


def test_means_with_their_spread_beside_the_published_number(tmp_path):
    for seed, acc in enumerate((0.5, 0.6, 0.7)):
        make_run(tmp_path / str(seed), seed, acc=acc, published={"global/acc": 0.65})
    assert line(tmp_path)[1:] == ["3", "0.6 ± 0.1", "0.65", "-0.05"]


def test_a_setting_of_which_a_run_has_diverged_has_no_mean_and_no_spread(tmp_path):
    for seed in range(3):
        place = make_run(tmp_path / str(seed), seed, acc=0.5)
    summary = json.loads((place / "summary.json").read_text())
    (place / "summary.json").write_text(json.dumps(summary | {"final": {"global/acc": "nan"}}))
    assert line(tmp_path)[1:] == ["3", "nan"]
