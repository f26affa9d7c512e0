"""How a repetition ends, and what it says."""

import signal
import sys
from pathlib import Path

import pytest

from fedfeat.commands import repeat
from fedfeat.runs.repetition import Parting


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Run a program in the place of a run, which has evaluated rounds 0 and 1."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    (tmp_path / "metrics.csv").write_text("round,global/acc\n0,0.1\n1,0.2\n")

    def make(code, rounds, stops=()):
        monkeypatch.setattr(repeat, "command_of", lambda place, words: [sys.executable, "-c", code])
        return repeat._make(tmp_path, [], rounds, [*stops])

    yield make
    for number, handler in before.items():
        signal.signal(number, handler)


WAIT = "import time; time.sleep(2); raise SystemExit(3)"


def test_it_ends_once_it_is_as_far_as_is_asked_for(child):
    assert child(WAIT, 1) == 0
    assert child(WAIT, 2) == child(WAIT, None) == 3


def test_a_run_that_was_killed_has_a_shells_code(child):
    assert child("import os; os.kill(os.getpid(), 9)", None) == 137


def test_kept_stands_before_again():
    table = repeat._table([Parting("q", 1.0, 2.0, 0, 3.0)], 4)
    assert [[*column.cells] for column in table.columns] == [["q"], ["1"], ["2"], ["3"], ["0"]]
    assert [column.header for column in table.columns][1:3] == ["kept, round 4", "again"]


def test_a_word_that_stands_twice_counts_as_it_stands(tmp_path):
    (tmp_path / "metrics.csv").write_text("round\n0\n")
    (tmp_path / "config.yaml").write_text("{}")
    (tmp_path / "overrides.yaml").write_text("[x=32, x=64, logger=wandb, x=32]")
    assert repeat.repeated_words(tmp_path) == ["x=32", "x=64", "x=32"]


def test_two_runs_of_one_name_have_two_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert repeat._name(Path("a/seed_0")) == Path("a/seed_0")
    elsewhere = [repeat._name(Path(f"/elsewhere/{arm}/seed_0")) for arm in "ab"]
    assert elsewhere == [Path("elsewhere/a/seed_0"), Path("elsewhere/b/seed_0")]


@pytest.mark.parametrize("text", ["{}", "[]", '{"git_commit": null}', "{"])
def test_a_run_whose_commit_is_not_known_names_none(tmp_path, text):
    (tmp_path / "summary.json").write_text(text)
    assert repeat._made_by(tmp_path) == ""
