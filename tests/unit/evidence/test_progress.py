"""What a campaign says of its runs: ended, under way, stopped, refused, failed."""

import io
import json

import pytest
import yaml
from rich.console import Console

from fedfeat.errors import DIVERGED
from fedfeat.evidence.campaign import Campaign, Cell, Study
from fedfeat.evidence.progress import duration, overview
from fedfeat.evidence.queue import Queue

CELLS = [Cell("s", "", "a", "", seed) for seed in range(6)]


@pytest.fixture
def queue(tmp_path):
    study = Study("s", (), {"a": ()}, {"": ()}, {"": ()}, tuple(range(6)))
    return Queue(Campaign("k", (), {}, {"s": study}), tmp_path / "runs", tmp_path / "kept")


def begin(queue, cell, round_idx=3, seconds=30.0):
    place = queue.runs / cell.name
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(yaml.safe_dump({"federation": {"num_rounds": 10}}))
    (place / "metrics.csv").write_text(f"round,time/total_s\n{round_idx},{seconds}\n")
    return place


def finish(queue, cell):
    (begin(queue, cell, 10) / "summary.json").write_text(json.dumps({"seconds": 120.0}))


def said(queue, running=(), at_once=1, width=80):
    console = Console(file=io.StringIO(), width=width)
    console.print(overview(queue, running, at_once))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_runs_are_counted_and_those_under_way_have_their_round(queue):
    assert said(queue)[0] == "k: 0 of 6 runs, unknown time left"
    finish(queue, CELLS[0])
    begin(queue, CELLS[1])
    (queue.runs / CELLS[2].name).mkdir(parents=True)
    # 100 s of which 30 are over, and four runs of the median of 120 and 100 s.
    assert said(queue, CELLS[1:3]) == [
        "k: 1 of 6 runs, 8 min left",
        "study  runs  not ended",
        "s       1/6  a/seed_1 round 3/10",
        "             a/seed_2 begins",
    ]
    assert said(queue, CELLS[1:3], at_once=2)[0] == "k: 1 of 6 runs, 4 min left"


def test_nothing_is_left_where_all_have_ended(queue):
    for cell in CELLS:
        finish(queue, cell)
    assert said(queue) == ["k: 6 of 6 runs, 0 s left", "study  runs  not ended", "s       6/6"]


def test_a_run_that_has_said_nothing_yet_has_not_failed(queue):
    (queue.runs / CELLS[0].name).mkdir(parents=True)
    (queue.runs / CELLS[0].name / "campaign.log").write_text("")
    assert said(queue)[2:] == ["s       0/6"]


def test_what_nobody_goes_on_with_has_stopped(queue):
    begin(queue, CELLS[1])
    assert said(queue)[2:] == ["s       0/6  a/seed_1 stopped at round 3/10"]


def test_failures_of_this_start_and_of_others_are_told_once_each(queue):
    queue.failed |= {CELLS[0]: "no [room] left", CELLS[1]: f"{queue.runs.absolute() / CELLS[1].name} is full"}
    queue.failed[CELLS[2]] = f"{queue.runs.absolute() / CELLS[2].name} is full"
    (begin(queue, CELLS[3]) / "failure.txt").write_text("no [room] left\n")
    (queue.runs / CELLS[4].name).mkdir(parents=True)
    (queue.runs / CELLS[4].name / "campaign.log").write_text("fedfeat: it was refused.\n")
    # Those of an earlier start are tried again: 70 s, and twice 100 s with the one that has not begun.
    lines = said(queue, width=200)
    assert lines[0] == "k: 0 of 6 runs, 5 failed, 4 min left"
    assert lines[2:7] == [
        f"{'s       0/6' if not seed else '':11}  a/seed_{seed} failed" for seed in range(5)
    ]
    assert lines[7:] == [
        "s/a/seed_0 and 1 more: no [room] left",
        f"s/a/seed_1 and 1 more: {queue.runs.absolute() / CELLS[1].name} is full",
        "s/a/seed_4: fedfeat: it was refused.",
    ]


def test_what_failed_before_and_is_tried_again_is_under_way(queue):
    (begin(queue, CELLS[3]) / "failure.txt").write_text("no room left\n")
    assert said(queue, [CELLS[3]])[2:] == ["s       0/6  a/seed_3 round 3/10"]


def test_runs_that_diverged_have_ended_and_are_counted(queue):
    finish(queue, CELLS[0])
    (begin(queue, CELLS[1]) / "failure.txt").write_text(f"Client 1 failed: {DIVERGED}.\n")
    assert said(queue)[0].startswith("k: 2 of 6 runs, ")
    assert said(queue)[2:] == ["s      2/6, 1 diverged"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown time"),
        (0, "0 s"),
        (59.4, "59 s"),
        (59.7, "1 min"),
        (92, "2 min"),
        (60, "1 min"),
        (3599, "1 h 00 min"),
        (9000, "2 h 30 min"),
    ],
)
def test_a_duration_is_written_in_hours_and_minutes(seconds, text):
    assert duration(seconds) == text
