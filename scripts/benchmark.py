"""Wall time per round against a plain hand-written PyTorch loop that does the same steps, round by round in turn.

    uv run python scripts/benchmark.py                 # all workloads
    uv run python scripts/benchmark.py W2 --rounds 9 --threads 1

Each contestant is a process of its own, with the memory allocator as it comes or as it sets it; their rounds
alternate, so that a change of the machine's speed meets both alike, and the ratio is taken pair by pair. Both train the
same network from the same weights on the same random pixels and labels (the speed of max pooling depends on the
values): SGD without momentum, learning rate 0.01, one local epoch, sample-weighted mean, no evaluation inside the time,
as in the usual side-by-side comparisons of simulators.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn import functional

from fedfeat.assembly import build_experiment
from fedfeat.choices import CONFIGS
from fedfeat.experiment import Experiment
from fedfeat.federation import run_rounds
from fedfeat.sampling import sample_cohort


@dataclass(frozen=True)
class Workload:
    """One comparison: network, input shape, clients, samples per client, cohort, batch."""

    model: str
    shape: tuple[int, int, int]
    clients: int
    samples: int
    cohort: int
    batch: int
    rounds: int


WORKLOADS = {
    "W1": Workload("mlp", (1, 8, 8), 1000, 32, 100, 16, 20),
    "W2": Workload("mnist_cnn", (1, 28, 28), 100, 200, 10, 32, 7),
    "W3": Workload("vgg9", (3, 32, 32), 10, 128, 10, 64, 5),
}


def overrides(w: Workload) -> list[str]:
    """Configuration of our side."""
    return [
        "data=synthetic",
        f"data.loader.shape=[{','.join(map(str, w.shape))}]",
        f"data.loader.num_train={w.clients * w.samples}",
        "data.loader.num_test=100",
        "partition=iid",
        "algorithm=fedavg",
        "federation.local_epochs=1",
        f"model={w.model}",
        f"federation.num_clients={w.clients}",
        f"federation.cohort_size={w.cohort}",
        f"federation.batch_size={w.batch}",
        f"federation.num_rounds={w.rounds + 1}",
        "federation.eval_every=1000",
        "optimizer.momentum=0",
        "trainer=cpu",
        "paths.root=.",
    ]


def hand_written(w: Workload, model: nn.Module, x: Tensor, y: Tensor) -> Iterator[None]:
    """FedAvg as a user would write it: float images in memory, one model, one optimizer."""
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.01)
    server = [p.detach().clone() for p in params]
    round_idx = 0
    model.train()
    while True:
        mean = [torch.zeros_like(p) for p in server]
        for client in sample_cohort(0, round_idx, w.clients, w.cohort):
            with torch.no_grad():
                torch._foreach_copy_(params, server)
            order = torch.randperm(w.samples) + client * w.samples
            for start in range(0, w.samples, w.batch):
                batch = order[start : start + w.batch]
                optimizer.zero_grad()
                functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(mean, [p.detach() for p in params], alpha=1.0 / w.cohort)
        server = mean
        round_idx += 1
        yield


def build(w: Workload, folder: Path) -> Experiment:
    """Our side, as a run would build it."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", overrides(w))
    # compose() knows no Hydra run time; the paths are this script's.
    cfg.paths.root = str(folder)
    return build_experiment(cfg, OmegaConf.to_container(cfg, resolve=True), folder)


def ours(e: Experiment) -> Iterator[None]:
    """Our loop on the same workload."""
    progress, _ = e._begin()
    for _progress, record in run_rounds(e.plan, e.server, e.executor, e.data, e.store, progress):
        if record.round_idx:
            yield


def examples(e: Experiment, w: Workload) -> tuple[Tensor, Tensor]:
    """Inputs and labels as our clients meet them, one client's after the other's."""
    batches = [b for client in range(w.clients) for b in e.data.train_batches(client, 0, 0, None)]
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def write_start(w: Workload, folder: Path) -> None:
    """Process that leaves the initial model and the data of our side for the hand-written one."""
    experiment = build(w, folder)
    torch.save((experiment.executor.worker.module.model, *examples(experiment, w)), folder / "start.pt")


def contestant(name: str, w: Workload, threads: int, folder: Path, pipe: Connection) -> None:
    """Process of one side: run a round at every message and answer with its seconds."""
    if name == "fedfeat":
        rounds = ours(build(w, folder))
    else:
        rounds = hand_written(w, *torch.load(folder / "start.pt", weights_only=False))
    torch.set_num_threads(threads)
    while pipe.recv():
        start = time.perf_counter()
        next(rounds)
        pipe.send(time.perf_counter() - start)


def compare(w: Workload, threads: int, folder: Path) -> tuple[list[float], list[float]]:
    """Seconds per round of the hand-written loop and of ours, pair by pair, after one round of warm-up."""
    context = get_context("spawn")
    first = context.Process(target=write_start, args=(w, folder))
    first.start()
    first.join()
    pipes, processes = [], []
    for name in ("by hand", "fedfeat"):
        pipe, far_end = context.Pipe()
        processes.append(context.Process(target=contestant, args=(name, w, threads, folder, far_end)))
        processes[-1].start()
        pipes.append(pipe)
    times: tuple[list[float], list[float]] = ([], [])
    for round_idx in range(w.rounds + 1):
        for pipe, seconds in zip(pipes, times, strict=True):
            pipe.send(True)
            took = pipe.recv()
            if round_idx:
                seconds.append(took)
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(False)
        process.join()
    return times


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=[], metavar="W", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {arguments.threads} thread(s)\n")
    print("| workload | hand-written s/round | fedfeat s/round | ratio: median (min-max of pairs) |")
    print("|---|---|---|---|")
    for name in arguments.workloads or WORKLOADS:
        workload = WORKLOADS[name]
        workload = replace(workload, rounds=arguments.rounds or workload.rounds)
        with tempfile.TemporaryDirectory() as folder:
            by_hand, own = compare(workload, arguments.threads, Path(folder))
        ratios = [b / a for a, b in zip(by_hand, own, strict=True)]
        print(
            f"| {name} {workload.model} | {statistics.median(by_hand):.4f} | {statistics.median(own):.4f} | "
            f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
