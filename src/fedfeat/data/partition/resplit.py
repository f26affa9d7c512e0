"""Clients that cut all they hold into training and test examples of their own, whoever holds what (PFLlib)."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedfeat.config.conditions import interval
from fedfeat.data.partition.inner import assign_inner, refuse_validation
from fedfeat.data.partition.parts import IndexTestParts, Parts, Population, hold_out
from fedfeat.data.partition.schemes import Iid, Scheme
from fedfeat.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Resplit(Scheme):
    """Training and test set are cut as one, and then each client's part at random into those of its own.

    Attributes:
        inner: Who holds which examples.
        test_share: Share of each client's examples that tests it.
    """

    inner: Scheme = Iid()  # noqa: RUF009 - a value
    test_share: Annotated[float, interval("(0, 1)")] = 0.25

    def __post_init__(self) -> None:
        if self.inner.permuted or self.inner.merged or self.inner.may_overlap:
            rule = "be who holds which examples, each one client, of a training set"
            raise ConfigError.rule("partition.inner", rule, type(self.inner).__name__)
        refuse_validation(self.inner)

    @property
    def merged(self) -> bool:
        """See `Scheme.merged`."""
        return True

    def assign(self, population: Population, rng: np.random.Generator) -> tuple[Parts, IndexTestParts]:
        """See `Scheme.assign`."""
        common = population.train_columns.keys() & population.test_columns.keys()
        pool = population._replace(
            train_labels=np.concatenate([population.train_labels, population.test_labels]),
            test_labels=population.test_labels[:0],
            train_columns={
                name: np.concatenate([population.train_columns[name], population.test_columns[name]])
                for name in sorted(common)
            },
            test_columns={},
        )
        own, _ = assign_inner(self.inner, pool, rng)
        train, test = hold_out(own, self.test_share, rng)
        return train, IndexTestParts(test)
