"""What FedHeNN's term costs: time of a training step with it over that of the plain step, beside the ratio of FLOPs.

    uv run python scripts/fedhenn_speed.py                               # about 15 minutes on one core
    uv run python scripts/fedhenn_speed.py fedrep_cnn10 --rad 5000 --reps 3
    uv run python scripts/fedhenn_speed.py --clock cpu                   # on a machine with other work
    uv run python scripts/fedhenn_speed.py --device cuda --reps 30

All arms of a network alternate in one process, so that a change of the machine's speed meets them alike. A step is
forward, backward and SGD on the client half itself, as in a local fit: "256 of 5000" draws other shared inputs at every
step, "5000" takes all of them, as the paper does. The plain step is a mean of 20 in a row, which find their weights in
the caches, as in a fit. The target is the client's own kernel (factors), a mean kernel of many networks (matrix), or
one of rbf kernels. FLOPs are those of the passes, counted as `compute/flops` counts them, and of the matrix products of
the kernels. "passes alone" is the same step with as many inputs whose representations are summed up, not compared: the
rest is the price of the kernels. A batch of 10 and one of 256 use a processor unequally well per FLOP.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from fusion_speed import CLOCKS
from timing import (
    LAYOUTS,
    PRECISIONS,
    Key,
    Setting,
    Step,
    add_several,
    copy_to,
    measure,
    milliseconds,
    ratio,
    read_options,
)
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fedfeat.algorithms.fedhenn import AlignedWeights, FedHeNNClient
from fedfeat.clients.host import keep_freed_memory
from fedfeat.features.alignment import PART
from fedfeat.features.cka import Target, cka
from fedfeat.features.kernels import Kernel, KernelName, kernel_of
from fedfeat.models.cnn import fedrep_cnn10
from fedfeat.models.flops import training_flops
from fedfeat.models.hetero import hetero_cnn
from fedfeat.models.lstm import sent140_lstm
from fedfeat.models.network import Network
from fedfeat.types import Turn, Vocabulary

RAD_BATCH = 256
"""algorithm.client.rad_batch."""
PLAIN_STEPS = 20
"""In a row."""
WORDS, TOKENS = 2000, 25
"""Learned words of the LSTM, and tokens of a tweet (lgcollins/FedRep)."""


def lstm() -> Network:
    """Build the network for tweets."""
    return sent140_lstm((TOKENS,), 2, Vocabulary(WORDS))


@dataclass(frozen=True)
class Case:
    """A network and the batch of its experiments."""

    build: Callable[[], Network]
    batch: int

    def inputs(self, count: int, network: Network) -> Tensor:
        """Draw inputs (count, ...)."""
        if len(network.input_shape) == 1:
            return torch.randint(1, WORDS, (count, *network.input_shape))
        return torch.randn(count, *network.input_shape)


CASES = {
    "fedrep_cnn10": Case(partial(fedrep_cnn10, (3, 32, 32), 10), 10),
    "hetero_cnn A5": Case(partial(hetero_cnn, (3, 32, 32), 10, arch="A5"), 10),
    "sent140_lstm": Case(lstm, 4),
}
TARGETS = ("factors", "matrix", "rbf")


@dataclass
class PassesAlone:
    """The passes of the term without its kernels, in the place of `features.alignment.AlignmentTerm`."""

    batch: int | None
    inputs: Tensor = field(default_factory=lambda: torch.empty(0))

    def begin(self) -> None:
        """Start a fit."""

    def fix(self, inputs: Tensor, target: Kernel | None, represent: Callable[[Tensor], Tensor]) -> None:
        """Set the inputs of a fit."""
        self.inputs = inputs

    def distance(self, represent: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum up representations of as many inputs, in the same parts."""
        rows = torch.randperm(len(self.inputs))[: self.batch].to(self.inputs.device)
        inputs = self.inputs if len(rows) == len(self.inputs) else self.inputs[rows]
        return torch.cat([represent(part) for part in inputs.split(PART)]).sum()


@dataclass(frozen=True)
class Arm:
    """A way to take the term, or the plain step.

    Attributes:
        name: As in the table.
        target: ``factors``, ``matrix`` or ``rbf``; None for passes alone or no term.
        rad: Shared inputs; 0 for no term.
        rad_batch: Those of a step; None takes all.
    """

    name: str
    target: str | None = None
    rad: int = 0
    rad_batch: int | None = None

    @property
    def kernel(self) -> KernelName:
        """The clients' kernel."""
        return "rbf" if self.target == "rbf" else "linear"

    def target_kernel(self, representation: Tensor) -> Kernel | None:
        """Give a server's target for these inputs (m, d); None for the client's own, as of equal networks."""
        if self.target not in ("matrix", "rbf"):
            return None
        return Kernel(kernel_of(representation, self.kernel).matrix(), dense=True)

    def step(self, case: Case, setting: Setting, network: Network, shared: Tensor) -> Step:
        """Build the training step."""
        sgd = partial(torch.optim.SGD, lr=0.01, momentum=0.5)
        last = setting.layout == "channels_last"
        module = FedHeNNClient(
            model=copy_to(setting, network),
            optimizer=sgd,
            kernel=self.kernel,
            rad_batch=self.rad_batch,
            channels_last=last,
        )
        module.plain = _as_they_are
        if self.rad and not self.target:
            module.term = PassesAlone(self.rad_batch)
        inputs, target = None, None
        if self.rad:
            inputs = shared[: self.rad].to(setting.device)
            with torch.no_grad():
                target = self.target_kernel(module.represent(inputs))
        counts = np.ones(network.num_classes, dtype=np.int64)
        sent = AlignedWeights({}, inputs, target, eta=0.01)
        turn = Turn(0, 0, sent, None, 1, module.base_lr, setting.device, counts, lambda size: iter(()))
        module.ready(turn)
        module.begin_turn(turn)
        setting.forward(module.prepare, torch.empty(0))
        optimizer = module.configure_optimizers()
        labels = torch.arange(case.batch) % network.num_classes
        batch = setting.place(case.inputs(case.batch, network)), setting.place(labels)
        count = 1 if self.rad else PLAIN_STEPS

        def work() -> None:
            for _ in range(count):
                optimizer.zero_grad()
                setting.forward(module.loss, batch).backward()
                optimizer.step()

        return lambda: setting.timed(work) / count

    def flops(self, case: Case, network: Network) -> int:
        """Count FLOPs of the step: passes both ways, and the products of kernels, forward and backward."""
        count = self.rad_batch or self.rad
        passes = (case.batch + count) * training_flops(network)
        return passes + (self._kernel_flops(count, network.last_layer.in_features) if self.target else 0)

    def _kernel_flops(self, count: int, width: int) -> int:
        own, fixed = torch.randn(count, width, requires_grad=True), torch.randn(count, width)
        target = self.target_kernel(fixed) or kernel_of(fixed)
        whole = Target(target)
        with FlopCounterMode(display=False) as counter:
            k = kernel_of(own, self.kernel)
            (cka(k, target) if self.rad_batch else whole.cka(k)).backward()
        return counter.get_total_flops()


def _as_they_are(inputs: Tensor) -> Tensor:
    return inputs


def arms(rad: int) -> list[Arm]:
    """Give the plain step and all ways to take the term."""
    sizes = ((RAD_BATCH, f"{RAD_BATCH} of {rad}"), (None, f"{rad}"))
    with_term = [
        Arm(f"{what}, {target or 'passes alone'}", target, rad, rad_batch)
        for rad_batch, what in sizes
        for target in (None, *TARGETS)
    ]
    return [Arm("plain"), *with_term]


def print_times(name: str, setting: Setting, options: argparse.Namespace) -> None:
    """Print a row for every arm but the plain step."""
    case = CASES[name]
    network = case.build()
    shared = case.inputs(options.rad, network)
    found = {arm.name: arm for arm in arms(options.rad) if options.only in arm.name or not arm.rad}
    steps: dict[Key, Step] = {(key,): arm.step(case, setting, network, shared) for key, arm in found.items()}
    times = {key: seconds for (key,), seconds in measure(steps, options.reps).items()}
    plain = times.pop("plain")
    for key, seconds in times.items():
        of_flops = found[key].flops(case, network) / found["plain"].flops(case, network)
        median, least = ratio(seconds, plain)
        print(
            f"| {name} {key} | {setting.layout} {setting.precision} | {milliseconds(plain)} | "
            f"{milliseconds(seconds)} | {median:.1f} ({least:.1f}) | {of_flops:.1f} | "
            f"{median / of_flops:.2f} ({least / of_flops:.2f}) |",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", default=[], metavar="NETWORK", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rad", type=int, default=5000, help="shared inputs of a round (%(default)s)")
    parser.add_argument("--only", default="", help="arms with this in their names")
    add_several(parser, "--layouts", LAYOUTS, ["contiguous"])
    add_several(parser, "--precisions", PRECISIONS, ["fp32"])
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: of this process alone")
    options = read_options(parser)
    keep_freed_memory()  # as every run does
    print(f"torch {torch.__version__}, {options.device}, {options.threads} thread(s), ", end="")
    print(f"{options.clock} time: median (minimum)\n")
    print(
        "| step | setting | plain ms | ms | time ratio: median (of minima) | FLOP ratio | time over FLOPs |"
    )
    print("|---" * 7 + "|")
    for name in options.networks or CASES:
        for layout in options.layouts:
            for precision in options.precisions:
                print_times(name, Setting(options.device, layout, precision, CLOCKS[options.clock]), options)


if __name__ == "__main__":
    main()
