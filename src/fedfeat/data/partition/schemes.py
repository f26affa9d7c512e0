"""Partition schemes, built by `configs/partition`: values whose `Scheme.split` turns labels into a split."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedfeat.config.conditions import Count, Positive, Share
from fedfeat.data.partition import index_sets
from fedfeat.data.partition.checks import check_column, check_owners, checked_parts
from fedfeat.data.partition.parts import (
    ClassTestParts,
    ClientSplit,
    IndexTestParts,
    Parts,
    Population,
    TestParts,
    class_counts,
    has_overlaps,
    hold_out,
    hold_out_together,
)
from fedfeat.data.partition.tables import shard_rows
from fedfeat.errors import ConfigError
from fedfeat.seeding import numpy_generator


@dataclass(frozen=True, kw_only=True)
class Scheme(ABC):
    """A way to hand the examples of a data set to clients.

    Attributes:
        val_fraction: Share of each client's training examples that is held out for validation; the last example of
            a class stays in training. Examples that several clients see alike are held out by all of them.
        permuted: Whether every client sees the pixels in an order of its own.
        may_overlap: Whether an example may belong to several clients.
    """

    val_fraction: Share = 0.0
    permuted: ClassVar[bool] = False
    may_overlap: ClassVar[bool] = False

    @property
    def merged(self) -> bool:
        """Whether training and test set are cut as one, see `merged.cut_anew`."""
        return False

    @property
    def server_order(self) -> bool:
        """Whether the whole test set has a further order of the pixels, see `permuted.Permuted`."""
        return False

    def split(
        self,
        train_labels: np.ndarray,
        test_labels: np.ndarray,
        num_classes: int,
        num_clients: int,
        seed: int,
        train_columns: Mapping[str, np.ndarray] | None = None,
        test_columns: Mapping[str, np.ndarray] | None = None,
    ) -> ClientSplit:
        """Split a data set among clients.

        A client is tested on all test examples of the classes it holds (before validation examples are taken
        out, so that ``val_fraction`` does not change the test), unless the scheme cuts the test set itself.
        """
        if num_clients < 1:
            raise ConfigError.rule("federation.num_clients", "be at least 1", num_clients)
        population = Population(
            np.asarray(train_labels, dtype=np.int64),
            np.asarray(test_labels, dtype=np.int64),
            num_classes,
            num_clients,
            train_columns or {},
            test_columns or {},
        )
        given = self.assign(population, numpy_generator(seed, "partition"))
        parts, test = checked_parts(type(self).__name__, given, population, self.merged)
        if not self.may_overlap:
            check_owners(parts)
        if test is None:
            held = class_counts(parts, population.train_labels, num_classes) > 0
            test = ClassTestParts(held, population.test_labels)
        # Those of merged schemes count on through the test set.
        labels = np.concatenate([population.train_labels, population.test_labels])
        alike = self.may_overlap and not self.permuted and has_overlaps(parts)
        take = hold_out_together if alike else hold_out
        train, val = take(parts, self.val_fraction, numpy_generator(seed, "validation"), labels)
        return ClientSplit(train, val, test, self.permuted, self.merged, self.server_order)

    @abstractmethod
    def assign(self, population: Population, rng: np.random.Generator) -> tuple[Parts, TestParts | None]:
        """Give the parts of the training set, and of the test set where it is not cut by classes."""


@dataclass(frozen=True, kw_only=True)
class Iid(Scheme):
    """Examples at random, in near-equal parts."""

    def assign(self, population: Population, rng: np.random.Generator) -> tuple[Parts, None]:
        """See `Scheme.assign`."""
        return index_sets.iid(len(population.train_labels), population.num_clients, rng), None


@dataclass(frozen=True, kw_only=True)
class NClasses(Scheme):
    """Exactly ``classes_per_client`` (s) distinct classes per client ("N*C" of Psi-Net and Fed2)."""

    classes_per_client: Count

    def assign(self, population: Population, rng: np.random.Generator) -> tuple[Parts, None]:
        """See `Scheme.assign`."""
        labels, _, num_classes, num_clients, *_ = population
        return index_sets.n_classes(labels, num_classes, num_clients, self.classes_per_client, rng), None


@dataclass(frozen=True, kw_only=True)
class Shards(Scheme):
    """One shard for each of ``shards_per_client`` drawn labels (FedRep, FedHeNN).

    Attributes:
        shards_per_client: Shards, hence the most classes, per client.
        distinct: Whether the labels of one client must differ.
        merged: Whether training and test set are cut as one, and each client's examples then at random into those it
            trains and those it is tested on, in the proportion of the two sets. Else both are cut alike.
    """

    shards_per_client: Count
    distinct: bool = False
    merged: bool = False

    def assign(self, population: Population, rng: np.random.Generator) -> tuple[Parts, IndexTestParts]:
        """See `Scheme.assign`."""
        num_classes, num_clients = population.num_classes, population.num_clients
        rows = shard_rows(num_classes, num_clients, self.shards_per_client, rng, self.distinct)
        if self.merged:
            every = np.concatenate([population.train_labels, population.test_labels])
            own = index_sets.shards(every, rows, rng)
            train, test = hold_out(own, len(population.test_labels) / len(every), rng)
        else:
            train = index_sets.shards(population.train_labels, rows, rng)
            test = index_sets.shards(population.test_labels, rows, rng, allow_empty=True)
        return train, IndexTestParts(test)


def shards(
    *,
    shards_per_client: Count,
    distinct: bool = False,
    split: Literal["native", "merged"] = "native",
    val_fraction: Share = 0.0,
) -> Shards:
    """Build `Shards` with the names of a configuration, in which a scheme's ``split`` is a choice."""
    options = {"distinct": distinct, "merged": split == "merged"}
    return Shards(shards_per_client=shards_per_client, val_fraction=val_fraction, **options)


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Scheme):
    """Class shares from a Dirichlet distribution (FedMA; used by Psi-Net and Fed2).

    Attributes:
        alpha: Concentration; small is skewed.
        min_size: Fewest examples of a client; 10 in FedMA.
        cap: Whether a client that already holds N / K examples gets nothing of the classes still to come (FedMA).
    """

    alpha: Positive
    min_size: Count = 10
    cap: bool = True

    def assign(self, population: Population, rng: np.random.Generator) -> tuple[Parts, None]:
        """See `Scheme.assign`."""
        labels, _, num_classes, num_clients, *_ = population
        skew = (self.alpha, rng, self.min_size, self.cap)
        return index_sets.dirichlet(labels, num_classes, num_clients, *skew), None


@dataclass(frozen=True, kw_only=True)
class QuantitySkew(Scheme):
    """Same mix of classes, different sizes; exactly one of ``alpha`` and ``power`` is given.

    Attributes:
        alpha: Sizes from a symmetric Dirichlet distribution (quantity skew of NIID-Bench, Li et al. 2022).
        power: Sizes proportional to ``rank ** -power`` in random order (a power law, as in FedProx).
        min_size: Fewest examples of a client; 10 in NIID-Bench.
    """

    alpha: Positive | None = None
    power: Positive | None = None
    min_size: Count = 10

    def assign(self, population: Population, rng: np.random.Generator) -> tuple[Parts, None]:
        """See `Scheme.assign`."""
        sizes = (len(population.train_labels), population.num_clients)
        return index_sets.quantity_skew(*sizes, rng, self.alpha, self.power, self.min_size), None


@dataclass(frozen=True, kw_only=True)
class Subsets(Scheme):
    """Client i holds all examples of the classes in list i, train and test (FedFusion); lists may overlap."""

    classes: Sequence[Sequence[int]]
    may_overlap = True

    def __post_init__(self) -> None:
        # A config's lists become plain tuples, so that the scheme is a hashable value.
        object.__setattr__(self, "classes", tuple(tuple(int(c) for c in group) for group in self.classes))

    def assign(self, population: Population, rng: np.random.Generator) -> tuple[Parts, None]:
        """See `Scheme.assign`."""
        if len(self.classes) != population.num_clients:
            rule = f"equal the number of class lists in partition.classes ({len(self.classes)})"
            raise ConfigError.rule("federation.num_clients", rule, population.num_clients)
        return index_sets.subsets(population.train_labels, population.num_classes, self.classes), None


@dataclass(frozen=True, kw_only=True)
class Natural(Scheme):
    """Clients are the values of a column of the data (writers, users); with fewer clients, groups of values.

    The test set is cut by the same column where it shares a value with the training set, else by classes.
    """

    column: str

    def assign(self, population: Population, rng: np.random.Generator) -> tuple[Parts, TestParts | None]:
        """See `Scheme.assign`."""
        if self.column not in population.train_columns:
            known = ", ".join(sorted(population.train_columns))
            rule = f"name a column of the data set ({known or 'none; docs/data.md says how to give it one'})"
            raise ConfigError.rule("partition.column", rule, self.column)
        for columns in (population.train_columns, population.test_columns):
            check_column(self.column, columns.get(self.column))
        num_clients = population.num_clients
        column = population.train_columns[self.column]
        groups = index_sets.natural_groups(column, num_clients, rng)
        train = index_sets.natural(column, groups, num_clients)
        if self.column not in population.test_columns:
            return train, None
        test = index_sets.natural(population.test_columns[self.column], groups, num_clients)
        return train, IndexTestParts(test) if len(test.indices) else None
