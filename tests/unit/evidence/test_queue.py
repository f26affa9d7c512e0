"""What a campaign's queue makes of runs that end, stop and fail, without making any."""

import json
import sys

import pytest
import yaml

from fedfeat.evidence import processes
from fedfeat.evidence.campaign import Campaign, Cell, Study
from fedfeat.evidence.processes import start_run
from fedfeat.evidence.queue import Queue

CELLS = [Cell("s", "", "a", "", seed) for seed in range(5)]


def queue_of(root, then=(), environment=()):
    study = Study(
        "s", (), {"a": ()}, {"": ()}, {"": ()}, tuple(range(5)), then={"a": tuple(then)} if then else {}
    )
    return Queue(Campaign("k", (), dict(environment), {"s": study}), root / "runs", root / "kept")


def finish(queue, cell):
    place = queue.runs / cell.name
    (place / ".hydra").mkdir(parents=True)
    (place / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump([f"seed={cell.seed}"]))
    (place / "config.yaml").write_text(yaml.safe_dump({"name": "n", "group": "g", "seed": cell.seed}))
    (place / "metrics.csv").write_text("round\n0\n")
    (place / "summary.json").write_text(json.dumps({"seconds": 1.0}))
    return place


PROGRAM = [sys.executable, "-c"]


@pytest.mark.parametrize(
    "then",
    [
        ["no-such-program"],
        [*PROGRAM, "import sys; sys.exit(sys.argv[1] + ' has no weights')"],
        [*PROGRAM, "import sys; print(' ', file=sys.stderr); sys.exit(1)"],
    ],
    ids=["missing", "its own folder", "blanks"],
)
def test_three_commands_after_runs_that_fail_alike_end_a_campaign(tmp_path, then):
    queue = queue_of(tmp_path, then)
    for cell in CELLS[:3]:
        assert not queue.given_up
        finish(queue, cell)
        queue.ended(cell, 0)
    assert len(queue.failed) == 3
    assert queue.given_up
    assert queue.ready([]) is None


def test_what_follows_a_run_has_its_folder_and_the_campaigns_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "import os, sys; open('told.csv', 'w').write(f'{os.environ[\"T\"]},{sys.argv[1]}')"
    queue = queue_of(tmp_path.relative_to(tmp_path), [*PROGRAM, code], {"T": "1"}.items())
    place = finish(queue, CELLS[0])
    queue.ended(CELLS[0], 0)
    assert queue.failed == {}
    assert (tmp_path / "kept" / CELLS[0].name / "then" / "told.csv").read_text() == f"1,{place.absolute()}"


def test_a_run_that_was_asked_to_stop_goes_on_once_more(tmp_path):
    queue = queue_of(tmp_path)
    place = queue.runs / CELLS[0].name
    place.mkdir(parents=True)
    (place / processes.LOG).write_text("Stopped after round 3.\n")
    queue.ended(CELLS[0], 0)
    assert queue.failed == {}
    assert queue.ready([]) == CELLS[0]
    queue.ended(CELLS[0], 0)
    assert queue.failed == {CELLS[0]: "exit 0: Stopped after round 3."}
    assert queue.ready([]) == CELLS[1]


def test_a_run_fails_at_once_where_it_ends_with_a_code(tmp_path):
    queue = queue_of(tmp_path)
    (queue.runs / CELLS[0].name).mkdir(parents=True)
    (queue.runs / CELLS[0].name / processes.LOG).write_text("killed\n")
    queue.ended(CELLS[0], 137)
    assert queue.failed == {CELLS[0]: "exit 137: killed"}


def test_the_sentence_of_an_earlier_start_is_not_told_again(tmp_path, monkeypatch):
    (tmp_path / "failure.txt").write_text("mnist must be in data.root\n")
    monkeypatch.setattr(processes, "command_of", lambda *_: [*PROGRAM, "print('other words')"])
    assert start_run(tmp_path, ()).wait() == 0
    assert processes.failure(tmp_path) == "other words"
