"""Values around a partition: what a scheme looks at, test parts, validation shares and the whole split. Pure NumPy."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Parts(NamedTuple):
    """Index sets of all clients as two flat arrays, so that 10,000 clients cost no more than 10.

    Attributes:
        indices: All clients' example indices, one after the other, int64.
        offsets: Client k owns ``indices[offsets[k]:offsets[k + 1]]``; length num_clients + 1.
    """

    indices: np.ndarray
    offsets: np.ndarray

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self.offsets) - 1

    def of(self, client_id: int) -> np.ndarray:
        """Give the example indices of one client (a view)."""
        return self.indices[self.offsets[client_id] : self.offsets[client_id + 1]]


class Population(NamedTuple):
    """What a scheme may look at.

    Attributes:
        train_labels: Class of every training example, (N,).
        test_labels: Class of every test example, (N_test,).
        num_classes: Number of classes, C.
        num_clients: Number of clients, K.
        train_columns: Further columns of the training examples, (N,) each.
        test_columns: Further columns of the test examples, (N_test,) each.
    """

    train_labels: np.ndarray
    test_labels: np.ndarray
    num_classes: int
    num_clients: int
    train_columns: Mapping[str, np.ndarray]
    test_columns: Mapping[str, np.ndarray]


class ClassTestParts(NamedTuple):
    """Every client is tested on all test examples of its classes; costs a (K, C) table, no index lists.

    Attributes:
        mask: Whether client k holds class c, bool (K, C).
        test_labels: Class of every test example, (N_test,).
    """

    mask: np.ndarray
    test_labels: np.ndarray

    def of(self, client_id: int) -> np.ndarray:
        """Give the test indices of one client, made on demand."""
        return np.flatnonzero(self.mask[client_id][self.test_labels])

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Give what the parts are made of, beside the labels."""
        return (self.mask,)

    def sizes(self) -> np.ndarray:
        """Count the test examples of every client, (K,)."""
        return self.mask.astype(np.int64) @ np.bincount(self.test_labels, minlength=self.mask.shape[1])

    def means(self, values: np.ndarray) -> np.ndarray:
        """Average a value per test example, (N_test,), over each part, (K,); NaN where a part is empty."""
        sums = np.bincount(self.test_labels, weights=values, minlength=self.mask.shape[1])
        # A product would carry a NaN of one class into the means of clients that do not hold it.
        return _ratio(np.where(self.mask, sums, 0.0).sum(axis=1), self.sizes())


class IndexTestParts(NamedTuple):
    """Every client has its own list of test examples.

    Attributes:
        parts: The lists.
    """

    parts: Parts

    def of(self, client_id: int) -> np.ndarray:
        """Give the test indices of one client."""
        return self.parts.of(client_id)

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Give what the parts are made of."""
        return tuple(self.parts)

    def sizes(self) -> np.ndarray:
        """Count the test examples of every client, (K,)."""
        return np.diff(self.parts.offsets)

    def means(self, values: np.ndarray) -> np.ndarray:
        """Average a value per test example, (N_test,), over each part, (K,); NaN where a part is empty."""
        weights = np.asarray(values, dtype=np.float64)[self.parts.indices]
        sums = np.bincount(owners_of(self.parts), weights=weights, minlength=self.parts.num_clients)
        return _ratio(sums, self.sizes())


TestParts = ClassTestParts | IndexTestParts


class ClientSplit(NamedTuple):
    """Which examples every client trains, validates and is tested on.

    Attributes:
        train: Training examples of every client.
        val: Validation examples of every client, taken from its training examples; may be empty.
        test: Test examples of every client.
        permuted: Whether every client sees the pixels in an order of its own.
        merged: Whether all indices count through the training set and on through the test set, see `merged.cut_anew`.
        server_order: Whether the whole test set is seen in a further order of the pixels, that no client has.
    """

    train: Parts
    val: Parts
    test: TestParts
    permuted: bool = False
    merged: bool = False
    server_order: bool = False


def owners_of(parts: Parts) -> np.ndarray:
    """Give the client that holds each entry of ``parts.indices``."""
    return np.repeat(np.arange(parts.num_clients), np.diff(parts.offsets))


def class_counts(parts: Parts, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Count the examples of every class at every client, int64 (K, C)."""
    cells = owners_of(parts) * num_classes + labels[parts.indices]
    table = np.bincount(cells, minlength=parts.num_clients * num_classes)
    return table.reshape(parts.num_clients, num_classes)


def share_of(fraction: float, sizes: Any) -> Any:
    """Round a share of one or several sizes down to whole numbers, int64.

    The small term keeps .29 * 100 at 29 although .29 * 100 is 28.999... in binary.
    """
    return np.floor(fraction * np.asarray(sizes) + 1e-9).astype(np.int64)


def hold_out(
    parts: Parts, fraction: float, rng: np.random.Generator, labels: np.ndarray | None = None
) -> tuple[Parts, Parts]:
    """Take a random share of every client's examples; at least one is left to train on.

    Args:
        parts: The examples of every client.
        fraction: The share.
        rng: Draws the examples.
        labels: Class of every example, of which each client then keeps at least one of every class that it holds;
            None looks at no classes.

    Returns:
        What is left and what was taken; the share is rounded down.
    """
    sizes = np.diff(parts.offsets)
    taken = np.minimum(share_of(fraction, sizes), np.maximum(sizes - 1, 0))
    keys = rng.random(len(parts.indices))
    order = np.lexsort((keys, owners_of(parts)))
    rank = np.arange(len(order)) - np.repeat(parts.offsets[:-1], sizes)
    is_val = np.empty(len(order), dtype=bool)
    is_val[order] = rank < np.repeat(taken, sizes)
    if labels is not None:
        # Without it the client could not learn a class that it is tested on.
        is_val[_last_of_cells(_cells_of(parts, labels)[order], order)] = False
        taken = np.bincount(owners_of(parts)[is_val], minlength=parts.num_clients)
    return parts_of(parts.indices[~is_val], sizes - taken), parts_of(parts.indices[is_val], taken)


def has_overlaps(parts: Parts) -> bool:
    """Whether an example belongs to several clients, or to one twice."""
    return bool((np.bincount(parts.indices) > 1).any())


def hold_out_together(
    parts: Parts, fraction: float, rng: np.random.Generator, labels: np.ndarray
) -> tuple[Parts, Parts]:
    """As `hold_out`, but a share of all examples, each by everyone who has it: what one validates on, nobody trains."""
    _, taken = hold_out(single_part(np.unique(parts.indices)), fraction, rng, labels)
    is_val, cells = np.isin(parts.indices, taken.indices), _cells_of(parts, labels)
    lost = np.flatnonzero(~np.isin(cells, cells[~is_val]))
    # A class of which a client would have none left to train on gets its last example back, from everyone.
    back = _last_of_cells(cells[lost], lost)
    is_val &= ~np.isin(parts.indices, parts.indices[back])
    sizes = np.bincount(owners_of(parts)[is_val], minlength=parts.num_clients)
    return parts_of(parts.indices[~is_val], np.diff(parts.offsets) - sizes), parts_of(
        parts.indices[is_val], sizes
    )


def _cells_of(parts: Parts, labels: np.ndarray) -> np.ndarray:
    """Number the pair of client and class of each entry of ``parts.indices``."""
    return owners_of(parts) * (int(labels.max(initial=0)) + 1) + labels[parts.indices]


def _last_of_cells(cells: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Give for each cell the place that comes last, (cells,)."""
    _, first = np.unique(cells[::-1], return_index=True)
    return places[::-1][first]


def single_part(indices: np.ndarray) -> Parts:
    """Give everything to one client."""
    return Parts(indices, np.array([0, len(indices)]))


def first_parts(parts: Parts, count: int) -> Parts:
    """Give the parts of the first ``count`` clients."""
    offsets = parts.offsets[: count + 1]
    return Parts(parts.indices[: offsets[-1]], offsets)


def first_tests(test: TestParts, count: int) -> TestParts:
    """Give the test parts of the first ``count`` clients."""
    if isinstance(test, ClassTestParts):
        return test._replace(mask=test.mask[:count])
    return IndexTestParts(first_parts(test.parts, count))


def parts_of(indices: np.ndarray, sizes: np.ndarray) -> Parts:
    """Cut indices into parts of given sizes, (K,)."""
    return Parts(indices, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def _ratio(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.where(sizes > 0, sums / np.maximum(sizes, 1), np.nan)
