"""`make bench` times workloads beside the loop by hand, keeps a line of each, and makes the page's table."""

import importlib
import sys
from pathlib import Path

import pytest

from fedfeat.evidence.bench import FILE, PAGE, read

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch):
    """The script, and a small workload in the place of its own."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module, benchmark = (importlib.import_module(name) for name in ("bench", "benchmark"))
    small = benchmark.Workload("model=mlp", (1, 4, 4), 6, 8, 3, 4, 2, "executor=serial")
    monkeypatch.setattr(module, "WORKLOADS", {"W1": small})
    yield module
    for name in ("bench", "benchmark"):
        sys.modules.pop(name)


@pytest.mark.slow
def test_a_bench_leaves_a_line_per_workload_and_the_table(bench, tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / PAGE).write_text("# Performance\n<!-- made: history -->\n<!-- end -->\n")
    bench.main(["--root", str(tmp_path), "--rounds", "2"])
    (line,) = read(tmp_path / FILE)
    assert (line.workload, line.ours, line.base, line.rounds) == ("W1", "executor=serial", bench.BASE, 2)
    assert line.machine.keys() == {"cpu", "cores", "bf16", "gpu", "torch", "load"}
    assert line.machine["cpu"]
    middle, low, high = line.ratio
    assert low <= middle <= high
    # Lightning's fits of a few steps cost more than a plain loop of them: ours is above the base.
    assert line.seconds[0] > line.seconds[1] > 0
    assert middle > 1
    page = (tmp_path / PAGE).read_text()
    assert f"| {line.date} | {line.commit[:10]}" in page
    assert capsys.readouterr().out.count(" of by hand, 2 processes, ") == 1


def test_all_workloads_have_few_rounds(bench):
    benchmark = importlib.import_module("benchmark")
    assert benchmark.WORKLOADS.keys() <= bench.ROUNDS.keys()
    assert all(bench.ROUNDS[name] <= w.rounds for name, w in benchmark.WORKLOADS.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "order", [("executor=typo", "executor=serial"), ("executor=serial", "executor=typo")]
)
def test_a_contestant_that_cannot_begin_ends_the_comparison(bench, order, tmp_path):
    benchmark = importlib.import_module("benchmark")
    with pytest.raises(
        SystemExit, match=r"^'executor=typo' must run its rounds, but its process has ended\.$"
    ):
        benchmark.compare(bench.WORKLOADS["W1"], order, tmp_path)


def test_another_workload_is_refused(bench, capsys):
    with pytest.raises(SystemExit):
        bench.main(["W9"])
    assert "a workload must be one of W1, W2, W3, W4, but it is 'W9'" in capsys.readouterr().err
