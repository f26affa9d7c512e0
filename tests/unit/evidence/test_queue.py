"""What a campaign's queue makes of runs that end, stop and fail, without making any."""

import json
import math
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import yaml

from fedfeat.errors import DIVERGED, ConfigError
from fedfeat.evidence import processes, stored
from fedfeat.evidence import queue as queue_module
from fedfeat.evidence.campaign import Campaign, Cell, Study
from fedfeat.evidence.processes import start_run
from fedfeat.evidence.queue import Queue
from fedfeat.evidence.stored import check_words, is_finished
from fedfeat.runs.directory import fingerprint_of, locked, without_passwords

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


def test_runs_have_the_root_of_the_campaign_before_the_folder_of_its_runs(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDFEAT_ROOT", raising=False)
    given = []
    monkeypatch.setattr(queue_module, "start_run", lambda *arguments: given.append(arguments[-1]))
    for environment in ({}, {"FEDFEAT_ROOT": "/its"}):
        queue_of(tmp_path, (), environment.items()).start(CELLS[0])
    monkeypatch.setenv("FEDFEAT_ROOT", "/mine")
    queue_of(tmp_path).start(CELLS[0])
    assert given == [{"FEDFEAT_ROOT": str(tmp_path / "runs")}, {"FEDFEAT_ROOT": "/its"}, {}]


def test_a_run_is_kept_when_all_of_it_is(tmp_path, monkeypatch):
    """What says that a run has ended is written last, so that a kill in between is mended by the next start."""
    queue = queue_of(tmp_path)
    queue.campaign.studies["s"] = replace(queue.campaign.studies["s"], keeps=("clients.csv",))
    (finish(queue, CELLS[0]) / "clients.csv").write_text("client_id\n0\n")
    kept, write = queue.kept / CELLS[0].name, stored.atomic_write_bytes

    def killed(path, content):
        if path.name == "clients.csv":
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(stored, "atomic_write_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        queue.collect(CELLS[0])
    assert not stored.has_ended(kept)
    monkeypatch.setattr(stored, "atomic_write_bytes", write)
    queue.collect(CELLS[0])
    assert stored.has_ended(kept)
    assert (kept / "clients.csv").exists()


def test_published_numbers_are_kept_with_a_run(tmp_path):
    queue = queue_of(tmp_path)
    place = finish(queue, CELLS[0])
    config = yaml.safe_load((place / "config.yaml").read_text()) | {"published": {"global/acc": 0.9}}
    (place / "config.yaml").write_text(yaml.safe_dump(config))
    queue.collect(CELLS[0])
    kept = yaml.safe_load((queue.kept / CELLS[0].name / "config.yaml").read_text())
    assert kept["published"] == {"global/acc": 0.9}


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


def test_a_run_without_a_file_that_is_kept_fails_alone_and_leaves_nothing_half_kept(tmp_path):
    queue = queue_of(tmp_path)
    queue.campaign.studies["s"] = replace(queue.campaign.studies["s"], keeps=("clients.csv",))
    for cell in CELLS[:2]:
        finish(queue, cell)
    (queue.runs / CELLS[1].name / "clients.csv").write_text("client_id\n0\n")
    for cell in CELLS[:2]:
        queue.ended(cell, 0)
    assert list(queue.failed) == CELLS[:1]
    assert queue.failed[CELLS[0]].endswith("has no clients.csv.")
    assert not (queue.kept / CELLS[0].name).exists()
    assert (queue.kept / CELLS[1].name / "clients.csv").exists()
    with pytest.raises(ConfigError, match=r"keeps must name files of the run"):
        queue.collect(CELLS[0])


def test_of_the_data_their_digests_are_kept(tmp_path):
    queue = queue_of(tmp_path)
    for cell in CELLS[:2]:
        finish(queue, cell)
    told = {"fingerprint": ["examples", "split"], "class_counts": [[1]]}
    (queue.runs / CELLS[0].name / "data.json").write_text(json.dumps(told))
    queue.collect(CELLS[0])
    queue.collect(CELLS[1])
    assert fingerprint_of(queue.kept / CELLS[0].name) == ("examples", "split")
    assert not (queue.kept / CELLS[1].name / "data.json").exists()


def test_what_is_kept_of_another_run_is_refused(tmp_path):
    queue = queue_of(tmp_path)
    place = finish(queue, CELLS[0])
    queue.collect(CELLS[0])
    kept = queue.kept / CELLS[0].name / "overrides.yaml"
    kept.write_text(yaml.safe_dump(["seed=0", "optimizer.lr=0.3"]))
    with pytest.raises(ConfigError, match=r"kept/.*made with optimizer\.lr=0\.3, where the campaign has no"):
        queue.collect(CELLS[0])
    assert is_finished(place)


@pytest.mark.parametrize(
    ("made", "asked", "alike"),
    [
        (["a=1", "a=2"], ["a=2"], True),
        (["a=1", "a=2"], ["a=2", "a=1"], False),
        (["b=1", "a=2"], ["a=2", "b=1"], True),
        # As Hydra writes them for its launchers.
        (["a=True", "b=1e-09", "c=0.1", "d=[8,8]"], ["a=true", "b=1e-9", "c=0.10", "d=[8, 8]"], True),
        (["a=True"], ["a=1"], False),
        (["a='1'"], ["a=1"], False),
        (["+a=1"], ["a=1"], False),
        (["hydra.launcher.timeout_min=5", "a=1"], ["hydra/launcher=joblib", "a=1"], True),
    ],
)
def test_the_words_of_a_finished_run_are_those_of_the_campaign_by_what_they_say(made, asked, alike, tmp_path):
    (tmp_path / "overrides.yaml").write_text(yaml.safe_dump(made))
    with nullcontext() if alike else pytest.raises(ConfigError, match="but it was made with "):
        check_words(tmp_path, asked)


def begin(queue, cell, seconds):
    """Let a run of four rounds have made two."""
    place = queue.runs / cell.name
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(yaml.safe_dump({"federation": {"num_rounds": 4}}))
    (place / "metrics.csv").write_text(f"round,time/total_s\n2,{seconds}\n")


def test_what_is_left_of_runs_goes_by_the_known_ones(tmp_path):
    queue = queue_of(tmp_path)
    assert queue.left() == {}
    finish(queue, CELLS[0])  # 1 s
    begin(queue, CELLS[1], 50.0)
    queue.failed[CELLS[2]] = "no data"
    assert queue.open() == [CELLS[1], *CELLS[3:]]
    assert queue.left() == {CELLS[1]: 50.0, CELLS[3]: 50.5, CELLS[4]: 50.5}


def two_lengths(tmp_path, until):
    """Give a queue of one long and one short arm, whose first seeds are made, in that order."""
    words = {"long": ("federation.num_rounds=1000",), "short": ("federation.num_rounds=10",)}
    study = Study("s", (), words, {"": ()}, {"": ()}, (0, 1))
    queue = Queue(Campaign("k", (), {}, {"s": study}), tmp_path / "runs", tmp_path / "kept", until=until)
    for arm, seconds in (("long", 1000.0), ("short", 10.0)):
        place = finish(queue, Cell("s", "", arm, "", 0))
        (place / "summary.json").write_text(json.dumps({"seconds": seconds}))
    return queue, *(Cell("s", "", arm, "", 1) for arm in words)


@pytest.mark.parametrize(("rest", "begun"), [(math.inf, "long"), (1001, "long"), (900, "short"), (9, None)])
def test_a_run_that_would_end_too_late_is_not_begun_and_a_shorter_one_is(rest, begun, tmp_path, monkeypatch):
    monkeypatch.setattr(queue_module.time, "time", lambda: 5.0)
    queue, long, short = two_lengths(tmp_path, 5.0 + rest)
    assert queue.ready([]) == {"long": long, "short": short, None: None}[begun]


def test_of_a_run_under_way_only_the_rest_has_to_be_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(queue_module.time, "time", lambda: 5.0)
    queue, long, _ = two_lengths(tmp_path, 105.0)
    begin(queue, long, 60.0)
    assert queue.ready([]) == long


class Ending:
    """A process whose run is finished by the time it heeds a signal."""

    def __init__(self, finished):
        self.finished, self.asked = finished, False

    def poll(self):
        return 0 if self.asked else None

    def send_signal(self, _):
        self.asked = True

    def wait(self):
        self.finished()
        return 0


def test_a_run_that_ends_while_the_campaign_is_stopped_is_kept(tmp_path, monkeypatch):
    queue = queue_of(tmp_path)
    monkeypatch.setattr(queue_module, "start_run", lambda *_: Ending(lambda: finish(queue, CELLS[0])))
    course = queue.work(1)
    assert list(next(course)) == CELLS[:1]
    course.close()
    assert is_finished(queue.kept / CELLS[0].name)


def test_a_command_after_a_run_is_left_to_the_next_start_where_the_campaign_is_stopped(tmp_path, monkeypatch):
    """It would hold the stop up, and one that the signal has ended would begin once more."""
    queue = queue_of(tmp_path, [*PROGRAM, "open('begun', 'a').write('x')"])
    monkeypatch.setattr(queue_module, "start_run", lambda *_: Ending(lambda: finish(queue, CELLS[0])))
    course = queue.work(1)
    next(course)
    course.close()
    assert not (queue.runs / CELLS[0].name / "then").exists()
    assert not (queue.kept / CELLS[0].name).exists()
    queue.collect(CELLS[0])
    assert (queue.runs / CELLS[0].name / "then" / "begun").read_text() == "x"
    assert is_finished(queue.kept / CELLS[0].name)


def test_output_of_a_command_after_a_run_may_be_any_bytes(tmp_path):
    code = "import sys; sys.stderr.buffer.write(bytes([255, 10])); sys.exit(1)"
    queue = queue_of(tmp_path, [*PROGRAM, code])
    finish(queue, CELLS[0])
    queue.ended(CELLS[0], 0)
    assert queue.failed[CELLS[0]].endswith("after the run: \N{REPLACEMENT CHARACTER}")


class Failing(Ending):
    """A process that has failed."""

    def poll(self):
        return 1


def test_that_the_last_runs_failed_alike_is_known_after_the_work(tmp_path, monkeypatch):
    queue = queue_of(tmp_path)

    def start(place, *_):
        if place == queue.runs / CELLS[0].name:
            finish(queue, CELLS[0])
            process = Ending(lambda: None)
            process.asked = True
            return process
        place.mkdir(parents=True)
        (place / processes.LOG).write_text("no data\n")
        return Failing(lambda: None)

    monkeypatch.setattr(queue_module, "start_run", start)
    assert [*queue.work(1, 0.0)]
    assert list(queue.failed) == CELLS[1:4]
    assert queue.given_up
    assert is_finished(queue.kept / CELLS[0].name)


def test_a_run_that_cannot_be_started_fails_alone(tmp_path, monkeypatch):
    queue = queue_of(tmp_path)
    (queue.runs / CELLS[1].name).parent.mkdir(parents=True)
    (queue.runs / CELLS[1].name).write_text("somebody's file\n")
    monkeypatch.setattr(processes, "command_of", lambda *_: [*PROGRAM, "raise SystemExit(3)"])
    assert [*queue.work(1, 0.01)]
    assert "must be usable for this run, but the system says: " in queue.failed.pop(CELLS[1])
    assert {*queue.failed.values()} == {"exit 3: no output"}


def test_a_run_that_another_process_holds_is_awaited(tmp_path):
    queue = queue_of(tmp_path)
    place = queue.runs / CELLS[0].name
    place.mkdir(parents=True)
    with locked(place):
        queue.ended(CELLS[0], 2)
        assert queue.failed == {}
        assert isinstance(queue.start(CELLS[0]), processes.Elsewhere)


@pytest.mark.parametrize(
    ("answer", "waits"),
    [("echo 7; echo 8", True), ("echo 8", False), ("echo Socket timed out >&2; exit 1", True)],
)
def test_a_job_may_wait_where_slurm_gives_no_answer(tmp_path, monkeypatch, answer, waits):
    (tmp_path / "run" / ".submitit" / "7").mkdir(parents=True)
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert processes.is_submitted(tmp_path / "run") == waits
    assert not processes.is_submitted(tmp_path)


def test_a_run_that_diverged_early_says_what_a_whole_one_takes(tmp_path):
    queue = queue_of(tmp_path)
    begin(queue, CELLS[0], 8.0)  # two of four rounds
    (queue.runs / CELLS[0].name / "failure.txt").write_text(f"weight {DIVERGED}.\n")
    assert queue.settled(CELLS[0])
    assert queue.left()[CELLS[1]] == 16.0


def test_passwords_of_words_are_neither_kept_nor_missed(tmp_path):
    words = ["seed=0", "data.loader.url=https://me:secret@host/data"]
    queue = queue_of(tmp_path)
    place = finish(queue, CELLS[0])
    (place / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(without_passwords(words)))
    check_words(place, words)
    with pytest.raises(ConfigError, match=r"was made with data\.loader\.url=https://\*\*\*@host/data, where"):
        check_words(place, [words[0], "data.loader.url=https://me:secret@elsewhere/data"])
    stored.keep(place, queue.kept, words)
    assert yaml.safe_load((queue.kept / "overrides.yaml").read_text()) == without_passwords(words)


def test_what_cannot_be_kept_fails_alone(tmp_path):
    queue = queue_of(tmp_path)
    finish(queue, CELLS[0])
    finish(queue, CELLS[1])
    (queue.kept / CELLS[0].name).parent.mkdir(parents=True)
    (queue.kept / CELLS[0].name).write_text("somebody's file\n")
    for cell in CELLS[:2]:
        queue.ended(cell, 0)
    assert list(queue.failed) == [CELLS[0]]
    assert "must be usable for this run, but the system says: " in queue.failed[CELLS[0]]
    assert stored.has_ended(queue.kept / CELLS[1].name)
