"""Weights after two rounds of every method, on the CPU and on the device."""

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

import fedfeat
from fedfeat import tree
from fedfeat.errors import ConfigError
from gpu.measuring import use_tf32
from gpu.methods import BASE, METHODS, NARROW
from gpu.parts import Case, Options, Row

FLOAT64 = 1e-9
"""Tolerance in float64: sums in another order, over two rounds, and what a method makes larger."""


def cases(options: Options) -> Iterator[Case]:
    """Yield every method in float64, then what narrower numbers do to FedAvg."""
    methods = list(METHODS)[:: 12 if options.small else 1]
    for name in methods:
        yield Case(name, partial(method_row, options, name))
    for precision, (tolerance, tf32) in NARROW.items():
        words = (*METHODS["fedavg"], f"trainer.precision={precision.split()[0]}")
        yield Case(f"fedavg, {precision}", partial(row, options, "fedavg", words, tolerance, tf32))


def method_row(options: Options, name: str) -> Row:
    """Compare a method in float64."""
    return row(options, name, (*METHODS[name], "trainer.precision=64-true"), FLOAT64, tf32=False)


def row(options: Options, name: str, words: Sequence[str], tolerance: float, tf32: bool) -> Row:
    """Compare one setting: `serial` on the device, and `vectorized` where the method can be stacked."""
    accelerator = "gpu" if options.device == "cuda" else "cpu"
    use_tf32(tf32, tf32)
    given = (f"algorithm={name}", *words)
    expected = final_tensors("cpu", *given, "executor=serial")
    found: Row = {"serial": gap(final_tensors(accelerator, *given, "executor=serial"), expected)}
    try:
        found["vectorized"] = gap(final_tensors(accelerator, *given, "executor=vectorized"), expected)
    except ConfigError as refusal:
        found["vectorized"] = None
        found["why not"] = str(refusal).partition("here, for ")[2] or str(refusal)
    gaps = [value for value in (found["serial"], found["vectorized"]) if value is not None]
    return found | {"tolerance": tolerance, "agrees": all(value <= tolerance for value in gaps)}


def final_tensors(accelerator: str, *words: str) -> list[Tensor]:
    """Run two rounds and give the tensors of the server's state and of what clients keep."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        places = [f"paths.root={folder}", f"hydra.run.dir={folder}", f"trainer.accelerator={accelerator}"]
        experiment = fedfeat.build([*merged([*BASE, *words]), *places])
        try:
            progress, _ = experiment.begin()
            for latest, _record in experiment.rounds(progress):
                progress = latest
            store = experiment.store
            return tree.tensors([progress.state, [store.get(client) for client in store]])
        finally:
            experiment.executor.close()


def merged(words: Sequence[str]) -> list[str]:
    """Give overrides of which the last one of a key counts; ``~key`` takes it away."""
    found: dict[str, str] = {}
    for word in words:
        if word.startswith("~"):
            found.pop(word[1:], None)
        else:
            found[word.partition("=")[0]] = word
    return list(found.values())


def gap(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Give the largest difference, relative to a tensor's largest number or 1; infinite where shapes differ or NaN."""
    if [t.shape for t in found] != [t.shape for t in expected] or not expected:
        return float("inf")
    pairs = [(a.double().cpu(), b.double().cpu()) for a, b in zip(found, expected, strict=True) if b.numel()]
    gaps = [float((a - b).abs().max() / b.abs().max().clamp(min=1.0)) for a, b in pairs]
    return max(value if value == value else float("inf") for value in gaps)
