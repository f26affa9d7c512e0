"""A file is the old one or the new one."""

import json
import os
from pathlib import Path

import pytest

from fedfeat.errors import CheckpointError
from fedfeat.files import atomic_open, atomic_write_bytes, atomic_write_text, fields_of, write_once


def test_writes_and_replaces(tmp_path):
    path = tmp_path / "new" / "a.txt"
    atomic_write_text(path, "Ψ 1\n")
    assert path.read_bytes() == "Ψ 1\n".encode()
    atomic_write_bytes(path, b"\x00\x01")
    assert path.read_bytes() == b"\x00\x01"
    assert os.listdir(path.parent) == ["a.txt"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    atomic_write_text(path, "old")
    with pytest.raises(TypeError, match="bytes-like"), atomic_open(path) as file:
        file.writelines([b"ne", "w"])
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path):
    other = tmp_path / "other"
    other.write_text("theirs")
    with atomic_open(tmp_path / "a") as file:
        file.write(b"first")
        temporary = Path(file.name)
    temporary.symlink_to(other)
    atomic_write_text(tmp_path / "a", "second")
    assert (other.read_text(), (tmp_path / "a").read_text()) == ("theirs", "second")
    assert sorted(os.listdir(tmp_path)) == ["a", "other"]


def test_the_name_changes_only_after_the_bytes_are_on_disk(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    atomic_write_text(tmp_path / "a", "x")
    assert calls == ["fsync", "replace", "fsync"]


def test_what_is_written_once_stays(tmp_path):
    path = tmp_path / "new.json"
    write_once(path, {"a": [1]})
    write_once(path, {"a": [2]})
    assert json.loads(path.read_text()) == {"a": [1]}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"b": 1}', "3", '{"a": "x"}', "\x00"])
def test_a_damaged_file_is_named_with_what_it_must_do(text, tmp_path):
    path = tmp_path / "file.json"
    path.write_text(text)
    with (
        pytest.raises(CheckpointError, match=r"file\.json must count, but it does not: "),
        fields_of(path, "count") as fields,
    ):
        int(fields["a"])


def test_a_file_that_is_missing_is_not_damaged(tmp_path):
    with pytest.raises(FileNotFoundError), fields_of(tmp_path / "no", "be"):
        pass
