"""What every console command says of itself."""

import importlib
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SCRIPTS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]
OURS = sorted(name for name in SCRIPTS if name != "fedfeat")
# W&B's views go to W&B.
WRITE_NOTHING = {"fedfeat-watch", "fedfeat-wandb"}
TAKE_NO_RUNS = {"fedfeat-schemas", "fedfeat-tune"}


@pytest.fixture(params=OURS)
def said(request, capsys, monkeypatch):
    """A command and its help in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module(SCRIPTS[request.param].partition(":")[0]).main(["--help"])
    return request.param, capsys.readouterr().out


def test_help_fits_a_terminal_and_is_no_markup(said):
    assert max(map(len, said[1].splitlines())) <= 80
    assert "`" not in said[1].replace("`wandb`", "")


def test_folders_and_output_are_called_the_same_in_all_commands(said):
    command, text = said
    usage = " ".join(text.partition("\n\n")[0].split())
    assert ("--out DIR" in text) == (command not in WRITE_NOTHING)
    assert usage.endswith(("DIR [DIR ...]", "[DIR ...]")) == (command not in TAKE_NO_RUNS)
    assert ("run directories, or folders of them" in " ".join(text.split())) == (command not in TAKE_NO_RUNS)


def test_an_unknown_option_is_refused_in_one_sentence(said, capsys):
    command, _ = said
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module(SCRIPTS[command].partition(":")[0]).main(["--hlep", "a", "b"])
    line = capsys.readouterr().err
    assert line.startswith(f"{command}: ")
    assert line.count("\n") == 1


def test_a_reader_that_has_seen_enough_of_the_help_is_no_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "fedfeat", "--help"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
