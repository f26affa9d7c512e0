"""What a run's seconds were measured on."""

import os

import pytest
import torch

from fedfeat.runs import machine as module
from fedfeat.runs.machine import machine

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("text", "cpu", "bf16"),
    [
        ("model name\t: One\nflags\t\t: avx avx512_bf16 amx_bf16\n", "One", "amx_bf16"),
        ("model name\t: One\nflags\t\t: avx avx512_bf16\n\n", "One", "avx512_bf16"),
        ("model name\t: A: B\nflags\t\t: avx\n", "A: B", None),
        ("Features\t: fp asimd bf16\n", None, "bf16"),
    ],
    ids=["amx", "avx512", "none", "arm"],
)
def test_processor_and_its_unit_for_bfloat16(text, cpu, bf16, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(module, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(module.platform, "processor", lambda: "arm")
    cores = len(os.sched_getaffinity(0))
    assert machine(CPU) == {"cpu": cpu or "arm", "cores": cores, "bf16": bf16, "gpu": None}


def test_where_the_system_says_nothing_there_is_what_python_knows(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_CPUINFO", tmp_path / "none")
    monkeypatch.delattr(module.os, "sched_getaffinity")
    monkeypatch.setattr(module.platform, "processor", lambda: "")
    monkeypatch.setattr(module.platform, "machine", lambda: "arm64")
    assert machine(CPU) == {"cpu": "arm64", "cores": os.cpu_count(), "bf16": None, "gpu": None}


def test_the_gpu_is_the_one_that_trains(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert machine(torch.device("cuda", 1))["gpu"] == "GPU 1"
