"""What a server half is given: where it runs, and who is there."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from fedfeat.clients.worker import Worker
from fedfeat.types import Federation, Site, Source


def site_of(worker: Worker, spend: Callable[[float], None]) -> Site:
    """Give what a server half computes with; ``spend`` takes the FLOPs that it says it has spent."""
    data, seed = worker.data, worker.settings.seed

    def examples(source: Source, size: int, round_idx: int) -> tuple[Tensor, Tensor]:
        return data.shared_examples(source, size, seed, round_idx)

    autocast = partial(worker.trainer.autocast, data.device)
    return Site(worker.networks, data.plain, data.device, autocast, spend, examples)


def federation_of(worker: Worker, excluded: frozenset[int] = frozenset()) -> Federation:
    """Give what a server half may know before the first round; ``excluded`` clients take part in none."""
    counts, policies, seed = worker.data.class_counts, worker.module.policies, worker.settings.seed
    return Federation(len(counts), counts.sum(axis=1), counts, policies, worker.networks, seed, excluded)
