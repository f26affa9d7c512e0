"""SIGKILL under ``executor=processes`` leaves folders and shared memory, which the next start removes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from fedfeat.runs.leftovers import MARK


def start(tmp_path, small):
    environment = {**os.environ, "FEDFEAT_ROOT": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    words = [*small, "executor=processes", "executor.num_processes=2", f"hydra.run.dir={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "fedfeat", *words, "federation.num_rounds=100000"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def test_a_resume_removes_what_a_killed_run_has_left(tmp_path, small):
    (tmp_path / "tmp").mkdir()
    first = start(tmp_path, small)
    deadline = time.monotonic() + 240
    while not list(tmp_path.glob(f"tmp/pymp-*/{MARK}")) or not list(tmp_path.glob("run/checkpoints/*.json")):
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (mark,) = tmp_path.glob(f"tmp/pymp-*/{MARK}")
    pids = [line.split("-")[0] for line in mark.read_text().split()]
    assert len(pids) == 2
    left = Path(f"/dev/shm/torch_{pids[1]}_0_0")
    left.write_bytes(b"as a process leaves it that dies between making and unlinking it")
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = start(tmp_path, small)
    try:
        while mark.exists() or left.exists():
            assert second.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        second.send_signal(signal.SIGKILL)
        second.wait()
        left.unlink(missing_ok=True)
