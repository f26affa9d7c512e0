"""How the process uses its CPU."""

import os
import platform
import subprocess
import sys

import pytest
import torch
from lightning_fabric.utilities import distributed

from fedfeat.clients import host
from fedfeat.clients.host import keep_freed_memory, set_threads

# Prints the pages taken in 20 steps of 32 images before and after the call, or likewise in 5 evaluations of 500.
_FAULTS = """
import resource, sys, torch
from fedfeat.clients.host import keep_freed_memory
from fedfeat.models.cnn import mnist_cnn
torch.set_num_threads(1)
model = mnist_cnn((1, 28, 28), 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train():
    optimizer.zero_grad()
    model(torch.rand(32, 1, 28, 28)).sum().backward()
    optimizer.step()
@torch.no_grad()
def evaluate():
    model(torch.rand(500, 1, 28, 28))
step, times = {"train": (train, 20), "evaluate": (evaluate, 5)}[sys.argv[1]]
def pages():
    for _ in range(5):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(pages())
assert keep_freed_memory()
print(pages())
"""
# The values that glibc starts with. Set by hand they stay: otherwise they grow with what happens to be freed, and a
# process may learn by itself, sooner or later, to keep its memory.
_AT_START = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
# Gradients of the MNIST CNN's 1.66 million weights, of 4 bytes each, in pages of 4096.
_PAGES_OF_GRADIENTS = 1_660_000 * 4 // 4096
# Those of its first 32 maps of 500 images, likewise.
_PAGES_OF_ACTIVATIONS = 500 * 32 * 28 * 28 * 4 // 4096


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(host, "_AT_START", (2, None))
    yield
    torch.set_num_threads(before)


def test_tiny_networks_get_one_thread_and_the_next_run_the_default_again():
    set_threads(None, 1e6)
    assert torch.get_num_threads() == 1
    set_threads(None, 1e9)
    assert torch.get_num_threads() == 2
    assert "OMP_NUM_THREADS" not in os.environ


def test_the_number_asked_for_is_the_number():
    torch.set_num_threads(1)
    set_threads(2, 1.0)
    assert torch.get_num_threads() == 2


def test_the_number_asked_for_holds_under_ddp(monkeypatch):
    """Lightning's launcher gives every process an equal share of the 32 cores, but only where nothing is set."""
    monkeypatch.setattr(distributed, "_num_cpus_available", lambda: 32)
    set_threads(3, 1e9)
    distributed._set_num_threads_if_needed(num_processes=2)
    assert torch.get_num_threads() == 3
    set_threads(None, 1e9)
    distributed._set_num_threads_if_needed(num_processes=2)
    assert torch.get_num_threads() == 16


def test_a_variable_of_the_user_comes_back(monkeypatch):
    monkeypatch.setattr(host, "_AT_START", (4, "4"))
    set_threads(1, 1e9)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    set_threads(None, 1e9)
    assert os.environ["OMP_NUM_THREADS"] == "4"


def pages_taken(step):
    """Count the pages that a number of steps take before and after the call."""
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS, step],
        env=os.environ | _AT_START,
        capture_output=True,
        text=True,
        check=True,
    )
    return map(int, done.stdout.split())


@pytest.mark.skipif(not keep_freed_memory(), reason="not glibc")
def test_freed_memory_is_used_again_without_new_pages():
    """Before the call every step takes at least its gradients anew; afterwards all 20 take less than one did."""
    before, after = pages_taken("train")
    assert before > 20 * _PAGES_OF_GRADIENTS
    assert after < before / 20


@pytest.mark.skipif(platform.libc_ver() < ("glibc", "2.35"), reason="takes no block above 32 MiB")
def test_activations_of_an_evaluation_are_used_again_without_new_pages():
    """The first layer's alone are 50 MB. Afterwards all five evaluations take less than those of one."""
    before, after = pages_taken("evaluate")
    assert before > 5 * _PAGES_OF_ACTIVATIONS
    assert after < _PAGES_OF_ACTIVATIONS
