"""The scripts do what they say, by what the package offers: none of them reaches for what is private to it."""

import argparse
import ast
import importlib
import itertools
import re
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
import torch

from fedfeat.models.mlp import mlp

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
FOREIGN = ("self", "torch")  # torch._foreach_add_ and the like are how one writes a fast loop


@pytest.fixture
def script(monkeypatch):
    """Import a script by its name."""
    monkeypatch.syspath_prepend(SCRIPTS)
    loaded = []

    def load(name):
        loaded.append(name)
        return importlib.import_module(name)

    yield load
    for name in loaded:
        sys.modules.pop(name, None)


def sources():
    """Python text of all scripts and of the notebooks."""
    for path in sorted(SCRIPTS.rglob("*.py")):
        yield path.name, path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = (cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
        python = (cell for cell in cells if not cell.startswith("%%"))
        yield (
            path.name,
            "\n".join(line for cell in python for line in cell.splitlines() if not line.startswith("%")),
        )


@pytest.mark.parametrize(("name", "text"), [pytest.param(*one, id=one[0]) for one in sources()])
def test_nothing_private_is_reached_for(name, text):
    # What runs in a process of its own stands in a text, as `_CHILD` of memory.py.
    trees = [ast.parse(text)]
    texts = (node.value for node in ast.walk(trees[0]) if isinstance(node, ast.Constant))
    trees += [ast.parse(one) for one in texts if isinstance(one, str) and "\nimport fedfeat" in one]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr != "_replace":
            owner = node.value
            if ast.unparse(node) == "super().__init__":
                continue
            assert isinstance(owner, ast.Name), ast.unparse(node)
            assert owner.id in FOREIGN, ast.unparse(node)
        if isinstance(node, ast.ImportFrom):
            assert not any(alias.name.startswith("_") for alias in node.names), ast.unparse(node)


@pytest.mark.parametrize(
    "name",
    sorted(
        path.stem
        for path in SCRIPTS.glob("*.py")
        if "__main__" in path.read_text(encoding="utf-8")
        and path.stem != "bench_runner"  # that of benchmark.py
    ),
)
def test_help_runs_nothing_and_fits_a_terminal(script, name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as stopped:
        script(name).main()
    said = capsys.readouterr().out
    assert not stopped.value.code
    assert said.startswith(f"usage: {name}")
    assert max(map(len, said.splitlines())) <= 80


def test_the_demo_runs_its_methods_and_reports(script, tmp_path, monkeypatch):
    demo = script("demo")
    for name, value in {
        "ROOT": tmp_path,
        "RUNS": tmp_path / "runs",
        "OUT": tmp_path / "out",
        "SETTINGS": (
            *demo.SETTINGS,
            *("federation.num_rounds=1", "federation.local_epochs=1", "diagnostics.every=1"),
        ),
        "ALGORITHMS": ("fedavg", "centralized"),
    }.items():
        monkeypatch.setattr(demo, name, value)
    demo.main([])
    assert {path.parent.name for path in (tmp_path / "runs").glob("*/summary.json")} == {
        "fedavg",
        "centralized",
    }
    assert (tmp_path / "out" / "curves_round.png").exists()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "align/agreement" in page


def test_memory_is_read_at_the_rounds_asked_for(script):
    memory = script("memory")
    readings = memory.measure([*memory.ARMS["FedRep"], "federation.num_clients=60"], 4, 2)
    assert [one.round_idx for one in readings] == [2, 4]
    assert 50 <= readings[0].states <= readings[1].states <= 60
    for one in readings:
        assert 0 < one.held <= memory.BUDGET_MB
        assert 50 < one.resident <= one.peak + 50
    assert readings[0].files == 50  # the checkpoint of the first round


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "found"),
    [
        ("fusion_speed", "digits_cnn --reps 1 --fit-reps 1 --examples 20", "digits_cnn conv, cached"),
        ("fedhenn_speed", "fedrep_cnn10 --reps 1 --rad 50", "fedrep_cnn10 50, rbf"),
        ("grouped_speed", "vgg9 --reps 1 --batch 2 --boundaries slice", "vgg9 G=10 slice"),
    ],
)
def test_what_a_method_costs_is_measured(script, name, words, found, monkeypatch, capsys):
    words = f"{words} --layouts contiguous --precisions fp32 --threads 1"
    monkeypatch.setattr(sys, "argv", [name, *words.split()])
    script(name).main()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"| {found} |")]
    # The last cell but one of each is a ratio of times: that there is one is all that a short run says.
    assert re.search(r"\| \d+\.\d+ \(\d+\.\d+\) \|", line)


def test_rounds_of_the_benchmark(script, tmp_path):
    benchmark = script("benchmark")
    w = benchmark.Workload("model=mlp", (1, 4, 4), 6, 8, 3, 4, 2, "executor=serial")
    experiment = benchmark.build(w, w.best, tmp_path)
    before = experiment.executor.worker.module.model.state_dict()["encoder.fc1.linear.weight"].clone()
    assert len(list(itertools.islice(benchmark.our_rounds(experiment), 2))) == 2
    after = experiment.executor.worker.module.model.state_dict()["encoder.fc1.linear.weight"]
    assert not torch.equal(before, after)
    x, y = benchmark.examples(experiment, w)
    assert (x.shape, y.shape) == ((48, 1, 4, 4), (48,))
    by_hand = benchmark.HandWritten(w, experiment.executor.worker.module.model, x, y, 1)
    next(by_hand.rounds())


class Common(ModuleType):
    """What a comparison of simulators gives its contestants, for a small workload."""

    shape = (1, 8, 8)
    name, classes, clients, samples, per_round, batch, epochs, lr, rounds = "W1", 3, 4, 6, 2, 3, 1, 0.1, 3

    def __init__(self):
        super().__init__("common")
        self.ended, self.weights = 0, None

    def parse_args(self, name, **defaults):
        return argparse.Namespace(workload="W1", rounds=None, check=False, **defaults)

    def get_workload(self, workload, rounds):
        return self

    def schedule(self):
        return [[3, 1], [0, 2], [2, 1]]

    def make_data(self, w):
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (24, 1, 8, 8), dtype=torch.uint8, generator=draw)
        return x, torch.randint(0, 3, (24,), generator=draw)

    def build_model(self, w):
        torch.manual_seed(5)
        return mlp((1, 8, 8), 3)

    def count_steps(self, w):
        raise NotImplementedError

    def Recorder(self, args, w):
        return self

    def start(self):
        self.ended = 0

    def round_done(self):
        self.ended += 1

    def finish(self, weights, executor):
        self.weights = weights


def test_a_contestant_trains_the_given_clients_from_the_given_weights(script, tmp_path, monkeypatch):
    common = Common()
    monkeypatch.setitem(sys.modules, "common", common)
    runner = script("bench_runner")
    args = common.parse_args("", executor="serial", procs=2, threads=1, bf16=0, channels_last=0, more="")
    experiment = runner.build(common, args, tmp_path)
    start, _ = experiment.begin()
    assert [record.cohort for _, record in itertools.islice(experiment.rounds(start), 4)] == [
        (),
        (1, 3),
        (0, 2),
        (1, 2),
    ]
    runner.main()
    first = list(common.build_model(common).parameters())
    assert common.ended == 3
    assert [w.shape for w in common.weights] == [w.shape for w in first]
    assert all((w - old).abs().max() < 0.2 for w, old in zip(common.weights, first, strict=True))
    assert any(not torch.equal(w, old) for w, old in zip(common.weights, first, strict=True))
