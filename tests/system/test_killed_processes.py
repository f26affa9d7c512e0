"""SIGKILL under ``executor=processes`` leaves folders and shared memory, which the next start removes."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedfeat.runs.leftovers import MARK


def start(tmp_path, small, temporary, **how):
    environment = {**os.environ, "FEDFEAT_ROOT": str(tmp_path), "TMPDIR": str(temporary)}
    words = [*small, "executor=processes", "executor.num_processes=2", f"hydra.run.dir={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "fedfeat", *words, "federation.num_rounds=100000"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, **how)


def test_a_resume_removes_what_a_killed_run_has_left(tmp_path, small):
    # Paths of sockets are short.
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))
    first = start(tmp_path, small, temporary)
    deadline = time.monotonic() + 240
    while not list(temporary.glob(f"pymp-*/{MARK}")) or not list(tmp_path.glob("run/checkpoints/*.json")):
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (mark,) = temporary.glob(f"pymp-*/{MARK}")
    pids = [line.split("-")[0] for line in mark.read_text().split()]
    assert len(pids) == 2
    left = Path(f"/dev/shm/torch_{pids[1]}_0_0")
    left.write_bytes(b"as a process leaves it that dies between making and unlinking it")
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = start(tmp_path, small, temporary)
    try:
        while mark.exists() or left.exists():
            assert second.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        second.send_signal(signal.SIGKILL)
        second.wait()
        left.unlink(missing_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)


def test_a_temporary_folder_whose_path_is_too_long_for_sockets_is_refused(tmp_path, small):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    process = start(tmp_path, small, long, stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 2
    (line,) = [line for line in said.decode().splitlines() if "TMPDIR" in line]
    assert line.startswith("fedfeat: TMPDIR must be at most ")
    assert str(long) in line
