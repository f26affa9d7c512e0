"""How a repetition ends, and what it says."""

import io
import json
import math
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console

from fedfeat.commands import repeat, repeat_text
from fedfeat.errors import DIVERGED
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
    assert child(WAIT, 2) == child(WAIT, math.inf) == 3


def test_a_run_that_was_killed_has_a_shells_code(child):
    assert child("import os; os.kill(os.getpid(), 9)", math.inf) == 137


def test_kept_stands_before_again():
    table = repeat_text._table([Parting("q", 1.0, 2.0, 0, 3.0)], 4)
    assert [[*column.cells] for column in table.columns] == [["q"], ["1"], ["2"], ["3"], ["0"]]
    assert [column.header for column in table.columns][1:3] == ["kept, round 4", "again"]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Two runs, of which ``a`` has diverged; each is made again by a program that says whether it does."""
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (folder := tmp_path / "runs" / name).mkdir(parents=True)
        (folder / "metrics.csv").write_text("round,global/acc\n0,0.1\n1,0.2\n")
        (folder / "config.yaml").write_text("federation: {num_rounds: 1}\n")
        (folder / "overrides.yaml").write_text("[seed=0]\n")
    (tmp_path / "runs" / "a" / "failure.txt").write_text(f"Client 3{DIVERGED}.\n")
    monkeypatch.setattr(repeat, "check_unaltered", lambda *arguments: None)
    made = []

    def call(**endings):
        def make(place, words, rounds, stops):
            place.mkdir(parents=True, exist_ok=True)
            made.append(place.name)
            code, said = endings[place.name]
            for name, text in (("config.yaml", "seed: 0\n"), ("failure.txt", said)):
                (place / name).write_text(text)
            return code

        monkeypatch.setattr(repeat, "_make", make)
        before = signal.getsignal(signal.SIGINT)
        try:
            repeat.main(["runs"])
        except SystemExit as stop:
            return stop.code, made
        finally:
            signal.signal(signal.SIGINT, before)
        return 0, made

    return call


LOST = f"Client 7{DIVERGED}."


def test_a_run_that_diverges_again_has_not_failed(kept):
    assert kept(a=(1, LOST), b=(0, "")) == (0, ["a", "b"])


@pytest.mark.parametrize(
    ("endings", "code"),
    [
        ({"a": (7, "The disk is full."), "b": (0, "")}, 7),
        ({"a": (0, ""), "b": (1, LOST)}, 1),
        ({"a": (7, "The disk is full."), "b": (1, LOST)}, 7),
    ],
)
def test_a_run_that_fails_otherwise_than_the_kept_one_is_named_and_the_others_are_made(
    kept, endings, code, capsys
):
    assert kept(**endings) == (code, ["a", "b"])
    failed = [name for name in endings if endings[name][0]]
    said = "".join(f"fedfeat-repeat: runs/{name} was not made again.\n" for name in failed)
    assert capsys.readouterr().err == said


def test_what_cannot_be_made_again_is_left_out_and_said_first(kept, tmp_path, capsys):
    (tmp_path / "runs" / "a" / "metrics.csv").write_text("round\n")
    assert kept(b=(0, "")) == (2, ["b"])
    said = (
        "fedfeat-repeat: DIR must have a round to compare, but runs/a/metrics.csv has none. It is left out.\n"
    )
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("kept", "again", "last", "said"),
    [
        (LOST, LOST, 1, "Both have diverged."),
        (LOST, "", 2, "The kept one has diverged, this one has not."),
        (LOST, "", 1, None),
        ("", LOST, 1, "This one has diverged, the kept one has not."),
        ("", "The disk is full.", 1, None),
    ],
)
def test_how_both_have_ended_is_said(tmp_path, capsys, kept, again, last, said):
    places = tmp_path / "kept", tmp_path / "again"
    for place, text in zip(places, (kept, again), strict=True):
        place.mkdir()
        (place / "metrics.csv").write_text("round\n0\n1\n")
        (place / "config.yaml").write_text("federation: {num_rounds: 30}\n")
        (place / "failure.txt").write_text(f"{text}\n")
    repeat_text.say(*places, [{"round": str(number)} for number in range(last + 1)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == [
        *filter(None, [said]),
        "Up to round 1 of 30, all quantities are the same to six digits.",
    ]


@pytest.mark.parametrize(
    ("column", "counted"), [("comm/up_bytes", True), ("compute/flops", True), ("global/acc", False)]
)
def test_what_must_never_part_is_marked_and_both_numbers_can_be_told_apart(tmp_path, capsys, column, counted):
    places = tmp_path / "kept", tmp_path / "again"
    for place in places:
        place.mkdir()
        (place / "metrics.csv").write_text(f"round,{column}\n1,1111008\n")
        (place / "config.yaml").write_text("federation: {num_rounds: 1}\n")
    repeat_text.say(*places, [{"round": "1", column: "1111000"}])
    out = capsys.readouterr().out
    assert f"{column} " in out
    assert "1111008 1111000" in " ".join(out.split())
    assert ("must never part" in out) == counted


def test_runs_are_found_whether_or_not_they_have_finished(tmp_path):
    places = [tmp_path / name for name in ("finished", "stopped", "empty")]
    for place in places:
        place.mkdir()
    for place in places[:2]:
        (place / "metrics.csv").touch()
    out = tmp_path / "repeated"
    assert repeat._runs([tmp_path, places[0]], out) == places[:2]
    assert repeat._runs([places[2], places[2]], out) == [places[2]]
    (out / "finished").mkdir(parents=True)
    (out / "finished" / "metrics.csv").touch()
    assert repeat._runs([tmp_path], out) == places[:2], "repetitions are not repeated"
    assert repeat._runs([out], out) == [out / "finished"], "unless they are asked for"


def test_compared_is_up_to_a_round_that_the_kept_run_has_evaluated(tmp_path):
    (tmp_path / "metrics.csv").write_text("round,global/acc\n0,0.1\n5,0.2\n7,0.3\n")
    assert [repeat._compared(tmp_path, rounds) for rounds in (0, 2, 5, 6, 9)] == [0, 5, 5, 7, 9]


def test_numbers_are_not_cut_at_eighty_columns():
    one = Parting("global/cohort_mean_client_acc_weighted", 1.23456789e-05, 1.23456999e-05, 3, 1e-11)
    console = Console(width=80, file=io.StringIO())
    console.print(repeat_text._table([one], 20))
    assert "1.23456789e-05" in (out := console.file.getvalue())
    assert "1.23456999e-05" in out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_that_it_began_with_other_weights_is_said(tmp_path, capsys):
    places = [tmp_path / name for name in ("kept", "again")]
    for place, digest in zip(places, ("one", "other"), strict=True):
        place.mkdir()
        (place / "metrics.csv").write_text("round,global/acc\n0,0.5\n")
        (place / "config.yaml").write_text("federation: {num_rounds: 0}\n")
        (place / "weights.json").write_text(json.dumps({"model.weights": digest}))
    repeat_text.say(*places, [{"round": "0", "global/acc": "0.5"}])
    said = "The file of model.weights is other instead of one: it began with other weights.\n"
    assert said in capsys.readouterr().out


def test_that_the_data_were_others_is_said(tmp_path, capsys):
    places = [tmp_path / name for name in ("kept", "again")]
    rows = [{"round": "0", "global/acc": "0.5"}]
    for place, split in zip(places, ("one", "other"), strict=True):
        place.mkdir()
        (place / "metrics.csv").write_text("round,global/acc\n0,0.5\n")
        (place / "config.yaml").write_text("federation: {num_rounds: 0}\n")
        (place / "data.json").write_text(json.dumps({"fingerprint": ["same", split]}))
    repeat_text.say(*places, rows)
    said = "The digest of its split is other instead of one: it had other data.\n"
    assert said in (out := capsys.readouterr().out)
    assert "examples" not in out
    (places[0] / "data.json").unlink()
    repeat_text.say(*places, rows)
    assert "digest" not in capsys.readouterr().out


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
