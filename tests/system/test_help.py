"""What every console command says of itself."""

import contextlib
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


def test_the_long_lists_of_hydras_help_are_broken_between_words_on_a_terminal():
    main, end = os.openpty()
    command = [sys.executable, "-m", "fedfeat", "--help"]
    with subprocess.Popen(command, stdout=end, env={**os.environ, "COLUMNS": "80"}) as process:
        os.close(end)
        said = b""
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while part := os.read(main, 1 << 16):
                said += part
    os.close(main)
    lines = said.decode().splitlines()
    assert process.returncode == 0
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("  ") and "fedavgm," in line for line in lines)


@pytest.mark.parametrize("command", sorted({*OURS} - TAKE_NO_RUNS - {"fedfeat-wandb"}))
def test_a_folder_of_runs_has_to_be_one(command, tmp_path, capsys):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name, said in (
        ("gone", f"DIR must be a folder, but it is '{tmp_path / 'gone'}'."),
        ("link", f"DIR must be a folder, but {tmp_path / 'link'} is a link to nowhere."),
    ):
        with pytest.raises(SystemExit, match="2"):
            importlib.import_module(SCRIPTS[command].partition(":")[0]).main([str(tmp_path / name)])
        assert capsys.readouterr().err == f"{command}: {said}\n"


@pytest.mark.parametrize("command", sorted({*OURS} - WRITE_NOTHING))
def test_a_file_is_no_place_for_output(command, tmp_path, capsys):
    (tmp_path / "file").touch()
    runs = [] if command in TAKE_NO_RUNS else [str(tmp_path)]
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SystemExit, match="2"):
            importlib.import_module(SCRIPTS[command].partition(":")[0]).main([*runs, "--out", str(place)])
        assert capsys.readouterr().err == f"{command}: --out must be a folder, but it is '{place}'.\n"


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
