"""How a run's turns are computed under ``executor=auto``: by a rule, never by a clock, and kept in the run directory.

Everything here fixes numbers. What a clock decides, `auto.AutoExecutor`, does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from fedfeat.clients.worker import Worker
from fedfeat.executors.base import Course
from fedfeat.files import fields_of, read_yaml, write_once

FILE = "executor.json"

STACKED_CLIENTS = 20
"""Smallest cohort that is stacked: below it there is little to win."""

STACKED_FLOPS = 4e6
"""Largest work of a step, forward and backward pass of a batch, that is stacked."""

STACKED_WEIGHTS = 100_000
"""Largest network that is stacked: embeddings are large and do no work."""

_OTHERS = {
    "fedfeat.executors.stacked.vectorized.VectorizedExecutor": "vectorized",
    "fedfeat.executors.forked.processes.ProcessExecutor": "processes",
    "fedfeat.executors.on_ray.executor.RayExecutor": "ray",
    "fedfeat.executors.serial.SerialExecutor": "serial",
}


class Choice(NamedTuple):
    """What fixes the numbers of a run.

    Attributes:
        stacked: Whether clients are stacked into one fit.
        num_threads: CPU threads of each process.
        why: The reason, for people.
    """

    stacked: bool
    num_threads: int
    why: str

    def write(self, run_dir: Path) -> None:
        """Write it, once: a run goes on as it has begun."""
        write_once(run_dir / FILE, self._asdict())


def stored(run_dir: Path) -> Choice | None:
    """Read what a run has begun with; None in a new directory.

    Raises:
        CheckpointError: The file that tells is damaged.
    """
    path = run_dir / FILE
    if not path.exists():
        return _begun_otherwise(run_dir)
    with fields_of(path, "say how the run's turns are computed") as fields:
        found = Choice(**fields)
        if type(found.stacked) is not bool or type(found.num_threads) is not int or found.num_threads < 1:
            raise ValueError(f"stacked={found.stacked!r}, num_threads={found.num_threads!r}")
    return found


def _begun_otherwise(run_dir: Path) -> Choice | None:
    """Give how a run goes on that began under another executor, such as the default before there was this one."""
    try:
        config = read_yaml(run_dir / "config.yaml")
    except FileNotFoundError:
        return None
    section = config.get("executor") if isinstance(config, Mapping) else None
    name = _OTHERS.get(str((section or {}).get("_target_")))
    if name is None:
        return None
    one = name in ("processes", "ray")
    return Choice(
        name == "vectorized", 1 if one else torch.get_num_threads(), f"the run began with executor={name}"
    )


def by_rule(worker: Worker, course: Course, may_stack: bool) -> Choice:
    """Choose for a new run, by its configuration and nothing else.

    Whether the clients can be stacked at all is not asked here.
    """
    threads = torch.get_num_threads()
    kinds = worker.kinds()
    work = flops_of_step(worker, course)
    if course.cohort_size == 1:
        return Choice(False, threads, "one client has all threads")
    weights = max(sum(parameter.numel() for parameter in module.parameters()) for module in kinds)
    tiny = work <= STACKED_FLOPS and weights <= STACKED_WEIGHTS
    if may_stack and tiny and course.cohort_size >= STACKED_CLIENTS:
        return Choice(True, threads, f"{course.cohort_size} clients with {work / 1e6:.2g} MFLOP a step")
    if worker.data.device.type != "cpu" or worker.trainer.num_threads is not None:
        return Choice(False, threads, "the device and the threads are given")
    return Choice(False, 1, "one thread, whether turns run in one process or in several")


def flops_of_step(worker: Worker, course: Course) -> float:
    """Give the work of a step, of the largest network that clients have."""
    return max(module.flops_per_example for module in worker.kinds()) * course.batch_size
