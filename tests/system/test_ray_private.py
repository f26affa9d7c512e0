"""What the cluster that a run starts itself lays open to others, and what is said when its node dies."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from executor_cases import CASES, merged

ray = pytest.importorskip("ray", reason="executor=ray needs the extra `ray`, which is not installed")

from ray._private import worker as ray_worker  # noqa: E402

from fedfeat.errors import UserError  # noqa: E402
from fedfeat.executors.on_ray.cluster import Cluster  # noqa: E402
from fedfeat.runs.leftovers import RAY_PARENT, RAY_PREFIX  # noqa: E402

pytestmark = pytest.mark.slow

PATIENCE_S = 500
MESSAGE = "fedfeat: Ray's process on this machine (raylet) must live as long as the run, but it has died, "


@pytest.fixture
def cluster():
    """One of our own; the handlers that Ray leaves are taken back."""
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}
    ours = Cluster(None)
    ours.open(num_cpus=1)
    yield ours
    ours.close()
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_no_other_user_reaches_its_sockets_and_its_node_is_missed(cluster):
    """Ray makes its own folder 0777; what counts is the one around it."""
    node = ray_worker.global_worker.node
    folder = next(one for one in Path(node.raylet_socket_name).parents if one.name.startswith("fedfeat-ray-"))
    assert folder.parent == Path("/tmp")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.getuid()
    for path in (node.raylet_socket_name, node.plasma_store_socket_name, node.get_session_dir_path()):
        assert folder in Path(path).parents
    cluster.check()
    node.kill_raylet()
    with pytest.raises(UserError, match=r"^Ray's process on this machine \(raylet\) must live as long as"):
        cluster.check()
    cluster.close()
    assert not folder.exists()


def raylets(mark):
    """Numbers of Ray's node processes that have started with a text in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            program = (path / "cmdline").read_bytes().split(b"\0")[0]
            if program.endswith(b"/raylet") and mark.encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def driver_log(pid):
    """The log of Ray's part of a run, open: it is swept away by whichever run starts next."""
    (path,) = RAY_PARENT.glob(f"{RAY_PREFIX}*/ray/session_*_{pid}/logs/python-core-driver-*_{pid}.log")
    return path.open()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads processes off /proc")
def test_a_raylet_that_is_killed_ends_the_run_with_a_sentence(tmp_path):
    run_dir = tmp_path / "run"
    command = [
        *(
            sys.executable,
            "-m",
            "fedfeat",
            *merged(CASES["fedavg"]),
            "executor=ray",
            "executor.num_workers=1",
        ),
        *("federation.num_rounds=1000000", f"hydra.run.dir={run_dir}"),
    ]
    with (tmp_path / "printed").open("w") as printed:
        process = subprocess.Popen(
            command,
            env={**os.environ, "FEDFEAT_ROOT": str(tmp_path)},
            start_new_session=True,
            stdout=printed,
            stderr=printed,
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (run_dir / "checkpoints").exists():
            assert process.poll() is None, (tmp_path / "printed").read_text()
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.1)
        (raylet,) = raylets(str(tmp_path))
        with driver_log(process.pid) as log:
            os.kill(raylet, signal.SIGKILL)
            code = process.wait(PATIENCE_S)
            logged = log.read()
    finally:
        process.kill()
        process.wait()
    said = (tmp_path / "printed").read_text()
    assert "state-dump" not in said
    assert "Traceback" not in said
    if code == 1:
        # Where a tensor is on its way to the node, Ray itself ends this process at once, at times before its words
        # ("Raylet is terminated") have come through: only its log then tells why.
        assert "Terminate the process." in logged, said + logged[-2000:]
        return
    assert code == 2, said
    assert said.splitlines()[-1].startswith(MESSAGE)
