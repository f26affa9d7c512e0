"""How the process uses its CPU."""

import subprocess
import sys

import pytest
import torch

from fedfeat.host import keep_freed_memory, set_threads

_FAULTS = """
import resource, sys, torch
from fedfeat.host import keep_freed_memory
from fedfeat.models.cnn import mnist_cnn
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed_memory()
model = mnist_cnn((1, 28, 28), 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.rand(32, 1, 28, 28)).sum().backward()
        optimizer.step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = train(5)
print(train(20) - before)
"""


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_tiny_networks_get_one_thread():
    torch.set_num_threads(2)
    set_threads(None, 1e9)
    assert torch.get_num_threads() == 2
    set_threads(None, 1e6)
    assert torch.get_num_threads() == 1


def test_the_number_asked_for_is_the_number():
    torch.set_num_threads(1)
    set_threads(2, 1.0)
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(not keep_freed_memory(), reason="not glibc")
def test_freed_memory_is_used_again_without_new_pages():
    """Without it, some 4000 pages of 4 KB are cleared again in every step."""
    counts = {
        way: int(
            subprocess.run(
                [sys.executable, "-c", _FAULTS, way], capture_output=True, text=True, check=True
            ).stdout
        )
        for way in ("keep", "default")
    }
    assert counts["keep"] < counts["default"] / 2
