"""Schemes of the benchmarks that differ from `schemes` in who gets which labels: NIID-Bench, PFLlib, FedDyn."""

import math
from dataclasses import dataclass

import numpy as np

from fedfeat.config.conditions import Count, Positive
from fedfeat.data.partition.index_sets import check_clients, check_pieces, deal
from fedfeat.data.partition.parts import Parts, Population
from fedfeat.data.partition.schemes import Scheme
from fedfeat.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FixedLabels(Scheme):
    """Every client holds ``labels_per_client`` labels, of which one is dealt and the others are drawn (NIID-Bench).

    Client i holds label i mod C. The examples of a label are cut into near-equal pieces for its holders, who are not
    equally many, so that sizes differ.
    """

    labels_per_client: Count

    def assign(self, population: Population, rng: np.random.Generator) -> tuple[Parts, None]:
        """See `Scheme.assign`."""
        labels, _, num_classes, num_clients, *_ = population
        if self.labels_per_client > num_classes:
            rule = f"be between 1 and the {num_classes} classes"
            raise ConfigError.rule("partition.labels_per_client", rule, self.labels_per_client)
        if num_clients < num_classes:
            rule = f"be at least the number of classes ({num_classes}), which are dealt one to each client"
            raise ConfigError.rule("federation.num_clients", rule, num_clients)
        held = np.zeros((num_classes, num_clients), dtype=bool)
        for client_id in range(num_clients):
            dealt = client_id % num_classes
            others = np.delete(np.arange(num_classes), dealt)
            held[dealt, client_id] = True
            held[rng.choice(others, self.labels_per_client - 1, replace=False), client_id] = True
        available = np.bincount(labels, minlength=num_classes)
        check_pieces(available, held.sum(axis=1), "partition.labels_per_client")
        counts = [cut_evenly(size, mask) for size, mask in zip(available, held, strict=True)]
        return deal(labels, np.stack(counts), rng), None


@dataclass(frozen=True, kw_only=True)
class Pathological(Scheme):
    """Clients take ``classes_per_client`` (s) classes in their order, in pieces of unequal sizes (PFLlib).

    A class goes to the first ``ceil(K * s / C)`` clients that hold fewer than s, so that groups of clients hold the
    same classes. All pieces but the last are uniform between a tenth of and a whole equal piece.
    """

    classes_per_client: Count

    def assign(self, population: Population, rng: np.random.Generator) -> tuple[Parts, None]:
        """See `Scheme.assign`."""
        labels, _, num_classes, num_clients, *_ = population
        num_held, key = self.classes_per_client, "partition.classes_per_client"
        if num_held > num_classes:
            raise ConfigError.rule(key, f"be between 1 and the {num_classes} classes", num_held)
        num_holders = math.ceil(num_clients * num_held / num_classes)
        available = np.bincount(labels, minlength=num_classes)
        check_pieces(available, np.full(num_classes, num_holders), key)
        counts = np.zeros((num_classes, num_clients), dtype=np.int64)
        for label, size in enumerate(available):
            holders = np.flatnonzero((counts > 0).sum(axis=0) < num_held)[:num_holders]
            if not len(holders):
                rule = f"give every one of the {num_classes} classes to some of the {num_clients} clients"
                raise ConfigError.rule(key, rule, num_held)
            counts[label, holders] = unequal_pieces(int(size), len(holders), rng)
        return deal(labels, counts, rng), None


@dataclass(frozen=True, kw_only=True)
class ClientDirichlet(Scheme):
    """Equal sizes, and at each client a mix of classes from Dir(``alpha``) (Hsu et al. 2019, FedDyn).

    Clients draw one after another in random order, each all of its examples; of a class that has run out nothing is
    drawn any more, so the last have what is left. FedDyn's code draws example by example, each for a random client.
    """

    alpha: Positive

    def assign(self, population: Population, rng: np.random.Generator) -> tuple[Parts, None]:
        """See `Scheme.assign`."""
        labels, _, num_classes, num_clients, *_ = population
        check_clients(len(labels), num_clients)
        available = np.bincount(labels, minlength=num_classes)
        sizes = cut_evenly(len(labels), np.ones(num_clients, dtype=bool))
        counts = np.zeros((num_classes, num_clients), dtype=np.int64)
        for client_id in rng.permutation(num_clients):
            shares = rng.dirichlet(np.full(num_classes, self.alpha))
            counts[:, client_id] = drawn = drawn_counts(available, shares, int(sizes[client_id]), rng)
            available = available - drawn
        return deal(labels, counts, rng), None


def cut_evenly(size: int, mask: np.ndarray) -> np.ndarray:
    """Cut so many examples evenly among those that the mask, (K,), has; the first get one more each."""
    base, extra = divmod(int(size), int(mask.sum()))
    return np.where(mask, base + (np.cumsum(mask) <= extra), 0)


def unequal_pieces(size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Cut so many examples into pieces of at least one, (count,), of which the last is what the others leave."""
    equal = size // count
    if count == 1 or equal < 2:
        return np.diff(np.arange(count + 1) * size // count)  # floors of shares would leave some with nothing
    pieces = rng.integers(max(equal // 10, 1), equal, count - 1)
    return np.append(pieces, size - pieces.sum())


def drawn_counts(
    available: np.ndarray, shares: np.ndarray, size: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw so many examples by class shares, (C,), from what is there, (C,); every draw takes at least one."""
    counts = np.zeros_like(available)
    while (left := size - counts.sum()) > 0:
        rest = available - counts
        weights = np.where(rest > 0, shares, 0.0)
        # At tiny alpha all mass can lie on classes that have run out; then the others are drawn as they are left.
        weights = weights if weights.sum() > 0 else rest.astype(float)
        counts += np.minimum(rng.multinomial(left, weights / weights.sum()), rest)
    return counts
