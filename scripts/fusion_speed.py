"""What FedFusion costs over FedAvg: time of a step and of a local fit beside the ratio of FLOPs, and upload bytes.

    uv run python scripts/fusion_speed.py                                # all networks, about 10 minutes on one core
    uv run python scripts/fusion_speed.py mnist_cnn --layouts channels_last --precisions fp32 --fit-reps 3
    uv run python scripts/fusion_speed.py --clock cpu                    # on a machine with other work
    uv run python scripts/fusion_speed.py --device cuda --examples 4096 --reps 30

All arms of a network alternate in one process, so that a change of the machine's speed meets them alike. A step is
forward, backward and SGD; "E_g known" is a step whose frozen features are given. A fit is a client's turn of 5 epochs,
as in the paper's experiments, with all that surrounds it; "cached" passes each example through E_g once, before the
first epoch (algorithm.client.cache_eg). FLOPs count products and convolutions alone.
"""

import argparse
import time
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
    measure,
    milliseconds,
    ratio,
    read_options,
    training_step,
)

from fedfeat.algorithms.fedfusion import FedFusionClient
from fedfeat.client import ClientModule
from fedfeat.clients.local_trainer import LocalTrainer
from fedfeat.clients.networks import OneNetwork
from fedfeat.clients.tasks import Task
from fedfeat.clients.turns import WorkerSettings
from fedfeat.clients.worker import Worker
from fedfeat.data import transforms
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.schemes import Iid
from fedfeat.data.synthetic import synthetic
from fedfeat.models.cnn import digits_cnn, fusion_cifar_cnn, mnist_cnn
from fedfeat.models.flops import encoder_flops, training_flops
from fedfeat.models.fusion import Op, fuse, fusion_of
from fedfeat.models.network import Network
from fedfeat.params import snapshot
from fedfeat.tree import num_bytes
from fedfeat.types import Weights

OPS: tuple[Op, ...] = ("single", "multi", "conv")
BATCH = 64
"""Examples in a batch of the paper's experiments (thu-media/FedFusion)."""
EPOCHS = 5
"""Local epochs there."""
PRECISION_OF = {"fp32": "32-true", "bf16": "bf16-mixed"}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Case:
    """A network and the shape of its images."""

    build: Callable[..., Network]
    shape: tuple[int, ...]

    def network(self, op: Op | None = None) -> Network:
        """Build the network, with a fusion module if there is an operator."""
        network = self.build(self.shape, 10)
        if op is not None:
            fuse(network, op)
        return network


CASES = {
    "digits_cnn": Case(digits_cnn, (1, 8, 8)),
    "mnist_cnn": Case(mnist_cnn, (1, 28, 28)),
    "fusion_cifar_cnn": Case(fusion_cifar_cnn, (3, 32, 32)),
}


def frozen_part(network: torch.nn.Module) -> torch.nn.Module:
    """Give the frozen extractor."""
    fusion = fusion_of(network)
    assert fusion is not None
    return fusion.frozen


def steps(case: Case, setting: Setting) -> tuple[dict[str, Step], dict[str, float]]:
    """Build the step of every arm; give them and their FLOPs per example."""
    dense = case.network()
    found = {"fedavg": training_step(setting, dense, BATCH)}
    flops = {"fedavg": float(training_flops(dense))}
    for op in OPS:
        fused = case.network(op)
        found[op] = training_step(setting, fused, BATCH)
        found[f"{op}, E_g known"] = training_step(setting, fused, BATCH, frozen_part)
        flops[op] = float(training_flops(fused))
        flops[f"{op}, E_g known"] = flops[op] - encoder_flops(fused)
    return found, flops


def client(op: Op | None = None, cache_eg: bool = False) -> Callable[..., ClientModule]:
    """Give what makes the client half of an arm."""
    sgd = partial(torch.optim.SGD, lr=0.003, momentum=0.9)
    if op is None:
        return partial(ClientModule, optimizer=sgd)
    return partial(FedFusionClient, optimizer=sgd, op=op, cache_eg=cache_eg)


def sent(module: ClientModule) -> Weights:
    """Give what server and client send each other."""
    return Weights(snapshot(module.model, module.shared_keys))


def fits(case: Case, setting: Setting, num_examples: int) -> tuple[dict[str, Step], dict[str, float]]:
    """Build one client's fit in every arm; give them and a dictionary that their FLOPs are put into."""
    dataset = synthetic(case.shape, num_train=num_examples, num_test=10)
    split = Iid().split(dataset.train.labels.numpy(), dataset.test.labels.numpy(), 10, 1, seed=0)
    data = FederatedData(dataset, split, transforms.none(), device=setting.device)
    accelerator = "gpu" if setting.device.type == "cuda" else "cpu"
    last = setting.layout == "channels_last"
    trainer = LocalTrainer(accelerator, precision=PRECISION_OF[setting.precision], channels_last=last)
    arms = {"fedavg": client()}
    arms |= {name: client(op, name != op) for op in OPS for name in (op, f"{op}, cached")}
    found: dict[str, Step] = {}
    flops: dict[str, float] = {}
    for name, build in arms.items():
        worker = Worker(data, OneNetwork(case.network), build, trainer, WorkerSettings(0, BATCH, 500, False))
        task = Task(0, 0, sent(worker.module), None, num_steps=EPOCHS * worker.steps_per_epoch(0))

        def work(name: str = name, worker: Worker = worker, task: Task = task) -> None:
            flops[name] = worker.fit(task).metrics["flops"]

        found[name] = partial(setting.timed, work)
    return found, flops


def print_times(
    name: str, setting: Setting, found: dict[str, Step], flops: dict[str, float], reps: int
) -> None:
    """Print a row for every arm but FedAvg."""
    keys: dict[Key, Step] = {(arm,): step for arm, step in found.items()}
    times = {arm: seconds for (arm,), seconds in measure(keys, reps).items()}
    for arm, seconds in times.items():
        if arm == "fedavg":
            continue
        median, least = ratio(seconds, times["fedavg"])
        print(
            f"| {name} {arm} | {setting.layout} {setting.precision} | {milliseconds(times['fedavg'])} | "
            f"{milliseconds(seconds)} | {median:.3f} ({least:.3f}) | {flops[arm] / flops['fedavg']:.3f} |",
            flush=True,
        )


def print_bytes(names: Sequence[str]) -> None:
    """Print what a client uploads in a round."""
    print(f"\n| upload, bytes | fedavg | {' | '.join(OPS)} |\n{'|---' * (len(OPS) + 2)}|")
    for name in names:
        modules = [build(model=CASES[name].network()) for build in (client(), *(client(op) for op in OPS))]
        sizes = [num_bytes(sent(one)) for one in modules]
        cells = [f"{size:,} (+{size - sizes[0]:,})" for size in sizes[1:]]
        print(f"| {name} | {sizes[0]:,} | {' | '.join(cells)} |")


def main() -> None:
    """Print the bytes, the steps and the fits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", default=[], metavar="NETWORK", help=f"of {', '.join(CASES)}")
    add_several(parser, "--layouts", LAYOUTS, LAYOUTS)
    add_several(parser, "--precisions", PRECISIONS, PRECISIONS)
    parser.add_argument("--examples", type=int, default=320, help="of the client that fits (%(default)s)")
    parser.add_argument("--reps", type=int, default=9, help="of a step (%(default)s)")
    parser.add_argument("--fit-reps", type=int, default=3, help="of a fit; 0: none (%(default)s)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: of this process alone")
    options = read_options(parser)
    settings = [
        Setting(options.device, layout, precision, CLOCKS[options.clock])
        for layout in options.layouts
        for precision in options.precisions
    ]
    names = options.networks or list(CASES)
    print(
        f"torch {torch.__version__}, {options.device}, {options.threads} thread(s), batch {BATCH}, ", end=""
    )
    print(f"{options.clock} time: median (minimum)")
    print_bytes(names)
    kinds = {"step": (steps, options.reps)}
    if options.fit_reps:
        build = partial(fits, num_examples=options.examples)
        kinds[f"fit of {EPOCHS} epochs, {options.examples} examples"] = (build, options.fit_reps)
    for kind, (make, reps) in kinds.items():
        print(f"\n| {kind} | setting | FedAvg ms | ms | time ratio: median (of minima) | FLOP ratio |")
        print("|---" * 6 + "|")
        for name in names:
            for setting in settings:
                print_times(name, setting, *make(CASES[name], setting), reps)


if __name__ == "__main__":
    main()
