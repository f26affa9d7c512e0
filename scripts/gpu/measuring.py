"""Clocks and memory on any device, and the switches of PyTorch that a case may have turned."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from timing import Setting, Step

_CUDNN_TF32 = torch.backends.cudnn.allow_tf32


def plain_backends() -> None:
    """Set back what cases and Trainers turn: determinism, searching for algorithms, TF32; give back free memory."""
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, False
    use_tf32(products=False, convolutions=_CUDNN_TF32)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def use_tf32(products: bool, convolutions: bool) -> None:
    """Allow TensorFloat-32, or do not; PyTorch's default has it in convolutions alone."""
    torch.set_float32_matmul_precision("high" if products else "highest")
    torch.backends.cudnn.allow_tf32 = convolutions


def setting(device: str, precision: str = "fp32") -> Setting:
    """Give a setting of `timing` with contiguous tensors."""
    return Setting(torch.device(device), "contiguous", precision)


def step_of(device: str, work: Callable[[], object]) -> Step:
    """Give what runs the work once and tells its seconds, those of the device included."""
    where = setting(device)
    return lambda: where.timed(lambda: (work(), None)[1])


def repeated(step: Step, seconds: float, at_least: int = 3, at_most: int = 200) -> list[float]:
    """Give the times of a step, over and over until the seconds are spent."""
    began, times = time.monotonic(), [step()]
    while len(times) < at_least or (len(times) < at_most and time.monotonic() - began < seconds):
        times.append(step())
    return times


def begin_peak(device: str) -> None:
    """Forget the peak so far."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif (clear := Path("/proc/self/clear_refs")).exists():
        clear.write_text("5")


def peak_mib(device: str) -> float:
    """Give the most MiB since `begin_peak`: allocated on the GPU, or resident in this process (0 where unknown)."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)
