"""W4 by our executors."""

from collections.abc import Iterator
from functools import partial

from gpu.parts import Case, Options
from gpu.rounds import FREE, VECTORIZED, rounds_row
from gpu.workload import workload

DROPOUT = "model.dropout=0.5 model.input_dropout=0.25"
CONTESTANTS = {
    "by hand": "",
    "serial": "executor=serial",
    "vectorized": VECTORIZED,
    "vectorized, not deterministic": f"{VECTORIZED} {FREE}",
    "vectorized, bf16, not deterministic": f"{VECTORIZED} {FREE} trainer.precision=bf16-mixed",
    "vectorized, memory_mb as it comes": "executor=vectorized",
    "vectorized, with its dropout": f"{VECTORIZED} {DROPOUT}",
    "serial, not deterministic": f"executor=serial {FREE}",
    "vectorized, compiled": f"{VECTORIZED} {FREE} trainer.compile=true",
    "serial, compiled": f"executor=serial {FREE} trainer.compile=true",
}


def cases(options: Options) -> Iterator[Case]:
    """Yield each contestant, what has to be compiled last."""
    w = workload("W4", options)
    for name, ours in list(CONTESTANTS.items())[: 4 if options.small else None]:
        yield Case(name, partial(rounds_row, options, w, ours, seconds=4.0))
