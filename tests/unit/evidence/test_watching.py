"""Runs as their files tell them: live, failed, half written, vanished, finished; on 80 columns."""

import io
import json
import os
import time

import pytest
import yaml
from rich.console import Console

from fedfeat.commands.watch import draw
from fedfeat.evidence.processes import LOG
from fedfeat.evidence.watching import watched

HEAD = "round,global/acc,val/acc,time/total_s\n"


@pytest.fixture
def run(tmp_path):
    """Write the files of a run."""

    def make(name, rounds=3, of=10, finished=False, log=None, failure=None, age=0.0, tail=""):
        place = tmp_path / name
        place.mkdir(parents=True)
        (place / "config.yaml").write_text(
            yaml.safe_dump({"federation": {"num_rounds": of, "target_metric": None}})
        )
        rows = "".join(f"{at},{at / 20},{at / 10},{at * 30}\n" for at in range(rounds + 1))
        (place / "metrics.csv").write_text(HEAD + rows + tail)
        for path, text in ((LOG, log), ("failure.txt", failure)):
            if text is not None:
                (place / path).write_text(text)
        if finished:
            (place / "summary.json").write_text(json.dumps({"seed": 0, "final": {}}))
        for path in place.iterdir():
            os.utime(path, (time.time() - age,) * 2)
        return place

    return make


def drawn(runs, width=80, height=None):
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(draw(runs, height))
    return console.file.getvalue()


def by_name(folder, **more):
    return {found.name: found for found in watched(folder, **more)}


def test_every_state_is_told_from_files(run, tmp_path):
    run("sweep/live", rounds=4)
    run("sweep/done", rounds=10, finished=True)
    run("sweep/broken", failure="Client 3 in round 4 (seed 0) must be finite, but it is not.\n")
    run("sweep/refused", rounds=0, log="fedfeat: optimizer.lr must be in (0, inf), but it is -1.\n")
    run("sweep/killed", log="round 3/10  acc 0.1\n", age=1000)
    run("sweep/worse", log="round 3/10\nSIGTERM: ...\npruned after round 3\n")
    run("sweep/ended", log="round 3/10\nexit -9: round 3/10\n")
    found = by_name(tmp_path / "sweep")
    assert {name: one.state for name, one in found.items()} == {
        "live": "running", "done": "finished", "broken": "failed", "refused": "failed", "killed": "quiet",
        "worse": "cut short", "ended": "failed",
    }  # fmt: skip
    live = found["live"]
    assert (live.standing.round_idx, live.standing.num_rounds) == (4, 10)
    assert (live.accuracy, live.validation) == (0.2, 0.4)
    assert live.seconds_left == pytest.approx(6 * 30)
    assert found["broken"].said.startswith("Client 3 in round 4")
    assert found["killed"].said == "nothing for 17 min"
    assert found["ended"].said == "exit -9: round 3/10"
    states = [one.state for one in found.values()]
    assert [*dict.fromkeys(states)] == ["failed", "quiet", "running", "cut short", "finished"]
    assert list(found)[-1] == "done"


def test_long_rounds_are_no_silence(run, tmp_path):
    run("slow", rounds=3, age=140)  # rounds of 30 s: 150 s may pass
    assert by_name(tmp_path)["slow"].state == "running"
    assert by_name(tmp_path, now=time.time() + 20)["slow"].state == "quiet"


def test_what_is_half_written_counts_as_far_as_it_goes(run, tmp_path):
    run("torn", rounds=2, tail="3,0.9,0.9,9")
    begins = run("begins")
    (begins / "metrics.csv").write_text("round,glo")
    bare = run("bare")
    (bare / "config.yaml").write_text("federation: {num_rounds: [")
    (bare / "summary.json").write_text('{"seed": 0, "fin')
    os.symlink(tmp_path / "gone", tmp_path / "lost")
    found = by_name(tmp_path)
    assert {name: one.state for name, one in found.items()} == dict.fromkeys(
        ("torn", "begins", "bare"), "running"
    )
    assert found["torn"].standing.round_idx == 2
    assert found["begins"].standing is None
    assert found["bare"].standing is None


def test_files_of_others_are_no_error(run, tmp_path):
    for name, config, summary in (("a", "federation: x", "5"), ("b", "[1]", "null"), ("c", "7", "[]")):
        place = run(name)
        (place / "config.yaml").write_text(config)
        (place / "summary.json").write_text(summary)
    assert {one.state for one in by_name(tmp_path).values()} == {"running"}


def test_files_that_vanish_are_no_error(run, tmp_path, monkeypatch):
    gone = run("gone")
    run("stays")
    import fedfeat.evidence.watching as watching

    folders = [*watching.run_folders(tmp_path)]
    for path in [*gone.iterdir()]:
        path.unlink()
    gone.rmdir()
    monkeypatch.setattr(watching, "run_folders", lambda folder: folders)
    assert by_name(tmp_path)["stays"].standing.round_idx == 3
    assert by_name(tmp_path)["gone"].state == "quiet"


def test_a_table_holds_on_80_columns_and_nothing_is_cut(run, tmp_path):
    name = "algorithm=fed2,federation.local_epochs=5,optimizer.lr=0.05,seed=0,model=mlp"
    run(name)
    run("other", failure="partition.[val] must be [above] 0, but it is 0." + " And more." * 9)
    text = drawn(watched(tmp_path))
    assert max(map(len, text.splitlines())) <= 80
    assert "".join(line[:26].strip() for line in text.splitlines()).count("federation.local_epochs=5") <= 1
    assert all(
        part in text.replace("\n", "").replace(" ", "") for part in ("3/10", "partition.[val]must", "0.3000")
    )
    assert text.startswith("1 failed, 1 running\n")


def test_on_a_small_terminal_what_wants_attention_comes_first_and_the_rest_is_counted(run, tmp_path):
    for number in range(9):
        run(f"done{number}", rounds=10, finished=True)
    run("live")
    run("broken", failure="It must be so, but it is not.")
    text = drawn(watched(tmp_path), height=10)
    assert len(text.splitlines()) <= 10
    assert "live" in text
    assert "It must be so" in text
    assert "... and 6 more" in text
    assert drawn(watched(tmp_path)).count("done") == 9


def test_runs_of_several_folders_are_in_one_order_and_named_apart(run, tmp_path):
    for number in range(3):
        run(f"a/seed_{number}", rounds=10, finished=True)
    run("b/seed_0", failure="It must be so, but it is not.")
    found = watched(tmp_path / "a", tmp_path / "b")
    assert [one.name for one in found] == ["b/seed_0", "a/seed_0", "a/seed_1", "a/seed_2"]
    assert watched(tmp_path / "b", tmp_path / "a", tmp_path / "b") == found
    assert [one.name for one in watched(tmp_path / "b" / "seed_0")] == ["seed_0"]


def test_what_has_finished_is_read_once(run, tmp_path):
    place = run("done", rounds=10, finished=True)
    finished = {}
    before = watched(tmp_path, finished=finished)
    (place / "metrics.csv").write_text(HEAD)
    assert watched(tmp_path, finished=finished) == before
    run("live")
    assert [one.name for one in watched(tmp_path, finished=finished)] == ["live", "done"]
    assert [*finished] == [place]


def test_an_empty_folder_says_so(tmp_path):
    assert drawn(watched(tmp_path)).splitlines()[0] == "no run yet"


def test_a_sweep_or_an_arm_may_be_called_what_a_run_calls_its_folders(run, tmp_path):
    for name in ("clients/num=1", "figures/x", "then/x", "checkpoints/x", "observed/x"):
        run(f"sweep/{name}")
    run("sweep/.submitit/1")
    assert [*by_name(tmp_path / "sweep")] == [
        "checkpoints/x", "clients/num=1", "figures/x", "observed/x", "then/x",
    ]  # fmt: skip
