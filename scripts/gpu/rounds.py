"""Whole rounds as any run has them, and the loop by hand on the same device."""

import tempfile
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from benchmark import HandWritten, Workload, build, examples, our_rounds

from gpu.measuring import begin_peak, peak_mib, plain_backends, repeated, setting
from gpu.parts import Case, Options, Row
from gpu.workload import timing_row, workload

VECTORIZED = "executor=vectorized executor.memory_mb=24000"
# cuDNN tries its algorithms too, see `rounds_row`; `vectorized` refuses trainer.benchmark.
FREE = "trainer.deterministic=false"
CONTESTANTS = {
    "by hand": "",
    "serial": "executor=serial",
    "vectorized": VECTORIZED,
    "vectorized, compiled": f"{VECTORIZED} trainer.compile=true",
}


def cases(options: Options) -> Iterator[Case]:
    """Yield each contestant with each workload; what is compiled comes last."""
    medians: dict[str, float] = {}
    for contestant, ours in list(CONTESTANTS.items())[: -1 if options.small else None]:
        for name in ("W1",) if options.small else ("W1", "W2", "W3"):
            w = workload(name, options)
            yield Case(f"{name}, {contestant}", partial(_beside, options, w, name, ours, medians))


def _beside(options: Options, w: Workload, name: str, ours: str, medians: dict[str, float]) -> Row:
    row = rounds_row(options, w, ours, seconds=3.0)
    del row["s, 1,500 rounds"]
    by_hand = medians.setdefault(name, row["ms/round"]) if not ours else medians.get(name)
    return row | ({"ratio": row["ms/round"] / by_hand} if by_hand else {})


def rounds_row(options: Options, w: Workload, ours: str, seconds: float) -> Row:
    """Run rounds of a workload for so many seconds after a first one; without overrides those by hand."""
    device = options.device
    words = (
        f"trainer=default trainer.accelerator={'gpu' if device == 'cuda' else 'cpu'} trainer.num_threads=1"
    )
    most = 2 if options.small else 50
    with tempfile.TemporaryDirectory() as folder:
        experiment = build(replace(w, rounds=most), f"{words} {ours or 'executor=serial'}", Path(folder))
        begin_peak(device)
        torch.backends.cudnn.benchmark = FREE in ours
        if ours:
            rounds = our_rounds(experiment)
        else:
            plain_backends()  # nobody who writes a loop asks for determinism
            model = deepcopy(experiment.executor.worker.module.model).to(device)
            data = (part.to(device) for part in examples(experiment, w))
            rounds = HandWritten(w, model, *data, 1).rounds()
        step = partial(setting(device).timed, lambda: next(rounds))
        first = step()
        times = repeated(step, seconds, at_least=2, at_most=most)
        experiment.executor.close()
    return {"first, s": first, **timing_row(w, times), "peak MiB": peak_mib(device)}
