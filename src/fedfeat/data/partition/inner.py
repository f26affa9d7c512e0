"""What schemes share that are around another, by which clients hold their examples."""

import numpy as np

from fedfeat.data.partition.checks import checked_parts
from fedfeat.data.partition.parts import Parts, Population, TestParts
from fedfeat.data.partition.schemes import Scheme
from fedfeat.errors import ConfigError, UserError


def refuse_validation(inner: Scheme) -> None:
    """Refuse an inner scheme with a share of validation examples of its own.

    Raises:
        ConfigError: It has one.
    """
    if inner.val_fraction:
        rule = "be 0 beside partition.val_fraction, which says the same of all"
        raise ConfigError.rule("partition.inner.val_fraction", rule, inner.val_fraction)


def assign_inner(
    inner: Scheme, population: Population, rng: np.random.Generator
) -> tuple[Parts, TestParts | None]:
    """Assign by the inner scheme, whose refusals name its keys by where they stand.

    Raises:
        UserError: As `Scheme.assign`.
    """
    try:
        return checked_parts(type(inner).__name__, inner.assign(population, rng), population, inner.merged)
    except UserError as error:
        raise type(error)(str(error).replace("partition.", "partition.inner.")) from error
