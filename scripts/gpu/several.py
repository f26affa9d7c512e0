"""W4 by hand in several processes that share the device."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from benchmark import Workload
from torch import Tensor
from torch.multiprocessing import get_context
from torch.nn import functional

from fedfeat.models.cnn import pfl_cnn
from gpu.measuring import repeated, setting
from gpu.parts import Case, Options, Row
from gpu.workload import timing_row, workload

COUNTS = (1, 2, 4, 8)


def cases(options: Options) -> Iterator[Case]:
    """Yield each number of processes; those of the largest are started once."""
    counts = COUNTS[: 2 if options.small else None]
    w = workload("W4", options)
    crowd: list[Crowd] = []

    def row(count: int) -> Row:
        crowd.extend([] if crowd else [Crowd(w, counts[-1], options.device)])
        step = partial(setting("cpu").timed, partial(crowd[0].round, count))
        first = step()
        times = repeated(step, 3.0, at_least=2, at_most=2 if options.small else 50)
        return {"first, s": first, **timing_row(w, times)}

    for count in counts:
        yield Case(f"{count} process{'es' * (count > 1)}", partial(row, count))
    for one in crowd:
        one.close()


class Crowd:
    """Processes that train a cohort's clients, and the mean of what they find.

    Args:
        w: The workload.
        size: Processes.
        device: The device that they share.
    """

    def __init__(self, w: Workload, size: int, device: str) -> None:
        torch.manual_seed(0)
        self._weights = _network().state_dict()
        self._means = [{name: torch.zeros_like(t) for name, t in self._weights.items()} for _ in range(size)]
        for tensors in (self._weights, *self._means):
            for tensor in tensors.values():
                tensor.share_memory_()
        context, self._pipes, self._processes = get_context("spawn"), [], []
        for mean in self._means:
            near, far = context.Pipe()
            arguments = (w, device, self._weights, mean, far)
            self._processes.append(context.Process(target=_serve, args=arguments, daemon=True))
            self._processes[-1].start()
            self._pipes.append(near)
        self._cohort = w.cohort

    def round(self, count: int) -> None:
        """Train the cohort in so many of the processes."""
        shares = [self._cohort // count + (rank < self._cohort % count) for rank in range(count)]
        for pipe, clients in zip(self._pipes, shares, strict=False):
            pipe.send(clients)
        for pipe in self._pipes[:count]:
            pipe.recv()
        for name, tensor in self._weights.items():
            torch.sum(torch.stack([mean[name] for mean in self._means[:count]]), 0, out=tensor)

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join()


def _network() -> torch.nn.Module:
    return pfl_cnn((3, 32, 32), 10, input_dropout=0.0, dropout=0.0)


def _serve(w: Workload, device: str, start: dict[str, Tensor], mean: dict[str, Tensor], pipe: Any) -> None:
    torch.set_num_threads(1)
    model = _network().to(device).train()
    params, names = list(model.parameters()), [name for name, _ in model.named_parameters()]
    optimizer = torch.optim.SGD(params, lr=0.1)
    images = torch.randn(w.samples, 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (w.samples,), device=device)
    server = [torch.empty_like(p) for p in params]
    sums = [torch.empty_like(p) for p in params]
    while (clients := pipe.recv()) is not None:
        torch._foreach_copy_(server, [start[name] for name in names])
        torch._foreach_zero_(sums)
        for _ in range(clients):
            with torch.no_grad():
                torch._foreach_copy_(params, server)
            for batch in torch.randperm(w.samples).to(device).split(w.batch):
                optimizer.zero_grad()
                functional.cross_entropy(model(images[batch]), labels[batch]).backward()
                optimizer.step()
            torch._foreach_add_(sums, [p.detach() for p in params], alpha=1 / w.cohort)
        torch._foreach_copy_([mean[name] for name in names], sums)
        pipe.send(time.monotonic())
