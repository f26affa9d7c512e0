"""Wall time per round beside a plain hand-written PyTorch loop that does the same steps, round by round in turn.

    uv run python scripts/benchmark.py      # all workloads, each as it is best run
    uv run python scripts/benchmark.py W2 --rounds 9 --ours executor=serial --ours executor=processes
    uv run python scripts/benchmark.py W2 --ours algorithm=fedfusion_conv --base algorithm=fedavg

Each contestant is a process of its own, or two, with the memory allocator as it comes or as it sets it; their rounds
alternate, so that a change of the machine's speed meets all alike, and ratios are taken round by round. All train the
same network from the same weights on the same random pixels and labels (the speed of max pooling depends on the
values): SGD without momentum, learning rate 0.01, one local epoch, sample-weighted mean, no evaluation inside the time,
as in the usual side-by-side comparisons of simulators. ``by hand`` is one process of one thread, ``by hand, 2
processes`` has the clients of a round split over two, with weights in shared memory.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedfeat
from fedfeat.evidence.bench import spread
from fedfeat.rounds.experiment import Experiment
from fedfeat.rounds.samplers import Uniform

BY_HAND = {"by hand": 1, "by hand, 2 processes": 2}


@dataclass(frozen=True)
class Workload:
    """One comparison: network, input shape, clients, samples per client, cohort, batch, and how it is best run."""

    model: str
    shape: tuple[int, int, int]
    clients: int
    samples: int
    cohort: int
    batch: int
    rounds: int
    best: str


WORKLOADS = {
    "W1": Workload("model=mlp", (1, 8, 8), 1000, 32, 100, 16, 20, "executor=vectorized trainer.num_threads=2"),
    "W2": Workload("model=mnist_cnn model.dropout=0", (1, 28, 28), 100, 200, 10, 32, 7, "executor=processes"),
    "W3": Workload(
        "model=vgg9 model.dropout=0 model.conv_dropout=0", (3, 32, 32), 10, 128, 10, 64, 5,
        "executor=processes trainer.channels_last=true",
    ),
    # pfl-research's CIFAR-10 benchmark (experiment=pfl_cifar10), as all of these without dropout.
    "W4": Workload(
        "model=pfl_cnn model.dropout=0 model.input_dropout=0", (3, 32, 32), 1000, 50, 50, 10, 3,
        "executor=processes trainer.channels_last=true",
    ),
}  # fmt: skip


def overrides(w: Workload, ours: str) -> list[str]:
    """Configuration of our side; what is given comes last, hence counts."""
    common = [
        "data=synthetic", f"data.loader.shape=[{','.join(map(str, w.shape))}]",
        f"data.loader.num_train={w.clients * w.samples}", "data.loader.num_test=100", "partition=iid",
        "algorithm=fedavg", "federation.local_epochs=1", *w.model.split(), f"federation.num_clients={w.clients}",
        f"federation.cohort_size={w.cohort}", f"federation.batch_size={w.batch}",
        f"federation.num_rounds={w.rounds + 2}", "federation.eval_every=1000", "optimizer.momentum=0", "trainer=cpu",
        "trainer.num_threads=1",
    ]  # fmt: skip
    found = {text.partition("=")[0]: text for text in [*common, *ours.split()]}
    return list(found.values())


def build(w: Workload, ours: str, folder: Path) -> Experiment:
    """Our side, as a run would build it."""
    return fedfeat.build([*overrides(w, ours), f"paths.root={folder}", f"hydra.run.dir={folder}"])


def our_rounds(e: Experiment) -> Iterator[None]:
    """Our loop on the same workload."""
    progress, _ = e.begin()
    for _progress, record in e.rounds(progress):
        if record.round_idx:
            yield


def examples(e: Experiment, w: Workload) -> tuple[Tensor, Tensor]:
    """Inputs and labels as our clients meet them, one client's after the other's."""
    batches = [b for client in range(w.clients) for b in e.data.train_batches(client, 0, 0, None)]
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


class HandWritten:
    """FedAvg as a user would write it: float images in memory, one model and one optimizer in each process."""

    def __init__(self, w: Workload, model: nn.Module, x: Tensor, y: Tensor, processes: int) -> None:
        self.w, self.model, self.x, self.y, self.processes = w, model, x, y, processes
        self.params = list(model.parameters())
        self.server = [p.detach().clone().share_memory_() for p in self.params]
        self.means = [[torch.zeros_like(p).share_memory_() for p in self.server] for _ in range(processes)]

    def share(self, rank: int, round_idx: int) -> None:
        """Do one process's clients of a round and leave their part of the mean."""
        w, optimizer = self.w, torch.optim.SGD(self.params, lr=0.01)
        torch._foreach_zero_(self.means[rank])
        cohort = Uniform().cohort(0, round_idx, range(w.clients), w.cohort, np.ones(w.clients))
        for client in cohort[rank :: self.processes]:
            with torch.no_grad():
                torch._foreach_copy_(self.params, self.server)
            order = torch.randperm(w.samples) + client * w.samples
            for batch in order.split(w.batch):
                optimizer.zero_grad()
                functional.cross_entropy(self.model(self.x[batch]), self.y[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(self.means[rank], [p.detach() for p in self.params], alpha=1 / w.cohort)

    def rounds(self) -> Iterator[None]:
        """Run round after round; the other processes are forked at the first one."""
        context = get_context("fork")
        begin, done = context.Barrier(self.processes), context.Barrier(self.processes)
        for rank in range(1, self.processes):
            context.Process(target=self._other, args=(rank, begin, done), daemon=True).start()
        round_idx = 0
        while True:
            begin.wait()
            self.share(0, round_idx)
            done.wait()
            torch._foreach_copy_(self.server, self.means[0])
            for other in self.means[1:]:
                torch._foreach_add_(self.server, other)
            round_idx += 1
            yield

    def _other(self, rank: int, begin: Any, done: Any) -> None:
        round_idx = 0
        while True:
            begin.wait()
            self.share(rank, round_idx)
            done.wait()
            round_idx += 1


def write_start(w: Workload, folder: Path) -> None:
    """Process that leaves the initial model and the data of our side for the hand-written ones."""
    experiment = build(w, "executor=serial", folder)
    torch.save((experiment.executor.worker.module.model, *examples(experiment, w)), folder / "start.pt")


def contestant(name: str, w: Workload, folder: Path, pipe: Connection) -> None:
    """Process of one side: run a round at every message, answer with its seconds, and end after the last message."""
    if name in BY_HAND:
        torch.set_num_threads(1)
        start = torch.load(folder / "start.pt", weights_only=False)
        rounds = HandWritten(w, *start, BY_HAND[name]).rounds()
    else:
        rounds = our_rounds(build(w, name, folder))
    with suppress(EOFError):
        while True:
            pipe.recv()
            began = time.perf_counter()
            next(rounds)
            pipe.send(time.perf_counter() - began)


def one_round(name: str, pipe: Connection) -> float:
    """Have a contestant run a round; give its seconds."""
    try:
        pipe.send(True)
        return float(pipe.recv())
    except (EOFError, ConnectionError) as error:
        raise SystemExit(f"{name!r} must run its rounds, but its process has ended.") from error


def workload(name: str) -> str:
    """Read its name."""
    if name not in WORKLOADS:
        raise argparse.ArgumentTypeError(
            f"a workload must be one of {', '.join(WORKLOADS)}, but it is {name!r}"
        )
    return name


def compare(w: Workload, names: Sequence[str], folder: Path) -> dict[str, list[float]]:
    """Seconds per round of each contestant, round by round in turn, after one round of warm-up."""
    context = get_context("spawn")
    first = context.Process(target=write_start, args=(w, folder))
    first.start()
    first.join()
    if first.exitcode:
        raise SystemExit(f"The start must be made, but its process has ended with {first.exitcode}.")
    pipes, processes = {}, []
    for name in names:
        pipes[name], far_end = context.Pipe()
        processes.append(context.Process(target=contestant, args=(name, w, folder, far_end)))
        processes[-1].start()
        # Were it open here, a contestant that has ended would be waited for.
        far_end.close()
    times: dict[str, list[float]] = {name: [] for name in names}
    try:
        for round_idx in range(w.rounds + 1):
            for name, pipe in pipes.items():
                took = one_round(name, pipe)
                if round_idx:
                    times[name].append(took)
    finally:
        # At the end of its messages a contestant ends.
        for pipe, process in zip(pipes.values(), processes, strict=True):
            pipe.close()
            process.join()
    return times


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "workloads", nargs="*", type=workload, default=[], metavar="W", help=f"of {', '.join(WORKLOADS)}"
    )
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--ours", action="append", help="overrides of a contestant of ours, several times")
    parser.add_argument("--base", default="by hand, 2 processes", help="the contestant that ratios refer to")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, ratios to: {arguments.base}\n")
    print("| workload | contestant | s/round | ratio: median (min-max of rounds) |")
    print("|---|---|---|---|")
    for key in arguments.workloads or WORKLOADS:
        w = WORKLOADS[key]
        w = replace(w, rounds=arguments.rounds or w.rounds)
        ours = arguments.ours or [w.best]
        names = [*(BY_HAND if arguments.base in BY_HAND else [arguments.base]), *ours]
        with tempfile.TemporaryDirectory() as folder:
            times = compare(w, list(dict.fromkeys(names)), Path(folder))
        for name, seconds in times.items():
            middle, low, high = spread(seconds, times[arguments.base])
            took = f"{statistics.median(seconds):.4f}"
            print(f"| {key} | {name} | {took} | {middle:.3f} ({low:.3f}-{high:.3f}) |", flush=True)


if __name__ == "__main__":
    main()
