"""`scripts/gpu_report.py` on the CPU: what it measures is what it says, and whatever fails, a report is left."""

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from fedfeat.client import ClientModule
from fedfeat.config.choices import CONFIGS
from fedfeat.models.cnn import pfl_cnn

SCRIPTS = Path(__file__).parents[2] / "scripts"

# Parts that take no time and import no torch: `main` runs the report with them, or one of them.
FAKE = """
import sys, types
sys.path[:0] = {paths!r}
from gpu import parts
from gpu.parts import Case, Options, Part
from pathlib import Path
out = Path({out!r})

def count(name):
    with open(out / "calls.txt", "a") as file:
        file.write(name + "\\n")

def fine(name):
    count(name)
    return {{"value": 1.5, "s, 1,500 rounds": 20.0}}

def breaks():
    count("breaks")
    raise ValueError("no such kernel\\nand more")

def hangs():
    import subprocess, time
    child = subprocess.Popen(["sleep", "300"])
    (out / "child.txt").write_text(str(child.pid))
    time.sleep(300)

def looks():
    return {{"value": (out / "report.md").read_text().count("one, fine")}}

CASES = {{
    "w4": lambda: [Case("one, fine", lambda: fine("one")), Case("breaks", breaks), Case("two", lambda: fine("two"))],
    "looks": lambda: [Case("looks", looks)],
    "hangs": lambda: [Case("quick", lambda: fine("quick")), Case("hangs", hangs), Case("never", lambda: fine("never"))],
    "dies": lambda: sys.exit("the card is gone"),
    "last": lambda: [Case("last", lambda: fine("last"))],
}}
parts.PARTS = {{name: Part("Title of " + name, 10, "About.") for name in CASES}}
for name, make in CASES.items():
    module = sys.modules["gpu." + name] = types.ModuleType("gpu." + name)
    module.cases = lambda options, make=make: make()

import gpu_report
gpu_report.PARTS = parts.PARTS
gpu_report.__file__ = __file__
sys.exit(gpu_report.main())
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)


def small(tmp_path):
    from gpu.parts import Options

    return Options("cpu", True, tmp_path)


def run_fake(folder, *more):
    script = folder / "fake.py"
    paths = [str(SCRIPTS), str(SCRIPTS.parent / "src")]
    script.write_text(FAKE.format(paths=paths, out=str(folder / "out")))
    command = [sys.executable, str(script), "--out", str(folder / "out"), "--device", "cpu", *more]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done, time.monotonic() - began


def test_parts_that_fail_leave_their_sentence_and_the_rest_goes_on(tmp_path):
    done, seconds = run_fake(tmp_path, "--seconds", "20")
    assert done.returncode == 1, done.stderr
    assert seconds < 25  # `hangs` has a third of what is left after two parts
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    parts = {name: part["note"] for name, part in report["parts"].items()}
    assert list(parts) == ["w4", "looks", "hangs", "dies", "last"]
    assert parts["w4"] is parts["looks"] is parts["last"] is None
    assert parts["hangs"].startswith("Ended at the ")
    assert parts["dies"] == "Failed with status 1: the card is gone"
    rows = {row["key"]: row for part in report["parts"].values() for row in part["rows"]}
    assert set(rows) == {"one, fine", "breaks", "two", "looks", "quick", "last"}
    assert rows["breaks"]["error"] == "ValueError: no such kernel"
    assert rows["two"]["value"] == 1.5
    assert rows["looks"]["value"] == 2  # the report of the first part was there, with its summary
    page = (tmp_path / "out" / "report.md").read_text()
    assert "- Title of w4: at best 20 s for 1,500 rounds (one, fine)." in page
    assert "**Failed with status 1: the card is gone**" in page
    assert "| breaks |  |  | ValueError: no such kernel |" in page
    assert not list((tmp_path / "out").glob(".*"))
    child = int((tmp_path / "out" / "child.txt").read_text())
    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]


def test_the_same_command_again_does_what_is_missing(tmp_path):
    for _ in range(2):
        done, _ = run_fake(tmp_path, "--seconds", "20", "--parts", "w4", "last")
        assert done.returncode == 1
    calls = (tmp_path / "out" / "calls.txt").read_text().split()
    assert sorted(calls) == ["breaks", "breaks", "last", "one", "two"]
    assert len(json.loads((tmp_path / "out" / "report.json").read_text())["parts"]["w4"]["rows"]) == 3
    done, _ = run_fake(tmp_path, "--small")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: --out must be a new folder or that of a report of the same device, "
    )


def test_cases_are_left_out_when_the_time_is_spent(tmp_path):
    done, _ = run_fake(tmp_path, "--seconds", "0.5", "--part", "last")
    assert done.returncode == 0
    from gpu.running import allotted, results

    assert allotted(300.0, [10, 20, 30]) == 50.0
    assert allotted(-5.0, [10]) == 0.0
    row = {"left out": "the time of this part was spent"}
    assert list(results([case("a")], 1, time.monotonic() - 1)) == [("a", row)]


def case(key, value=1):
    from gpu.parts import Case

    return Case(key, partial(dict, value=value))


def test_cases_that_are_not_timed_run_in_several_processes():
    from gpu.running import results

    found = dict(results([case(str(i), i) for i in range(5)], 2, time.monotonic() + 60))
    assert found == {str(i): {"value": i} for i in range(5)}


def test_every_method_of_the_repository_is_compared():
    from gpu.methods import METHODS

    assert set(METHODS) == {path.stem for path in (CONFIGS / "algorithm").glob("*.yaml")}


def test_weights_that_differ_are_seen(tmp_path, monkeypatch):
    from gpu import agreement
    from gpu.running import run_report

    found = agreement.method_row(small(tmp_path), "fedavg")
    assert found["agrees"]
    assert found["serial"] == 0.0
    assert 0 < found["vectorized"] < 1e-12
    tensors = agreement.final_tensors

    def off(accelerator, *words):
        shift = 1e-8 * ("executor=vectorized" in words)
        return [tensor + shift for tensor in tensors(accelerator, *words)]

    monkeypatch.setattr(agreement, "final_tensors", off)
    assert not agreement.method_row(small(tmp_path), "fedavg")["agrees"]
    # A report that has such a row ends with status 1, and says so at the top.
    rows = tmp_path / "rows"
    rows.mkdir()
    row = {"key": "fedavg", "serial": 0.0, "agrees": False}
    (rows / "agreement.jsonl").write_text(json.dumps(row) + '\n{"key": "torn')
    idle = tmp_path / "idle.py"
    idle.write_text("")
    assert run_report(small(tmp_path), ["agreement"], 30.0, idle) == 1
    assert "agree in 0 of 1 settings, but for fedavg." in (tmp_path / "report.md").read_text()


def test_gaps_are_relative_and_catch_what_is_no_number():
    from gpu.agreement import gap

    one = torch.tensor([100.0, 1.0])
    assert gap([one + torch.tensor([0.0, 0.5])], [one]) == pytest.approx(0.005)
    assert gap([one * float("nan")], [one]) == gap([one[:1]], [one]) == gap([], []) == float("inf")


@pytest.mark.parametrize("form", ["grouped", "grouped, channels-last", "bmm", "bmm each", "loop"])
def test_stacked_steps_by_hand_are_those_of_each_client(form):
    from gpu.stacked import FORMS, StackedStep

    step = StackedStep(2, 3, "cpu", (FORMS[form], FORMS[form]))
    before = {name: tensor.clone() for name, tensor in step.weights.items()}
    step()
    for client in range(2):
        network = pfl_cnn((3, 32, 32), 10, input_dropout=0.0, dropout=0.0)
        network.load_state_dict({name: tensor[client] for name, tensor in before.items()})
        functional.cross_entropy(network(step.x[client]), step.y[client]).backward()
        for name, parameter in network.named_parameters():
            expected = parameter.detach() - 0.1 * parameter.grad
            torch.testing.assert_close(step.weights[name][client], expected, rtol=1e-4, atol=1e-6)


def test_w4_is_the_preset_without_dropout(tmp_path):
    from benchmark import WORKLOADS, overrides

    import fedfeat

    w = WORKLOADS["W4"]
    assert "model=pfl_cnn" in overrides(w, w.best)
    data = ["data=synthetic", "data/transform=none", "data.loader.num_train=50000", "data.loader.num_test=10"]
    places = [f"paths.root={tmp_path}", f"hydra.run.dir={tmp_path}"]
    preset = fedfeat.build(["experiment=pfl_cifar10", *data, "trainer=cpu", *places])
    worker = preset.executor.worker
    assert {preset.data.num_examples(k) for k in range(w.clients)} == {w.samples}
    assert (preset.data.num_clients, preset.plan.cohort_size, worker.settings.batch_size) == (
        1000,
        w.cohort,
        w.batch,
    )
    assert (worker.module.base_lr, preset.plan.num_rounds) == (0.1, 1500)
    assert sum(p.numel() for p in worker.module.parameters()) == 1_626_442


def test_waits_inside_local_epochs_are_found(tmp_path, monkeypatch):
    from gpu.waits import waits_row

    assert waits_row(small(tmp_path), "executor=serial")["inside"] == 0
    loss = ClientModule.loss

    def waiting(self, batch):
        value = loss(self, batch)
        value.item()
        return value

    monkeypatch.setattr(ClientModule, "loss", waiting)
    found = waits_row(small(tmp_path), "executor=serial")
    assert found["inside"] == 6  # two batches of each of three clients
    assert "6 aten::_local_scalar_dense" in found["where"]


@pytest.mark.slow
def test_the_whole_report_on_the_cpu(tmp_path):
    command = [
        sys.executable,
        str(SCRIPTS / "gpu_report.py"),
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
        "--small",
    ]
    done = subprocess.run([*command, "--seconds", "900"], capture_output=True, text=True)
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 0, (tmp_path / "report.md").read_text()
    from gpu.parts import PARTS

    assert list(report["parts"]) == list(PARTS)
    for part in report["parts"].values():
        assert part["note"] is None
        assert len(part["rows"]) >= 2
    assert all("left out" not in row for part in report["parts"].values() for row in part["rows"])
    assert {"torch", "python"} <= set(report["versions"])
