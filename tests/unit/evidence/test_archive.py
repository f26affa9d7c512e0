"""Stored runs by study, setting, arm and seed."""

import json
import math
from pathlib import Path

import pytest
import yaml

from fedfeat.errors import DIVERGED, ConfigError
from fedfeat.evidence.archive import Archive
from fedfeat.evidence.campaign import Campaign, Cell, Study
from fedfeat.evidence.leaderboard import rows, trials
from fedfeat.evidence.tables import Tables

STUDIES = {
    name: Study(name, (), {"a": (), "b": ()}, {"x": (), "y": ()}, {"": ()}, (0, 1)) for name in ("one", "two")
}


def store(root: Path, cell: Cell, accuracy, reached, seconds=1800.0, name="global/acc"):
    place = root / cell.name
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(
        yaml.safe_dump({"seed": cell.seed, "federation": {"num_rounds": 2, "target_metric": name}})
    )
    rows = "".join(f"{at},{value}\n" for at, value in enumerate(accuracy))
    (place / "metrics.csv").write_text(f"round,{name}\n{rows}")
    target = {"0.9": {"rounds": reached} if reached else None}
    summary = {
        "seed": cell.seed,
        "final": {name: accuracy[-1]},
        "to_target": target,
        "seconds": seconds,
    }
    (place / "summary.json").write_text(json.dumps(summary))


def diverge(root: Path, cell: Cell, seconds=900.0):
    place = root / cell.name
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(yaml.safe_dump({"seed": cell.seed}))
    (place / "metrics.csv").write_text(f"round,time/total_s\n0,0.0\n1,{seconds}\n")
    (place / "failure.txt").write_text(f"Client 1 failed in round 2 (seed 3): {DIVERGED}.\n")


def test_the_edge_of_a_grid_goes_by_the_rate_that_a_run_takes(tmp_path):
    """The last word of a key holds: with rates .1, .2 and .3 of its own the point "b" is in the middle."""
    own = {name: (f"optimizer.lr={rate}",) for name, rate in (("a", 0.1), ("b", 0.2), ("c", 0.3))}
    study = Study("s", (), {"a": ()}, {"": ()}, {"": ("optimizer.lr=9",)}, (0,), own={"a": own})
    archive = Archive(Campaign("k", (), {}, {"s": study}), tmp_path)
    assert [archive.edge_mark("s", "a", point) for point in ("a", "b", "c")] == ["\\*", "", "\\*"]


def test_values_by_seed_over_studies(tmp_path):
    archive = Archive(Campaign("k", (), {}, STUDIES), tmp_path)
    store(tmp_path, Cell("one", "x", "a", "", 0), [0.1, 0.2, 0.4], 2)
    store(tmp_path, Cell("two", "x", "a", "", 1), [0.1, 0.3, 0.5], None)
    store(tmp_path, Cell("one", "y", "a", "", 0), [0.1, 0.1, 0.1], None)
    half = tmp_path / Cell("one", "x", "b", "", 0).name  # a copy that was cut
    half.mkdir(parents=True)
    (half / "summary.json").write_text("{}")
    assert archive.values(["one", "two"], "x", "a", "global/acc") == {0: 0.4, 1: 0.5}
    assert archive.values(["one"], "x", "a", "last2/global/acc") == {0: 0.30000000000000004}
    assert archive.values(["one", "two"], "x", "a", "to_target/0.9/rounds") == {0: 2.0, 1: math.inf}
    assert archive.values(["one"], "x", "b", "global/acc") == {}
    assert archive.values(["one"], "x", "a", "personal/acc_mean") == {}
    assert archive.hours("one") == 1.0


def test_a_run_that_never_came_there_is_bounded_by_one_evaluation_more(tmp_path):
    archive = Archive(Campaign("k", (), {}, STUDIES), tmp_path)
    store(tmp_path, Cell("one", "x", "a", "", 0), [0.1, 0.2, 0.4], 2)
    store(tmp_path, Cell("one", "x", "a", "", 1), [0.1, 0.3, 0.5], None)
    (tmp_path / Cell("one", "x", "a", "", 1).name / "metrics.csv").write_text(
        "round,global/acc,comm/total_bytes\n0,0.1,5\n4,0.3,35\n7,0.5,95\n"
    )
    asked = (["one"], "x", "a", "to_target/0.9/rounds")
    assert archive.values(*asked) == {0: 2.0, 1: math.inf}
    assert archive.bounded(*asked) == {0: 2.0, 1: 10.0}
    assert [(one.step, one.never) for one in archive.bounded(*asked).values()] == [(1.0, False), (3.0, True)]
    # Any accuracy is one that a run may come to, by its table, whether or not it is among its targets.
    other = (*asked[:3], "to_target/0.45/rounds")
    assert archive.values(*other) == {0: math.inf, 1: 7.0}
    assert archive.bounded(*other) == {0: 3.0, 1: 7.0}
    other = (*asked[:3], "to_target/0.45/up_bytes")
    assert archive.values(*other) == archive.bounded(*other) == {}
    assert archive.bounded(*asked[:3], "global/acc") == {0: 0.4, 1: 0.5}
    # Known to the step in which the target was reached, not to the last one.
    reached = archive.bounded(*asked[:3], "to_target/0.3/rounds")
    assert (reached, [one.step for one in reached.values()]) == ({0: 2.0, 1: 4.0}, [1.0, 4.0])
    assert archive.step(*asked[:3], "to_target/0.3/rounds") == 4.0
    at_once = archive.bounded(*asked[:3], "to_target/0.1/rounds")
    assert [(float(one), one.step) for one in at_once.values()] == [(0.0, 0.0), (0.0, 0.0)]


def test_an_arm_is_tuned_to_a_point_that_did_not_diverge_and_one_without_an_end_waits(tmp_path):
    points = {"wild": (), "calm": ()}
    study = Study("tune", (), {"a": (), "b": ()}, {"": ()}, points, (0,))
    archive = Archive(Campaign("k", (), {}, {"tune": study}), tmp_path)
    diverge(tmp_path, Cell("tune", "", "a", "wild", 0))
    store(tmp_path, Cell("tune", "", "a", "calm", 0), [0.1, 0.1], None, name="val/acc")
    diverge(tmp_path, Cell("tune", "", "b", "wild", 0))
    assert archive.tuned("tune", "a") == ("calm", {"wild": -math.inf, "calm": 0.1})
    assert archive.tuned("tune", "b") is None
    assert trials(archive, "tune") == [["a", "2 (1 diverged)", "calm", "0.100"]]
    assert archive.hours("tune") == 1.0
    assert [*archive.values(["tune"], "", "b", "global/acc")] == [0]
    assert math.isnan(archive.values(["tune"], "", "b", "global/acc")[0])


def test_a_method_of_which_a_run_diverged_is_last_on_the_board_and_says_so(tmp_path):
    archive = Archive(Campaign("k", (), {}, STUDIES), tmp_path)
    store(tmp_path, Cell("one", "x", "a", "", 0), [0.1, 0.9], None)
    diverge(tmp_path, Cell("one", "x", "a", "", 1))
    store(tmp_path, Cell("one", "x", "b", "", 0), [0.1, 0.2], None)
    diverge(tmp_path, Cell("one", "y", "b", "", 0))
    diverge(tmp_path, Cell("one", "y", "b", "", 1))
    assert [line[:3] for line in rows(archive, "one", "x")] == [
        ["b", "server's", "0.200 (1)"],
        ["a", "server's", "0.900 (1), 1 diverged"],
    ]
    assert rows(archive, "one", "y") == [["b", "-", "2 diverged", "-", "-", "-", "-", "-"]]


def test_a_method_whose_accuracy_is_no_number_is_last_on_the_board(tmp_path):
    study = Study("one", (), {"low": (), "lost": (), "high": ()}, {"": ()}, {"": ()}, (0,))
    archive = Archive(Campaign("k", (), {}, {"one": study}), tmp_path)
    for arm, accuracy in (("low", 0.5), ("lost", math.nan), ("high", 0.9)):
        name = "local_pre_agg/acc_mean" if arm == "high" else "global/acc"
        store(tmp_path, Cell("one", "", arm, "", 0), [0.1, accuracy], None, name=name)
    assert [line[:2] for line in rows(archive, "one", "")] == [
        ["high", "local_pre_agg"], ["low", "server's"], ["lost", "server's"],
    ]  # fmt: skip


@pytest.mark.parametrize(("best", "star"), [(0.1, "**0.900**\\*"), (0.2, "**0.900**"), (0.3, "**0.900**\\*")])
def test_a_choice_at_the_edge_of_the_grid_has_a_star(tmp_path, best, star):
    rates = (0.2, 0.1, 0.3)  # in whatever order
    study = Study(
        "tune", (), {"a": ()}, {"": ()}, {f"lr_{rate}": (f"optimizer.lr={rate}",) for rate in rates}, (0,)
    )
    archive = Archive(Campaign("k", (), {}, {"tune": study}), tmp_path)
    for rate in rates:
        accuracy = 0.9 if rate == best else 0.5
        store(tmp_path, Cell("tune", "", "a", f"lr_{rate}", 0), [accuracy] * 2, None, name="val/acc")
    cells = Tables(archive, tmp_path).tuning_part("tune").splitlines()[-1].split(" | ")
    assert star in [cell.strip(" |") for cell in cells]
    (line,) = trials(archive, "tune")
    assert line[2] == f"lr_{best}" + star.removeprefix("**0.900**")


def test_a_table_says_how_many_runs_have_diverged(tmp_path):
    archive = Archive(Campaign("k", (), {}, STUDIES), tmp_path)
    store(tmp_path, Cell("one", "x", "a", "", 0), [0.1, 0.9], None)
    diverge(tmp_path, Cell("one", "x", "a", "", 1))
    diverge(tmp_path, Cell("one", "y", "b", "", 0))
    table = Tables(archive, tmp_path).accuracy_part("one", "global/acc")
    assert "| a | 0.900 (1), 1 diverged | - |" in table
    assert "| b | - | 1 diverged |" in table


def test_a_table_has_a_column_for_each_setting_and_quantity(tmp_path):
    archive = Archive(Campaign("k", (), {}, STUDIES), tmp_path)
    store(tmp_path, Cell("one", "x", "a", "", 0), [0.1, 0.9], None)
    store(tmp_path, Cell("one", "y", "a", "", 0), [0.1, 0.5], None)
    tables = Tables(archive, tmp_path)
    table = tables.accuracy_part("one", "global/acc,last2/global/acc")
    assert table.startswith(
        "| arm | x global/acc | y global/acc | x last2/global/acc | y last2/global/acc |\n"
    )
    assert "| a | 0.900 (1) | 0.500 (1) | 0.500 (1) | 0.300 (1) |" in table
    assert tables.accuracy_part("one", "global/acc").startswith("| arm | x | y |\n")
    with pytest.raises(
        ConfigError, match="quantity must be one that a run of one has, but it is 'globl/acc'"
    ):
        tables.accuracy_part("one", "global/acc,globl/acc")


def test_it_is_told_how_far_equal_arms_come_apart(tmp_path):
    tables = Tables(Archive(Campaign("k", (), {}, STUDIES), tmp_path), tmp_path)
    assert tables.apart_part("one", "a", "b", "global/acc") == "No run is finished yet.\n"
    for setting, seed, gap in (("x", 0, 0.03), ("x", 1, -0.04), ("y", 0, 0.0)):
        store(tmp_path, Cell("one", setting, "a", "", seed), [0.1, 0.5 + gap], None)
        store(tmp_path, Cell("one", setting, "b", "", seed), [0.1, 0.5], None)
    store(tmp_path, Cell("one", "y", "a", "", 1), [0.1, 0.9], None)  # which b lacks
    tables = Tables(Archive(Campaign("k", (), {}, STUDIES), tmp_path), tmp_path)
    # (.0025 / 3) ** .5, then 3.182 (t of three) times that by the root of three.
    assert tables.apart_part("one", "a", "b", "global/acc") == (
        "0.029 from seed to seed (root of the mean square of 3); "
        "0.053 in a mean of three seeds (half a 95 % interval).\n"
    )


def test_what_is_published_stands_beside_an_arm_that_has_diverged(tmp_path):
    archive = Archive(Campaign("k", (), {}, STUDIES), tmp_path)
    cell = Cell("one", "x", "a", "", 0)
    diverge(tmp_path, cell)
    config = {"seed": 0, "algorithm": {"name": "a"}, "published": {"global/acc": 0.7}}
    (tmp_path / cell.name / "config.yaml").write_text(yaml.safe_dump(config))
    assert "| x | a | global/acc | 0.700 | 1 diverged |" in Tables(archive, tmp_path).published_part("one")
    assert archive.published("one", "x", "b") == {}


def test_a_part_that_names_what_there_is_not_is_refused_instead_of_told_as_not_run(tmp_path):
    tables = Tables(Archive(Campaign("k", (), {}, STUDIES), tmp_path), tmp_path)
    assert tables.accuracy_part("one", "global/acc") == "No run is finished yet.\n"
    store(tmp_path, Cell("one", "x", "a", "", 0), [0.1, 0.9], None)
    tables = Tables(Archive(Campaign("k", (), {}, STUDIES), tmp_path), tmp_path)
    with pytest.raises(
        ConfigError, match="studies must name studies of the campaign, but it is 'on'; did you mean one"
    ):
        tables.accuracy_part("on", "global/acc")
    with pytest.raises(ConfigError, match="arms must name arms of the study, but it is 'c'"):
        tables.accuracy_part("one", "global/acc", arms="a,c")
    with pytest.raises(ConfigError, match="settings must name settings of the study, but it is 'z'"):
        tables.accuracy_part("one", "global/acc", settings="z")
    with pytest.raises(
        ConfigError, match="quantity must be one that a run of one has, but it is 'globl/acc'"
    ):
        tables.accuracy_part("one", "globl/acc")
    with pytest.raises(ConfigError, match="studies must name studies of the campaign, but it is 'tow'"):
        tables.tuning_part("tow")
