"""Training steps that alternate in one process, and their times; shared by the scripts that compare networks."""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfeat.models.network import Network

Step = Callable[[], float]
"""Runs once and gives its seconds."""
Key = tuple[str, ...]
"""What a row or a cell of a table is about: layer, form, layout, precision."""

LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Setting:
    """Where and how a step runs, and the clock that times it."""

    device: torch.device
    layout: str
    precision: str
    clock: Callable[[], float] = time.perf_counter

    def place(self, tensor: Tensor) -> Tensor:
        """Move a tensor to the device, and images to the layout."""
        tensor = tensor.to(self.device)
        return tensor.contiguous(memory_format=LAYOUTS[self.layout]) if tensor.dim() == 4 else tensor

    def forward(self, network: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Apply the network in the precision."""
        dtype = PRECISIONS[self.precision]
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            return network(*inputs)

    def timed(self, work: Callable[[], None]) -> float:
        """Give the seconds until the work is done, on the device too."""
        self._wait()
        start = self.clock()
        work()
        self._wait()
        return self.clock() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def add_several(
    parser: argparse.ArgumentParser, option: str, known: Collection[str], default: Collection[str]
) -> None:
    """Add an option that takes one or several of the names that are known."""
    parser.add_argument(
        option, nargs="+", default=[*default], metavar="NAME", choices=known, help="of %(choices)s"
    )


def read_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read a script's options, with those of all of them, and fix the seeds and the threads."""
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    options = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(options.threads)
    return options


def copy_to(setting: Setting, network: nn.Module) -> nn.Module:
    """Give a training copy of a module in the setting's layout."""
    return deepcopy(network).to(setting.device, memory_format=LAYOUTS[setting.layout]).train()  # type: ignore[call-overload]


def training_step(
    setting: Setting, network: Network, batch: int, known: Callable[[nn.Module], nn.Module] | None = None
) -> Step:
    """Build the step of one network on one random batch.

    Args:
        setting: Where and how it runs.
        network: The network; a copy of it is trained.
        batch: Examples, B.
        known: Gives a part of the network whose output for the batch (B, ...) is computed once, not in the step, and
            goes into the network beside the batch.
    """
    model = copy_to(setting, network)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
    x = setting.place(torch.randn(batch, *network.input_shape))
    y = setting.place(torch.arange(batch) % network.num_classes)
    with torch.no_grad():
        beside = [setting.forward(known(model), x)] if known else []

    def work() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(setting.forward(model, x, *beside), y).backward()
        optimizer.step()

    return partial(setting.timed, work)


def measure(steps: dict[Key, Step], reps: int) -> dict[Key, list[float]]:
    """Give seconds of every step, all of them in turn, after one turn of warm-up.

    The order is drawn anew every time: a step pays for what the one before it left in the caches.
    """
    times: dict[Key, list[float]] = {key: [] for key in steps}
    for rep in range(reps + 1):
        for key in random.sample(list(steps), len(steps)):
            seconds = steps[key]()
            if rep:
                times[key].append(seconds)
    return times


def ratio(times: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """Give the median of the ratios, turn by turn, and the ratio of the minima."""
    ratios = [one / other for one, other in zip(times, base, strict=True)]
    return statistics.median(ratios), min(times) / min(base)


def milliseconds(seconds: Sequence[float]) -> str:
    """Write median and minimum."""
    return f"{1000 * statistics.median(seconds):.2f} ({1000 * min(seconds):.2f})"
