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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
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
    training_step,
)
from torch import nn

from fedfeat.models.flops import training_flops
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.mobilenet import mobilenet_v1_cifar
from fedfeat.models.network import Network
from fedfeat.models.vgg import vgg9, vgg16_cifar


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
        of_flops = flops[form] / flops["dense"]
        median, least = ratio(grouped, dense)
        print(
            f"| {name} {form} | {' '.join(setting)} | {milliseconds(dense)} | {milliseconds(grouped)} | "
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
            cells = " | ".join(milliseconds(seconds) if seconds else "" for seconds in found)
            print(f"| {name} {layer} | {s.layout} {s.precision} | {cells} |", flush=True)


def main() -> None:
    """Print one table (one per network with --layers)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=[], metavar="NETWORK", help=f"of {', '.join(CASES)}")
    parser.add_argument("--layers", action="store_true", help="time every layer alone")
    add_several(parser, "--boundaries", ["slice", "dense"], ["slice", "dense"])
    add_several(parser, "--layouts", LAYOUTS, LAYOUTS)
    add_several(parser, "--precisions", PRECISIONS, PRECISIONS)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--reps", type=int, default=5)
    options = read_options(parser)
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
