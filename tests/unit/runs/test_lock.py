"""The lock of a run directory: one process holds it, and what lies in its place is left alone."""

import errno
import fcntl
import os
import stat
import threading

import pytest

from fedfeat.errors import CheckpointError
from fedfeat.runs.directory import is_locked, locked


def test_one_process_holds_it_and_only_its_owner_may_open_it(tmp_path):
    (tmp_path / "config.yaml").touch()
    with locked(tmp_path), pytest.raises(CheckpointError, match="must be free"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
    assert stat.S_IMODE((tmp_path / ".lock").stat().st_mode) == 0o600


def test_a_link_is_neither_followed_nor_emptied(tmp_path):
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / ".lock").symlink_to(target)
    with (
        pytest.raises(CheckpointError, match=r"\.lock must be a file and no link, but it is not \("),
        locked(tmp_path),
    ):
        pass
    assert target.read_text() == "kept"
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").symlink_to(tmp_path / "new")
    with pytest.raises(CheckpointError, match="no link"), locked(tmp_path):
        pass
    assert not (tmp_path / "new").exists()


def test_an_older_lock_is_used_as_it_is(tmp_path):
    (tmp_path / "config.yaml").touch()
    (tmp_path / ".lock").write_text("of another program")
    with locked(tmp_path):
        pass
    assert (tmp_path / ".lock").read_text() == "of another program"


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(CheckpointError, match="must be a file, but it is of another kind"), locked(tmp_path):
        pass
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").mkdir()
    with pytest.raises(CheckpointError, match="must be a file that this run may open"), locked(tmp_path):
        pass


def test_a_file_system_without_locks_is_called_that(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    sentence = (
        f"^hydra.run.dir must be on a file system with locks .* but {tmp_path} is not: No locks available"
    )
    with pytest.raises(CheckpointError, match=sentence), locked(tmp_path):
        pass


def test_who_asks_for_a_moment_whether_it_is_held_holds_nobody_up(tmp_path):
    (tmp_path / "config.yaml").touch()
    (tmp_path / ".lock").touch()
    asked = (tmp_path / ".lock").open("rb")
    fcntl.flock(asked, fcntl.LOCK_SH)
    timer = threading.Timer(0.08, asked.close)
    timer.start()
    with locked(tmp_path):
        assert is_locked(tmp_path)
    timer.join()
