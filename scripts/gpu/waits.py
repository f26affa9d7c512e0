"""Where a round makes the host wait for the device."""

import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from benchmark import build, our_rounds
from torch.utils._python_dispatch import TorchDispatchMode

from gpu.parts import Case, Options, Row
from gpu.workload import workload

WAITING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal", "aten::unique")
CONTESTANTS = {
    "serial": "executor=serial",
    "vectorized": "executor=vectorized executor.memory_mb=24000",
    "vectorized, with dropout": "executor=vectorized model.dropout=0.5",
    "vectorized, momentum": "executor=vectorized optimizer.momentum=0.9",
    "serial, unequal clients": "executor=serial partition=quantity_skew partition.min_size=2",
    "vectorized, unequal clients": "executor=vectorized partition=quantity_skew partition.min_size=2",
}


class Waits(TorchDispatchMode):
    """Notes which operations wait, and who called them."""

    @cached_property
    def inside(self) -> Counter[str]:
        """Callers within local epochs, and how often."""
        return Counter()

    @cached_property
    def outside(self) -> Counter[str]:
        """The others."""
        return Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation as it is."""
        if (name := func.name().partition(".")[0]) in WAITING:
            self.note(name)
        return func(*args, **(kwargs or {}))

    def note(self, what: str) -> None:
        """Count a wait where the Python code stands now."""
        stack = traceback.extract_stack()
        within = any(f.name == "advance" and f.filename.endswith("training_epoch_loop.py") for f in stack)
        ours = [f for f in stack if "fedfeat" in f.filename or "pytorch_lightning" in f.filename]
        place = ours[-1] if ours else stack[-1]
        where = self.inside if within else self.outside
        where[f"{what} ({'/'.join(Path(place.filename).parts[-2:])}:{place.lineno} {place.name})"] += 1

    @contextmanager
    def of_cuda(self) -> Iterator[None]:
        """Note what CUDA's own debug mode warns of, in place of operations."""
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_: (
                self.note("CUDA waits") if "called a synchronizing" in str(message) else None
            )
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")


def cases(options: Options) -> Iterator[Case]:
    """Yield each way to train."""
    for name, ours in list(CONTESTANTS.items())[: 2 if options.small else None]:
        yield Case(name, partial(waits_row, options, ours))


def waits_row(options: Options, ours: str) -> Row:
    """Watch the second round of a small federation."""
    w = workload("W2", options._replace(small=True))
    accelerator = "gpu" if options.device == "cuda" else "cpu"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        words = f"trainer=default trainer.accelerator={accelerator} trainer.num_threads=1 {ours}"
        rounds = our_rounds(build(w, words, Path(folder)))
        next(rounds)
        waits = Waits()
        stack.enter_context(waits.of_cuda() if options.device == "cuda" else waits)
        next(rounds)
    places = "; ".join(f"{count} {what}" for what, count in waits.inside.most_common(6))
    others = "; ".join(f"{count} {what}" for what, count in waits.outside.most_common(6))
    return {
        "inside": waits.inside.total(), "where": places, "outside": waits.outside.total(), "outside, where": others,
    }  # fmt: skip
