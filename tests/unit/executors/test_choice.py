"""What fixes the numbers under `executor=auto`: the rule, and what a run directory keeps of it."""

import json
from types import SimpleNamespace

import pytest
import torch
from harness import parties

from fedfeat.errors import CheckpointError
from fedfeat.executors.base import Course
from fedfeat.executors.choice import STACKED_CLIENTS, STACKED_FLOPS, STACKED_WEIGHTS, Choice, by_rule, stored


def worker(flops=1000.0, weights=10, device="cpu", num_threads=None):
    """Only what the rule reads."""
    module = SimpleNamespace(
        flops_per_example=flops, parameters=lambda: iter([torch.empty(weights, device="meta")])
    )
    data = SimpleNamespace(device=torch.device(device))
    small = SimpleNamespace(flops_per_example=1.0, parameters=lambda: iter([torch.empty(1)]))
    trainer = SimpleNamespace(num_threads=num_threads)
    return SimpleNamespace(kinds=lambda: [small, module], data=data, trainer=trainer)


def course(cohort_size=STACKED_CLIENTS):
    return Course(cohort_size, num_rounds=10, num_steps=2.0, batch_size=10)


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("found", "stacked", "threads"),
    [
        (by_rule, True, 3),
        (lambda w, c, m: by_rule(w, c._replace(cohort_size=STACKED_CLIENTS - 1), m), False, 1),
        (lambda w, c, m: by_rule(w, c._replace(cohort_size=1), m), False, 3),
        (lambda w, c, m: by_rule(w, c, False), False, 1),
        (lambda w, c, m: by_rule(worker(flops=STACKED_FLOPS / 10), c, m), True, 3),
        (lambda w, c, m: by_rule(worker(flops=STACKED_FLOPS / 10 + 1), c, m), False, 1),
        (lambda w, c, m: by_rule(worker(weights=STACKED_WEIGHTS), c, m), True, 3),
        (lambda w, c, m: by_rule(worker(weights=STACKED_WEIGHTS + 1), c, m), False, 1),
        (lambda w, c, m: by_rule(worker(num_threads=3), c, False), False, 3),
        (lambda w, c, m: by_rule(worker(device="cuda"), c, False), False, 3),
        (lambda w, c, m: by_rule(worker(device="cuda"), c, m), True, 3),
    ],
)
def test_the_rule(found, stacked, threads):
    choice = found(worker(), course(), True)
    assert (choice.stacked, choice.num_threads) == (stacked, threads)


def test_the_rule_reads_a_real_worker(tmp_path):
    real = parties(tmp_path).executor.worker
    assert by_rule(real, course(), True).stacked
    assert not by_rule(real, course(3), True).stacked


def test_what_was_written_is_read_and_never_changed(tmp_path):
    assert stored(tmp_path) is None
    first = Choice(True, 7, "so")
    first.write(tmp_path)
    Choice(False, 1, "other").write(tmp_path)
    assert stored(tmp_path) == first
    assert json.loads((tmp_path / "executor.json").read_text()) == {
        "stacked": True,
        "num_threads": 7,
        "why": "so",
    }


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "null", '{"stacked": true}', '{"stacked": 1, "num_threads": 1, "why": ""}',
     '{"stacked": true, "num_threads": 0, "why": ""}', '{"stacked": true, "num_threads": "2", "why": ""}'],
)  # fmt: skip
def test_a_damaged_file_is_refused(text, tmp_path):
    (tmp_path / "executor.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"executor.json must say how the run's turns are computed"):
        stored(tmp_path)


@pytest.mark.parametrize(
    ("target", "stacked", "threads"),
    [
        ("fedfeat.executors.serial.SerialExecutor", False, 3),
        ("fedfeat.executors.forked.processes.ProcessExecutor", False, 1),
        ("fedfeat.executors.on_ray.executor.RayExecutor", False, 1),
        ("fedfeat.executors.stacked.vectorized.VectorizedExecutor", True, 3),
    ],
)
def test_a_run_that_began_under_another_executor_goes_on_as_that_computes(target, stacked, threads, tmp_path):
    (tmp_path / "config.yaml").write_text(f"seed: 0\nexecutor: {{_target_: {target}, _partial_: true}}\n")
    found = stored(tmp_path)
    assert (found.stacked, found.num_threads) == (stacked, threads)


@pytest.mark.parametrize(
    "text", ["executor: {_target_: fedfeat.executors.auto.AutoExecutor}", "seed: 0", "executor: null", ""]
)
def test_a_run_without_a_word_about_it_is_chosen_for_by_the_rule(text, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    assert stored(tmp_path) is None
