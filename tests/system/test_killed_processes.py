"""Processes of ``executor=processes`` leave nothing outside of the run directory, however they end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def test_a_killed_run_leaves_no_temporary_file_and_no_shared_memory(tmp_path, small):
    # Longer than the path of a socket may be.
    temporary = tmp_path / ("x" * 90)
    temporary.mkdir()
    environment = {**os.environ, "FEDFEAT_ROOT": str(tmp_path), "TMPDIR": str(temporary)}
    words = [*small, "executor=processes", "executor.num_processes=2", f"hydra.run.dir={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "fedfeat", *words, "federation.num_rounds=100000"]
    run = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not list(tmp_path.glob("run/checkpoints/*.json")):
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    assert children
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert list(temporary.iterdir()) == []
    assert not [
        name for name in os.listdir("/dev/shm") if any(f"_{pid}_" in name for pid in (run.pid, *children))
    ]
