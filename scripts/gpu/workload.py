"""W4, and what a report that is only to be tried makes of the workloads."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from benchmark import WORKLOADS, Workload

from gpu.parts import Options, Row

ROUNDS = 1500
FLOPS_1500_ROUNDS = 0.38e15
"""Of 3.75 million images: 33.7 MFLOP each forward, three times that with backward."""


def workload(name: str, options: Options) -> Workload:
    """Give a workload of the benchmark, in a small report with few small clients."""
    w = WORKLOADS[name]
    return replace(w, clients=6, samples=8, cohort=3, batch=4, rounds=2) if options.small else w


def timing_row(w: Workload, seconds: Sequence[float]) -> Row:
    """Give what is said of rounds of a workload that took so many seconds each."""
    middle = median(seconds)
    return {
        "ms/round": 1e3 * middle,
        "least": 1e3 * min(seconds),
        "rounds": len(seconds),
        "images/s": w.cohort * w.samples / middle,
        "s, 1,500 rounds": ROUNDS * middle,
    }
