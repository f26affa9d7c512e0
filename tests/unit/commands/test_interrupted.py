"""Ctrl-C and full disks: what the sentence names."""

import errno
import os
import sys

import pytest

from fedfeat.commands import campaign
from fedfeat.config.command_line import one_sentence
from fedfeat.train import _one_sentence


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("logs/runs/x", " with hydra.run.dir=logs/runs/x"),
        ("logs/lr=1,seed=0", """ with 'hydra.run.dir='"'"'logs/lr=1,seed=0'"'"''"""),
        (None, ""),
    ],
    ids=["run", "quoted", "sweep"],
)
def test_an_interrupted_run_names_the_directory_to_go_on_in(tmp_path, monkeypatch, capsys, place, named):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="130"), _one_sentence(place and tmp_path / place):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == f"Interrupted; the same command{named} goes on from here.\n"


def test_it_is_said_once_by_what_is_nearest(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="130"), _one_sentence(), _one_sentence(tmp_path / "x"):
        raise KeyboardInterrupt
    assert (
        capsys.readouterr().err == "Interrupted; the same command with hydra.run.dir=x goes on from here.\n"
    )


def stopped():
    """End as Lightning's fit does at Ctrl-C."""
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        sys.exit(1)


def test_what_lightning_makes_of_it_is_said_too_and_another_exit_is_not(capsys):
    with pytest.raises(SystemExit, match="130"), _one_sentence():
        stopped()
    assert capsys.readouterr().err.startswith("Interrupted; ")
    with pytest.raises(SystemExit, match="3"), _one_sentence():
        sys.exit(3)
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_one_sentence_for_every_command(monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/out/x.png")

    said = "/out/x.png must be usable for this run, but the system says: No space left on device.\n"
    with pytest.raises(SystemExit, match="2"), one_sentence("fedfeat-features"):
        full()
    assert capsys.readouterr().err == f"fedfeat-features: {said}"
    monkeypatch.setattr(campaign, "_perform", full)
    with pytest.raises(SystemExit, match="2"):
        campaign.main(["x.yaml"])
    assert capsys.readouterr().err == said
    with pytest.raises(OSError, match="no number"), one_sentence("fedfeat-features"):
        raise OSError("no number, hence ours")
