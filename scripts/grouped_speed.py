"""Time of a training step of the group-separated form over that of the dense network, beside the ratio of their FLOPs.

    uv run python scripts/grouped_speed.py                          # all networks, about 3 minutes on one core
    uv run python scripts/grouped_speed.py vgg9 --batch 50 --reps 9
    uv run python scripts/grouped_speed.py --layers vgg9            # layer by layer instead
    uv run python scripts/grouped_speed.py --device cuda --batch 256 --reps 30

All steps of a network alternate in one process, so that a change of the machine's speed meets them alike. A step is
forward, backward and SGD. FLOPs count products and convolutions; norms, which vgg9 has in its grouped form only, and
the optimizer have none.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfeat.models.flops import training_flops
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.mobilenet import mobilenet_v1_cifar
from fedfeat.models.network import Network
from fedfeat.models.vgg import vgg9, vgg16_cifar

Step = Callable[[], float]
"""Runs once and gives its seconds."""
Key = tuple[str, ...]
"""What a row or a cell of the table is about: layer, form, layout, precision."""

LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """A network, its classes, and the numbers of groups it is separated into."""

    build: Callable[..., Network]
    num_classes: int
    groups: tuple[int, ...]

    def networks(self, boundaries: Sequence[str]) -> dict[str, Network]:
        """Give the dense network and its grouped forms, under the names in the table."""
        dense = self.build((3, 32, 32), self.num_classes)
        found = {"dense": dense}
        for groups in self.groups:
            for boundary in boundaries:
                spec = GroupSeparation(groups=groups, boundary=boundary)  # type: ignore[arg-type]
                found[f"G={groups} {boundary}"] = spec(dense, spec.sets(dense))
        return found


CASES = {
    "vgg9": Case(vgg9, 10, (10,)),
    "vgg16_cifar": Case(vgg16_cifar, 100, (10, 100)),
    "mobilenet_v1_cifar": Case(mobilenet_v1_cifar, 10, (10,)),
}


@dataclass(frozen=True)
class Setting:
    """Where and how a step runs."""

    device: torch.device
    layout: str
    precision: str

    def place(self, tensor: Tensor) -> Tensor:
        """Move a tensor to the device, and images to the layout."""
        tensor = tensor.to(self.device)
        return tensor.contiguous(memory_format=LAYOUTS[self.layout]) if tensor.dim() == 4 else tensor

    def forward(self, network: nn.Module, x: Tensor) -> Tensor:
        """Apply the network in the precision."""
        dtype = PRECISIONS[self.precision]
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            return network(x)

    def timed(self, work: Callable[[], None]) -> float:
        """Give the seconds until the work is done, on the device too."""
        self._wait()
        start = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def copy_to(setting: Setting, network: nn.Module) -> nn.Module:
    """Give a training copy of a module in the setting's layout."""
    return deepcopy(network).to(setting.device, memory_format=LAYOUTS[setting.layout]).train()  # type: ignore[call-overload]


def training_step(setting: Setting, network: Network, batch: int) -> Step:
    """Build the step of one network on one random batch."""
    model = copy_to(setting, network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = setting.place(torch.randn(batch, *network.input_shape))
    y = setting.place(torch.arange(batch) % network.num_classes)

    def work() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(setting.forward(model, x), y).backward()
        optimizer.step()

    return partial(setting.timed, work)


def layer_steps(setting: Setting, network: Network, batch: int) -> dict[str, Step]:
    """Build forward and backward of every layer with parameters, each alone, on inputs of its shape."""
    shapes: dict[str, tuple[int, ...]] = {}
    layers = {
        name: m for name, m in network.named_modules() if next(m.parameters(recurse=False), None) is not None
    }
    handles = [
        layer.register_forward_hook(
            lambda _m, args, _out, name=name: shapes.update({name: args[0].shape[1:]})
        )
        for name, layer in layers.items()
    ]
    network(torch.randn(2, *network.input_shape))
    for handle in handles:
        handle.remove()
    return {name: _layer_step(setting, layers[name], (batch, *shape)) for name, shape in shapes.items()}


def _layer_step(setting: Setting, layer: nn.Module, shape: Sequence[int]) -> Step:
    layer = copy_to(setting, layer)
    # Layers behind the first get the autocast type from the one before.
    x = setting.place(torch.randn(shape).to(PRECISIONS[setting.precision])).requires_grad_()
    grad = torch.ones_like(setting.forward(layer, x))

    def work() -> None:
        setting.forward(layer, x).backward(grad)
        layer.zero_grad()
        x.grad = None

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


def print_steps(name: str, options: argparse.Namespace, settings: Sequence[Setting]) -> None:
    """Print the rows of one network: whole training steps."""
    networks = CASES[name].networks(options.boundaries)
    keys = {(form, s.layout, s.precision): (s, net) for s in settings for form, net in networks.items()}
    times = measure({key: training_step(*pair, options.batch) for key, pair in keys.items()}, options.reps)
    flops = {form: training_flops(network) for form, network in networks.items()}
    for key, grouped in times.items():
        form, *setting = key
        if form == "dense":
            continue
        dense = times[("dense", *setting)]
        ratios = [g / d for g, d in zip(grouped, dense, strict=True)]
        of_flops = flops[form] / flops["dense"]
        median, least = statistics.median(ratios), min(grouped) / min(dense)
        print(
            f"| {name} {form} | {' '.join(setting)} | {_ms(dense)} | {_ms(grouped)} | "
            f"{median:.2f} ({least:.2f}) | {of_flops:.2f} | {median / of_flops:.2f} |",
            flush=True,
        )


def print_layers(name: str, options: argparse.Namespace, settings: Sequence[Setting]) -> None:
    """Print the rows of one network: its layers alone, in the dense and each grouped form."""
    networks = CASES[name].networks(options.boundaries)
    steps: dict[Key, Step] = {
        (layer, form, s.layout, s.precision): step
        for s in settings
        for form, network in networks.items()
        for layer, step in layer_steps(s, network, options.batch).items()
    }
    times = measure(steps, options.reps)
    forms = list(networks)
    for layer in dict.fromkeys(key[0] for key in times):
        for s in settings:
            found = (times.get((layer, form, s.layout, s.precision)) for form in forms)
            cells = " | ".join(_ms(seconds) if seconds else "" for seconds in found)
            print(f"| {name} {layer} | {s.layout} {s.precision} | {cells} |", flush=True)


def _ms(seconds: Sequence[float]) -> str:
    return f"{1000 * statistics.median(seconds):.2f} ({1000 * min(seconds):.2f})"


def main() -> None:
    """Print one table (one per network with --layers)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=[], metavar="NETWORK", help=f"of {', '.join(CASES)}")
    parser.add_argument("--layers", action="store_true", help="time every layer alone")
    parser.add_argument("--boundaries", nargs="+", default=["slice", "dense"], choices=["slice", "dense"])
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=LAYOUTS)
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    options = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(options.threads)
    settings = [Setting(options.device, la, p) for la in options.layouts for p in options.precisions]
    print(
        f"torch {torch.__version__}, {options.device}, {options.threads} thread(s), batch {options.batch};",
        end=" ",
    )
    print("times: median (minimum)")
    columns = ["dense ms", "grouped ms", "time ratio: median (of minima)", "FLOP ratio", "time over FLOPs"]
    for i, name in enumerate(options.networks or CASES):
        if options.layers:
            columns = [f"{form} ms" for form in CASES[name].networks(options.boundaries)]
        if options.layers or not i:
            print(f"\n| network | setting | {' | '.join(columns)} |")
            print("|---" * (len(columns) + 2) + "|")
        (print_layers if options.layers else print_steps)(name, options, settings)


if __name__ == "__main__":
    main()
