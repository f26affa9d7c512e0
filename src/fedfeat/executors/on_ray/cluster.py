"""The Ray cluster that a run uses: one of its own on this machine, or one that others have started."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import ray
from ray._private import ray_constants
from ray._private import worker as ray_worker
from ray._private.services import get_ray_address_from_environment

from fedfeat.errors import UserError
from fedfeat.runs.leftovers import RAY_PARENT, RAY_PREFIX, mark

_SECONDS_TO_ANSWER = 10.0
# By which SLURM announces the end of a job to all processes of it; the run ends its workers itself.
_ANNOUNCEMENTS = (signal.SIGUSR1, signal.SIGUSR2)

# Ray's workers otherwise yield to every other process of the machine (nice 15), which on a shared one is a standstill.
_SYSTEM = {"worker_niceness": 0}

_print = ray_worker.print_to_stdstream


class Needs(NamedTuple):
    """What a worker takes of a node: CPU cores, and GPUs or a part of one."""

    cpus: int
    gpus: float

    def fitting(self, resources: dict[str, float]) -> int:
        """Count the workers that fit a node; none is spread over two GPUs."""
        fits = int(resources.get("CPU", 0) // self.cpus)
        if self.gpus:
            fits = min(fits, int(resources.get("GPU", 0)) * int(1 / self.gpus + 1e-9))
        return fits


class Cluster:
    """A connection to a Ray cluster.

    Where this process is connected to one already, that one is used and left as it is.

    Args:
        address: Of a running cluster, as ``ray.init`` takes it; None starts one on this machine.
    """

    def __init__(self, address: str | None) -> None:
        self._address, self._opened = address, ExitStack()

    def open(self, num_cpus: int) -> None:
        """Connect, or start a cluster with ``num_cpus`` CPU cores.

        Raises:
            UserError: There is no cluster at the address, or none that can be joined.
        """
        if ray.is_initialized():
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Else it prints those of calls whose results nobody waits for, after the first of them has ended the run.
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
        arguments: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        # Under `uv run` Ray would send the folder to its workers and start them by the same command there. They run in
        # the environment in which Ray was started, where the same versions have to be anyway.
        with _signals(), patch.object(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", False):
            if self._address is None:
                self._start(num_cpus, arguments)
            else:
                self._join(self._address, arguments)
        # Undone only after the shutdown, during which Ray still prints.
        self._opened.enter_context(patch.object(ray_worker, "print_to_stdstream", _without_dump))
        self._opened.callback(ray.shutdown)

    def _start(self, num_cpus: int, arguments: dict[str, Any]) -> None:
        # Ray's own folder is one for all users of a machine, and its path may be too long for the sockets in it.
        folder = TemporaryDirectory(prefix=RAY_PREFIX, dir=RAY_PARENT, ignore_cleanup_errors=True)
        mark(Path(folder.name))
        # Where Ray takes itself to be on a machine of its own (its default outside Linux), it listens on loopback only.
        with patch.object(ray_constants, "ENABLE_RAY_CLUSTER", False):
            # Ray opens its folder to all users of the machine (0777), who could then take the place of its sockets.
            private = os.path.join(self._opened.enter_context(folder), "ray")
            arguments |= {"_temp_dir": private, "_system_config": _SYSTEM}
            arguments |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            ray.init(address="local", num_cpus=num_cpus, **arguments)

    def _join(self, address: str, arguments: dict[str, Any]) -> None:
        found = address
        try:
            if address == "auto":
                # Of a cluster that has died, its file in Ray's own folder still says where it was.
                found = get_ray_address_from_environment(address, None)
            host, _, port = found.rpartition(":")
            if port.isdigit():
                # Ray itself would wait for a minute, and then end this process.
                socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER).close()
            ray.init(address=found, **arguments)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(
                f"executor.address must name a Ray cluster that this machine is a node of, "
                f"but {address!r}{'' if found == address else f' ({found})'} does not: {reason.rstrip('.')}."
            ) from error

    def check(self) -> None:
        """Refuse to go on without the node of this machine: Ray would end this process after a while, without a word.

        Raises:
            UserError: The node's process has died.
        """
        node = ray_worker.global_worker.node
        assert node is not None
        ours = node.all_processes.get(ray_constants.PROCESS_TYPE_RAYLET)
        dead = ours[0].process.poll() is not None if ours else not _listens(node.raylet_socket_name)
        if dead:
            raise UserError(
                "Ray's process on this machine (raylet) must live as long as the run, but it has died, killed or "
                "for lack of memory; the same command with the same hydra.run.dir goes on from the last checkpoint."
            )

    def room(self, needs: Needs) -> int:
        """Count the workers that all nodes have room for when nothing else runs on them."""
        return sum(needs.fitting(node["Resources"]) for node in ray.nodes() if node["Alive"])

    def close(self) -> None:
        """End what `open` has started: a connection, and a cluster only where it is our own."""
        self._opened.close()


def _listens(path: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(_SECONDS_TO_ANSWER)
            one.connect(path)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        pass  # Too busy to answer is not dead.
    return True


def _without_dump(data: dict[str, Any], *arguments: Any, **named: Any) -> None:
    """Print what Ray says of its own processes without the end of their logs, which lie in its folder."""
    lines = [line.partition(" Last 20 lines of the Raylet logs")[0] for line in data["lines"]]
    _print(data | {"lines": lines}, *arguments, **named)


@contextmanager
def _signals() -> Iterator[None]:
    """Keep this process's handlers, of which Ray replaces SIGTERM's, and have what is started ignore announcements."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, *_ANNOUNCEMENTS)}
    for signum in _ANNOUNCEMENTS:
        signal.signal(signum, signal.SIG_IGN)
    try:
        yield
    finally:
        for signum, handler in before.items():
            if handler is not None:
                signal.signal(signum, handler)
