"""What a run's seconds were measured on: a federation of the same FLOPs takes several times as long elsewhere."""

import os
import platform
from pathlib import Path
from typing import Any

import torch

_CPUINFO = Path("/proc/cpuinfo")
_BF16 = ("amx_bf16", "avx512_bf16", "bf16")
"""Flags of processors that multiply bfloat16, the fastest first; the last is that of ARM."""


def machine(device: torch.device) -> dict[str, Any]:
    """Give ``cpu``, ``cores`` (that this process may use), ``bf16`` (which unit multiplies it) and ``gpu``.

    Of a run that is spread over several machines it is the one of the server; None is what there is not.

    Args:
        device: Where its clients train.
    """
    lines = _CPUINFO.read_text(encoding="utf-8").splitlines() if _CPUINFO.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return {
        "cpu": facts.get("model name") or platform.processor() or platform.machine(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "bf16": next((flag for flag in _BF16 if flag in flags), None),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }
