"""What killed processes leave: it goes at the next start, and what belongs to a living one stays."""

import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from fedfeat.files import Owner, atomic_open, remove_leftovers, scratch_folder
from fedfeat.runs import leftovers

CONTEXT = multiprocessing.get_context("fork")


def write_for_ever(folder, ready):
    with atomic_open(folder / "metrics.csv") as file, scratch_folder(folder, "making") as scratch:
        file.write(b"half")
        (scratch / "split.npz").write_bytes(b"half")
        ready.set()
        time.sleep(60)


@pytest.fixture
def writer(tmp_path):
    """A process in the middle of writing a file and a folder."""
    ready = CONTEXT.Event()
    process = CONTEXT.Process(target=write_for_ever, args=(tmp_path, ready))
    process.start()
    assert ready.wait(30)
    yield process
    process.kill()
    process.join()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_temporaries_go_when_their_process_has_ended(tmp_path, writer):
    (tmp_path / ".metrics.csv.by-hand.tmp").write_text("no mark")
    before = names(tmp_path)
    assert len(before) == 3
    remove_leftovers(tmp_path, locked=True)
    assert names(tmp_path) == before, "it is still writing"
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".metrics.csv.by-hand.tmp"]


def test_a_number_that_was_given_to_another_process_is_noticed():
    me = Owner.of()
    assert not me.is_gone()
    assert Owner.read(str(me)) == me
    assert me._replace(started=me.started - 1).is_gone()
    assert not me._replace(started=me.started - 1, place="0" * 8).is_gone()


def test_of_other_machines_they_go_only_where_nobody_else_writes(tmp_path):
    elsewhere = Owner.of()._replace(place="0" * 8)
    path = tmp_path / f".metrics.csv.{elsewhere}-1.tmp"
    path.write_text("half")
    remove_leftovers(tmp_path)
    assert path.exists()
    remove_leftovers(tmp_path, locked=True)
    assert not path.exists()


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Folders in place of the system's."""
    for name in ("tmp", "run"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(leftovers, "RAY_PARENT", tmp_path / "tmp")
    return tmp_path


def test_folders_go_with_the_last_of_their_processes(system, writer):
    for name in ("fedfeat-ray-a", "fedfeat-ray-unmarked", "foreign"):
        (system / "tmp" / name).mkdir()
        (system / "tmp" / name / "socket").write_text("")
    gone = Owner.of()._replace(started=1)
    for name in ("fedfeat-ray-a", "foreign"):
        (system / "tmp" / name / leftovers.MARK).write_text(f"{gone}\n{Owner.of(writer.pid)}\n")
    leftovers.sweep(system / "run")
    assert len(names(system / "tmp")) == 3
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    leftovers.sweep(system / "run")
    assert names(system / "tmp") == ["fedfeat-ray-unmarked", "foreign"]


def test_a_mark_keeps_a_folder(system):
    folder = system / "tmp" / "fedfeat-ray-b"
    folder.mkdir()
    leftovers.mark(folder)
    leftovers.sweep(system / "run")
    assert folder.exists()


def test_all_folders_of_a_run_are_looked_through(system):
    gone = Owner.of()._replace(started=1)
    for folder in ("run", "run/checkpoints", "run/clients"):
        Path(system / folder).mkdir(exist_ok=True)
        (system / folder / f".a.{gone}-1.tmp").write_text("half")
    leftovers.sweep(system / "run")
    assert not list((system / "run").rglob("*.tmp"))


def test_a_folder_that_another_start_removes_meanwhile_ends_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "RAY_PARENT", tmp_path)
    folder = tmp_path / f"{leftovers.RAY_PREFIX}x"
    folder.mkdir()
    leftovers.mark(folder)
    me = Owner.of()
    (folder / leftovers.MARK).write_text(f"{me._replace(started=me.started - 1)}\n")
    read = leftovers._owners

    def read_and_removed(path):
        found = read(path)
        shutil.rmtree(folder)
        return found

    monkeypatch.setattr(leftovers, "_owners", read_and_removed)
    (tmp_path / "run").mkdir()
    leftovers.sweep(tmp_path / "run")
    assert not folder.exists()
