"""Public examples, which servers may share: another data set, or a part of the training set that nobody holds."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedfeat.data.partition.parts import share_of
from fedfeat.errors import ConfigError, DataError
from fedfeat.seeding import numpy_generator

if TYPE_CHECKING:
    from fedfeat.data.examples import Dataset, Examples


def with_public(
    dataset: "Dataset", public: "Dataset | None", share: float | None, seed: int
) -> "tuple[Dataset, Dataset | None]":
    """Give the data set to split, and the public one: what is given, else a share of the first, else none.

    Runs that were stored before there was such a share have none.
    """
    return set_aside(dataset, share, seed) if share and public is None else (dataset, public)


def set_aside(dataset: "Dataset", share: float, seed: int) -> tuple["Dataset", "Dataset"]:
    """Take a random share of every class out of a training set, before it is split among clients.

    Args:
        dataset: The data set.
        share: The share, rounded down in every class.
        seed: The experiment's seed.

    Returns:
        The data set without these examples, and one of these alone; channel moments and test set stay.

    Raises:
        DataError: No class has so many examples that one is taken.
    """
    labels = dataset.train.labels.cpu().numpy()
    taken = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        order = numpy_generator(seed, "set aside", int(label)).permutation(np.flatnonzero(labels == label))
        taken[order[: share_of(share, len(order))]] = True
    if not taken.any():
        raise DataError(
            f"algorithm.public_share must be a share of at least one example of a class of {dataset.name}, "
            f"but it is {share}."
        )
    left, aside = (dataset.train.rows(np.flatnonzero(mask)) for mask in (~taken, taken))
    return replace(dataset, train=left), replace(dataset, train=aside)


def public_examples(public: "Dataset", dataset: "Dataset") -> "Examples":
    """Give the training examples of a public data set, without those whose inputs a run is tested on.

    Args:
        public: The data set.
        dataset: That of the run.

    Raises:
        ConfigError: No network of the run reads its inputs, or all of them are test inputs of the run.
    """
    # A share of the run's own data has the run's words.
    if public.vocabulary is not dataset.vocabulary:
        rule = "be no text, whose words have other ids in each data set (algorithm.public_share takes the run's own)"
        raise ConfigError.rule("data@public", rule, public.name)
    shape, dtype = dataset.input_shape, dataset.train.inputs.dtype
    if public.input_shape != shape:
        rule = f"have inputs of the shape {shape} of {dataset.name}"
        raise ConfigError.rule("data@public", rule, public.input_shape)
    if public.train.inputs.dtype != dtype:
        rule = f"have inputs of the type {_name(dtype)} of {dataset.name}"
        raise ConfigError.rule("data@public", rule, _name(public.train.inputs.dtype))
    tested = set(_rows(dataset.test))
    kept = np.array([row not in tested for row in _rows(public.train)], dtype=bool)
    if not kept.any():
        rule = f"have inputs that are no test inputs of {dataset.name}"
        raise ConfigError.rule("data@public", rule, public.name)
    return public.train if kept.all() else public.train.rows(np.flatnonzero(kept))


def _rows(examples: "Examples") -> list[bytes]:
    """Give every input as its bytes."""
    return [row.tobytes() for row in examples.inputs.cpu().numpy()]


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
