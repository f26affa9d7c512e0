import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest

from fedfeat.errors import ConfigError
from fedfeat.evidence.bench import FILE, PAGE, Line, append, history, makers, read, spread
from fedfeat.evidence.pages import filled

LINE = Line(
    "W1", "1" * 40, "2026-11-22", {"cpu": "One", "cores": 2, "torch": "2.15.0", "load": 0.1},
    "executor=serial", "by hand", (0.25, 0.5), (0.5, 0.4, 0.625), 3,
)  # fmt: skip


def test_a_ratio_below_one_is_ours_faster():
    assert spread([1.0, 3.0, 2.0], [4.0, 4.0, 4.0]) == (0.5, 0.25, 0.75)
    assert spread([8.0], [2.0]) == (4.0, 4.0, 4.0)


def test_ratios_are_of_rounds_that_belong_together():
    with pytest.raises(ValueError, match="shorter"):
        spread([1.0, 2.0], [1.0])


def test_lines_come_after_each_other_and_are_read_as_they_were(tmp_path):
    path = tmp_path / FILE
    others = [LINE, replace(LINE, workload="W2"), replace(LINE, date="2026-11-23")]
    for line in others:
        append(path, line)
    assert [json.loads(text)["workload"] for text in path.read_text().splitlines()] == ["W1", "W2", "W1"]
    assert [asdict(line) for line in read(path)] == [json.loads(json.dumps(asdict(line))) for line in others]


@pytest.mark.parametrize("text", ["{", '{"workload": "W1"}', "[]", ""])
def test_a_line_that_is_none_is_named_and_nothing_is_added(tmp_path, text):
    path = tmp_path / "bench.jsonl"
    append(path, LINE)
    path.write_text(path.read_text() + text + "\n")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"bench\.jsonl, line 2, must be that of a benchmark"):
        append(path, LINE)
    assert path.read_bytes() == before


def test_a_file_whose_last_line_is_cut_is_refused(tmp_path):
    path = tmp_path / "bench.jsonl"
    append(path, LINE)
    path.write_text(path.read_text().rstrip("\n"))
    with pytest.raises(ConfigError, match="its last one is cut"):
        append(path, LINE)


_WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from fedfeat.evidence.bench import append, read

path = Path(sys.argv[1])
(line,) = read(path)[:1]
print("ready", flush=True)
for number in range(10**6):
    append(path, replace(line, rounds=number))
"""


def test_a_killed_writer_loses_no_line(tmp_path):
    """Killed at any time, ten times: every line that was there stays, and each is whole."""
    path = tmp_path / "bench.jsonl"
    append(path, LINE)
    for turn in range(10):
        before = path.read_text()
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 20
        while path.read_text() == before and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(turn * 0.0007)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert path.read_text().startswith(before)
        assert len(read(path)) > before.count("\n")


def _append_some(path):
    for _ in range(20):
        append(path, LINE)


def test_two_writers_lose_no_line(tmp_path):
    context = multiprocessing.get_context("fork")
    path = tmp_path / "bench.jsonl"
    processes = [context.Process(target=_append_some, args=(path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(read(path)) == 60


def test_a_row_is_a_benchmark_and_a_column_a_workload():
    other = replace(LINE, machine={"cpu": "Two", "cores": 4, "torch": "2.15.0", "load": 3.0})
    lines = [
        LINE,
        replace(LINE, workload="W2", ratio=(1.5, 1.0, 12.0), machine=LINE.machine | {"load": 7.5}),
        LINE,
        other,
    ]
    dirty = replace(LINE, commit=f"{'2' * 40}-dirty", ours="executor=processes")
    table = history([*lines, dirty]).splitlines()
    assert [[cell.strip() for cell in row.strip("|").split("|")] for row in table[:1] + table[2:6]] == [
        ["date", "commit", "W1", "W2", "load", "machine"],
        [
            "2026-11-22",
            "1111111111",
            ".50 (.40-.62)",
            "1.50 (1.00-12.00)",
            "7.5",
            "One, 2 cores, torch 2.15.0",
        ],
        ["2026-11-22", "1111111111", ".50 (.40-.62)", "", "0.1", "One, 2 cores, torch 2.15.0"],
        ["2026-11-22", "1111111111", ".50 (.40-.62)", "", "3.0", "Two, 4 cores, torch 2.15.0"],
        ["2026-11-22", "2222222222-dirty", ".50 (.40-.62)", "", "0.1", "One, 2 cores, torch 2.15.0"],
    ]
    assert "- W1: `executor=processes` over by hand" in table
    assert "- W2: `executor=serial` over by hand" in table


def test_the_page_is_filled_from_the_lines(tmp_path):
    append(tmp_path / FILE, LINE)
    text = filled("a\n<!-- made: history -->\nold\n<!-- end -->\nb\n", makers(tmp_path))
    assert ".50 (.40-.62)" in text
    assert "old" not in text
    assert PAGE == "docs/performance.md"
