"""How the process uses its CPU: threads and freed memory."""

import ctypes
import os
import sys

import torch

# Below this work per step, threads cost more than they bring: an MLP or a digits CNN runs as fast on one, and many
# times faster when other processes are busy. A batch of 32 through the MNIST CNN is 100 times as much.
_FLOPS_WORTH_THREADS = 2e8

# Parameters of glibc's mallopt(3), and values of both: as a threshold of mmap, an older glibc takes 32 MiB at most.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT = 2**30, 32 * 2**20

# What the process starts with, for a run that comes after one that wanted other numbers.
_VARIABLE = "OMP_NUM_THREADS"
_AT_START = torch.get_num_threads(), os.environ.get(_VARIABLE)


def num_cores() -> int:
    """Count the CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(num_threads: int | None, flops_per_step: float) -> None:
    """Set the process's number of CPU threads for local steps of so many FLOPs.

    Args:
        num_threads: The number asked for, of each process under ``ddp``. None is one for tiny networks and otherwise
            PyTorch's default, or under ``ddp`` the share of the cores that Lightning gives every process.
        flops_per_step: Work of one local step.
    """
    if num_threads is None and flops_per_step < _FLOPS_WORTH_THREADS:
        num_threads = 1
    threads, variable = _AT_START if num_threads is None else (num_threads, str(num_threads))
    torch.set_num_threads(threads)
    # Where the variable is set, Lightning's launcher of ddp leaves the number of threads alone.
    if variable is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = variable


def keep_freed_memory() -> bool:
    """Let glibc keep freed gradients and activations for the next step, up to 1 GiB.

    By default it gives blocks above a few MB back to the system after every step and has every page of them
    cleared again in the next: 10 % of the time of a step of the MNIST CNN, and 45 % of fedrep_cnn10's evaluation,
    500 images at once. The peak does not change.

    Returns:
        Whether this is glibc and it took both values.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    return mallopt is not None and bool(
        any(mallopt(_M_MMAP_THRESHOLD, size) for size in _KEPT) and mallopt(_M_TRIM_THRESHOLD, _KEPT[0])
    )
