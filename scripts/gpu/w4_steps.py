"""Steps of W4 by hand, in every form that a stacked convolution can have."""

from collections.abc import Iterator
from functools import partial
from statistics import median

import torch

from gpu.measuring import begin_peak, peak_mib, repeated, step_of, use_tf32
from gpu.parts import Case, Options, Row
from gpu.stacked import FORMS, StackedStep, captured
from gpu.workload import ROUNDS, workload

FAST = ("grouped", "bmm", "loop")
"""Forms that are tried in every precision, and compiled."""
PAIRS = [("bmm", "grouped"), ("grouped", "bmm"), ("bmm", "loop"), ("bmm", "bmm each")]


def cases(options: Options) -> Iterator[Case]:
    """Yield forms, precisions, with and without a graph; compiled ones last."""
    graphs = [True, False] if options.device == "cuda" else [False]
    same = [(form, form) for form in FORMS]
    plans = [(pair, "fp32", graph) for pair in same for graph in graphs]
    plans += [((form, form), precision, graphs[0]) for precision in ("tf32", "bf16") for form in FAST]
    plans += [(pair, precision, graphs[0]) for precision in ("fp32", "bf16") for pair in PAIRS]
    plans = plans[:6] if options.small else plans
    for pair, precision, graph in plans:
        yield Case(_name(pair, precision, graph), partial(step_row, options, pair, precision, graph))
    for precision in ("fp32", "bf16")[: 1 if options.small else None]:
        for form in FAST[: 1 if options.small else None]:
            name = f"{_name((form, form), precision, graphs[0])}, compiled"
            yield Case(name, partial(step_row, options, (form, form), precision, graphs[0], compiled=True))


def _name(pair: tuple[str, str], precision: str, graph: bool) -> str:
    forms = pair[0] if pair[0] == pair[1] else " then ".join(pair)
    return f"{forms}, {precision}" + ", graph" * graph


def step_row(
    options: Options, pair: tuple[str, str], precision: str, graph: bool, compiled: bool = False
) -> Row:
    """Time a step of the cohort."""
    w = workload("W4", options)
    begin_peak(options.device)
    use_tf32(precision == "tf32", precision == "tf32")
    stacked = StackedStep(
        w.cohort, w.batch, options.device, (FORMS[pair[0]], FORMS[pair[1]]), precision == "bf16"
    )
    step = torch.compile(stacked, dynamic=False) if compiled else stacked
    step()
    step = step_of(options.device, captured(step) if graph else step)
    step()
    seconds = repeated(step, 1.0, at_most=2 if options.small else 200)
    steps = -(-w.samples // w.batch)
    return {
        "ms/step": 1e3 * median(seconds),
        "least": 1e3 * min(seconds),
        "images/s": w.cohort * w.batch / median(seconds),
        "s, 1,500 rounds": ROUNDS * steps * median(seconds),
        "peak MiB": peak_mib(options.device),
    }
