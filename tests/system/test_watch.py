"""fedfeat-watch over real runs: one that works, one that fails, one that is killed, one that is finished."""

import os
import pty
import re
import signal
import subprocess
import sys

import pytest
from waiting import wait_for

from fedfeat.commands.watch import main
from fedfeat.errors import DIVERGED

WATCH = [sys.executable, "-m", "fedfeat.commands.watch"]


@pytest.mark.slow
def test_a_finished_and_a_failed_run_are_told_and_the_failure_goes_when_the_run_goes_on(
    cli, small, tmp_path, console, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli(*small, f"hydra.run.dir={tmp_path}/runs/done").code == 0
    broken = [*small, f"hydra.run.dir={tmp_path}/runs/broken"]
    from fedfeat.loggers.csv_logger import CsvLogger

    with monkeypatch.context() as patch:
        patch.setattr(CsvLogger, "log", lambda *_: 1 / 0)
        assert cli(*broken).code == 1
    sentence = (tmp_path / "runs/broken/failure.txt").read_text()
    assert re.fullmatch(r"division by zero \(ZeroDivisionError in .*; debug=true shows where\)\.\n", sentence)
    code, out, _ = console(main, tmp_path / "runs")
    assert code == 0
    assert out.startswith("1 failed, 1 finished\n")
    assert " ".join(sentence.split())[:60] in " ".join(out.split())
    assert "3/3" in out
    assert cli(*broken).code == 0
    assert not (tmp_path / "runs/broken/failure.txt").exists()
    assert console(main, tmp_path / "runs", "--once")[1].startswith("2 finished\n")


def test_a_client_that_diverged_leaves_the_sentence_that_a_search_knows(cli, small, tmp_path):
    assert cli(*small, "optimizer.lr=1e30").code == 2
    assert DIVERGED in (tmp_path / "run" / "failure.txt").read_text()


def test_a_refused_configuration_leaves_nothing_to_watch(cli, small, tmp_path, console):
    assert cli(*small, "data.root=/none", "data=cifar10", f"hydra.run.dir={tmp_path}/runs/refused").code == 2
    assert not (tmp_path / "runs/refused").exists()


def test_a_folder_that_is_none_is_one_sentence(tmp_path, console):
    code, _, err = console(main, tmp_path / "none")
    assert (code, err) == (2, f"fedfeat-watch: DIR must be a folder, but it is '{tmp_path}/none'.\n")


@pytest.mark.slow
def test_a_live_run_is_followed_in_a_terminal_until_ctrl_c(small, tmp_path):
    folder = tmp_path / "runs"
    environment = os.environ | {"FEDFEAT_ROOT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    words = [*small, "federation.num_rounds=100000", f"hydra.run.dir={folder}/live"]
    run = subprocess.Popen([sys.executable, "-m", "fedfeat", *words], env=environment, stderr=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        wait_for(lambda: (folder / "live" / "checkpoints").is_dir())
        terminal, inner = pty.openpty()
        size = {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
        watching = subprocess.Popen([*WATCH, str(folder), "--every", "0.2"], env=environment | size, stdin=inner,
                                    stdout=inner, stderr=inner, start_new_session=True)  # fmt: skip
        os.close(inner)
        seen = b""

        def rounds():
            nonlocal seen
            seen += os.read(terminal, 65536)
            return len({*re.findall(rb"(\d+)/100000", seen)}) > 2

        wait_for(rounds)
        watching.send_signal(signal.SIGINT)
        rest = b""
        try:
            while piece := os.read(terminal, 65536):
                rest += piece
        except OSError:  # nobody holds the other end any more
            pass
        os.close(terminal)
        assert watching.wait(30) == 0
        assert b"Traceback" not in seen + rest
        assert b"1 running" in seen
    finally:
        run.kill()
        run.wait()
