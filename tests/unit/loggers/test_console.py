"""The terminal: a bar, lines and the table of final metrics."""

import errno
import io
import os
import subprocess
import sys

import pytest
from entries import SUMMARY, record, write

from fedfeat.loggers.base import RunInfo
from fedfeat.loggers.console import ConsoleLogger, summary_table
from fedfeat.runs.run_words import RunWords
from fedfeat.runs.text import format_bytes


def console(terminal):
    from rich.console import Console

    return Console(file=io.StringIO(), width=120, force_terminal=terminal)


def test_console_without_terminal_prints_a_line_per_evaluated_round(tmp_path):
    out = console(False)
    rounds = [record(0), record(1, evaluated=False), record(2, **{"comm/total_bytes": 1_500_000})]
    write(ConsoleLogger(out), tmp_path, rounds)
    lines = out.file.getvalue().splitlines()
    assert lines[0] == "round 0/4  acc 0.0000  loss 1.0000"
    assert lines[1].startswith("round 2/4  acc 0.2000  loss 0.3333  comm 1.5 MB")
    assert lines[1].endswith("s/round")
    assert not any("round 1/4" in line for line in lines)


def test_what_other_loggers_take_to_start_is_of_no_round(tmp_path, monkeypatch):
    clock = iter([0.0, 10.0, 12.0, 15.0])
    monkeypatch.setattr("fedfeat.loggers.console.time.perf_counter", lambda: next(clock))
    out = console(False)
    write(ConsoleLogger(out), tmp_path, [record(0), record(1), record(2)])
    lines = out.file.getvalue().splitlines()
    assert [line.rpartition("  ")[2] for line in lines[1:3]] == ["2 s/round", "2.5 s/round"]


def test_console_with_terminal_moves_a_bar(tmp_path):
    out = console(True)
    logger = ConsoleLogger(out)
    write(logger, tmp_path, [record(3), record(4)], resumed=2, finish=False)
    logger._bar.refresh()
    assert "round 4/4" in out.file.getvalue()
    assert "acc 0.4000" in out.file.getvalue()
    logger.finish(SUMMARY)
    logger.close()
    assert not logger._bar.live.is_started


class _Gone(io.StringIO):
    def write(self, text):
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("terminal", [False, True], ids=["lines", "bar"])
def test_a_terminal_that_is_gone_ends_no_run(tmp_path, terminal):
    out = console(terminal)
    logger = ConsoleLogger(out)
    write(logger, tmp_path, [record(0)], finish=False)
    out.file = _Gone()
    logger.log(record(2))
    logger.finish(SUMMARY)


WRITE = """
import sys
from pathlib import Path
from entries import SUMMARY, record, write
from fedfeat.loggers.console import ConsoleLogger
logger = ConsoleLogger()
write(logger, Path(sys.argv[1]), [record(0)], finish=False)
sys.stdin.read()
logger.log(record(2))
logger.finish(SUMMARY)
print("goes on", file=sys.stderr)
"""


def test_a_reader_that_is_gone_ends_no_run(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(tmp_path)],
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )
    assert process.stdout.readline().startswith("round 0/4")
    process.stdout.close()
    process.stdin.close()
    with process.stderr as told:
        assert (told.read(), process.wait(60)) == ("goes on\n", 0)


def test_a_notebook_gets_lines_and_no_bar_that_fills_its_cell(tmp_path):
    from rich.console import Console

    logger = ConsoleLogger(Console(file=io.StringIO(), force_jupyter=True))
    write(logger, tmp_path, [], finish=False)
    assert logger._bar is None


def test_summary_table_shows_last_best_and_targets():
    out = console(False)
    out.print(summary_table(SUMMARY))
    text = out.file.getvalue()
    cells = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line
    ]
    assert ["global/acc", "0.4", "0.3"] in cells
    assert ["comm/total_bytes", "2.5 MB", ""] in cells
    assert ["to 0.3", "round 3, 1.5 kB", ""] in cells
    assert ["not reached", "0.9", ""] in cells


def test_targets_that_one_round_has_reached_share_a_row():
    out = console(False)
    costs = {"0.5": {"rounds": 3, "bytes": 1500}, "0.6": {"rounds": 3, "bytes": 1500}, "0.7": None}
    out.print(summary_table(SUMMARY | {"to_target": costs | {"0.8": {"rounds": 4, "bytes": 2000}}}))
    text = out.file.getvalue()
    assert "to 0.5, 0.6" in text
    assert "to 0.8" in text


@pytest.mark.parametrize(
    ("kind", "config", "says_more"),
    [("run", {"pool": None}, True), ("sweep", {}, False), ("run", {"pool": {"networks": 2}}, False)],
)
@pytest.mark.parametrize("uv", ["", "uv run "])
def test_the_last_lines_name_the_pictures_from_here_and_what_draws_more(
    tmp_path, monkeypatch, kind, config, says_more, uv
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    if uv:
        monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    out = console(False)
    logger = ConsoleLogger(out)
    place = tmp_path / "my run"
    logger.start(RunInfo(place, "digits-fed2", config=config, words=RunWords(kind=kind)))
    for name in ("encoding_1", "encoding_2"):
        logger.picture("encoding", place / "figures" / f"{name}.png")
    logger.picture("overview", tmp_path.parent / "elsewhere.png")
    logger.finish(SUMMARY)
    pictures = ["encoding: my run/figures/encoding_2.png", f"overview: {tmp_path.parent / 'elsewhere.png'}"]
    more = ["Which class each neuron works for, of each client:", f"  {uv}fedfeat-features 'my run' --refit"]
    assert out.file.getvalue().splitlines()[-4 if says_more else -2 :] == pictures + more * says_more


@pytest.mark.parametrize(("rounds", "title"), [(1, "x, 1 round, seed 0"), (2, "x, 2 rounds, seed 0")])
def test_one_round_is_no_plural(rounds, title):
    assert summary_table({"algorithm": "x", "num_rounds": rounds, "seed": 0}).title == title


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_700, "1 MB"),
        (2.5e9, "2.5 GB"),
        (3e15, "3e+03 TB"),
    ],
)
def test_format_bytes(count, text):
    assert format_bytes(count) == text


def test_the_summary_begins_with_accuracy_and_ends_with_what_it_took():
    names = [
        "comm/up_bytes",
        "time/total_s",
        "train/loss",
        "clients/failed",
        "global/acc",
        "fusion/lambda_mean",
    ]
    names += ["global/loss", "compute/examples", "global/client_acc_mean", "personal/acc_mean", "val/acc"]
    out = console(False)
    out.print(summary_table({"final": dict.fromkeys(names, 1.0) | {"global/loss": float("nan")}}))
    cells = [line.strip("│").split("│") for line in out.file.getvalue().splitlines() if line.startswith("│")]
    assert [name.strip() for name, _ in cells] == [
        *(
            "global/acc",
            "global/client_acc_mean",
            "personal/acc_mean",
            "val/acc",
            "global/loss",
            "train/loss",
        ),
        *("fusion/lambda_mean", "clients/failed", "comm/up_bytes", "compute/examples", "time/total_s"),
    ]
    assert cells[4][1].strip() == "nan"
