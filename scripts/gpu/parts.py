"""What the report consists of, in the order of importance, and what a part gets and gives."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fedfeat.runs.provenance import git_commit

Row = dict[str, Any]
"""What one case has found: a row of the part's table."""


class Refused(Exception):
    """The command cannot do what it was asked for; the sentence says why."""


class Options(NamedTuple):
    """What the whole report has in common.

    Attributes:
        device: ``cuda`` or ``cpu``.
        small: Whether settings are tiny.
        out: The report's folder.
    """

    device: str
    small: bool
    out: Path

    def kind(self) -> dict[str, Any]:
        """Give what rows have to have in common that stand in one report."""
        return {
            "device": self.device,
            "small": self.small,
            "commit": git_commit() or os.environ.get("FEDFEAT_COMMIT"),
        }


class Case(NamedTuple):
    """One row, before it is known.

    Attributes:
        key: Its name in the table.
        run: Finds the rest of it.
    """

    key: str
    run: Callable[[], Row]


class Part(NamedTuple):
    """One section of the report: module ``gpu.<name>``, whose ``cases(options)`` yields its cases.

    Attributes:
        title: Its heading.
        share: Seconds that it gets where all parts need theirs; what earlier ones leave over is shared out.
        about: What the table means.
        timed: Whether cases are measured, hence run alone.
    """

    title: str
    share: float
    about: str
    timed: bool = True


PARTS = {
    "machine": Part(
        "Machine", 20,
        "Products are of square matrices, copies count bytes read and written. The floor of W4 is what its operations "
        "take at that rate and nothing else: 1,500 rounds of 50 clients with 50 images each.",
    ),
    "w4": Part(
        "W4, whole rounds", 105,
        "pfl-research's CIFAR-10 workload on random pixels: 1,000 clients with 50 images, 50 of them a round, batches "
        "of 10, one epoch, the CNN of 1,626,442 parameters without its dropout unless said; no evaluation inside the "
        "time. First: seconds of the first round, with all that is built or compiled in it, and an evaluation.",
    ),
    "agreement": Part(
        "Weights of CPU and GPU", 110,
        "The server's state and everything that clients keep, after two rounds in float64 unless said: largest gap to "
        "a run of `serial` on the CPU, relative to the tensor's largest number or 1.",
        timed=False,
    ),
    "w4_steps": Part(
        "W4, single steps by hand", 90,
        "A step of all 50 clients by stacked weights: forward, backward, SGD. Layers written as grouped convolution, "
        "as unfolded images times filters (`bmm`: a product for each client, `bmm each`: for each image), or one "
        "convolution after the other (`loop`). A round has 5 steps.",
    ),
    "waits": Part(
        "Waits inside local epochs", 25,
        "What makes the host wait in a round after the first, by CUDA's debug mode: inside the local epochs, where "
        "there should be nothing, and outside. On the CPU operations are counted that would make it wait (`.item()` "
        "and the like), those on numbers that are on the host anyway too.",
    ),
    "rounds": Part(
        "W1 to W3, whole rounds", 60,
        "The workloads of `scripts/benchmark.py`; ratio to the loop by hand on the same device.",
    ),
    "stack": Part(
        "Size of the stack", 40,
        "Steps as in W4 with so many clients at once: all that is allocated at most, weights, images and gradients.",
    ),
    "several": Part(
        "Several processes on the device", 35,
        "W4 by hand, the clients of a round split over processes that have a context each; weights cross through "
        "shared memory of the host.",
    ),
    "vgg9": Part(
        "vgg9 at batch 64", 25,
        "Training steps of the dense network and of the group-separated ones of Fed2, with both kinds of boundary; "
        "steps alternate (`scripts/grouped_speed.py`).",
    ),
}  # fmt: skip
