"""Partitions: labels in, one index set per client out. Pure NumPy; every function always ends.

A partition of labelled data is settled by a table ``counts`` of shape (C, K): how many examples of class c
client k gets. The functions here draw such a table and deal the shuffled examples of each class out by it.
Except for `subsets`, every example goes to exactly one client. A client's indices are ascending: the order of
training is the business of the batches.

``labels`` are the classes of all examples, (N,), ``num_classes`` is C, ``num_clients`` K, and ``rng`` the source of
randomness; the other arguments are those of the scheme of the same name in `schemes`.
"""

from collections.abc import Sequence

import numpy as np

from fedfeat.data.partition.parts import Parts, parts_of
from fedfeat.data.partition.tables import class_rows, cut_sizes, dirichlet_counts, raise_to_minimum
from fedfeat.errors import ConfigError, DataError


def iid(num_examples: int, num_clients: int, rng: np.random.Generator) -> Parts:
    """Deal a random permutation of all examples out in near-equal pieces."""
    check_clients(num_examples, num_clients)
    owners = np.arange(num_examples) * num_clients // num_examples
    return parts_by_owner(rng.permutation(owners), num_clients)


def n_classes(
    labels: np.ndarray, num_classes: int, num_clients: int, classes_per_client: int, rng: np.random.Generator
) -> Parts:
    """Give every client exactly s distinct classes, and every class to equally many clients ("N*C" of Fed2).

    A class is held by ``K * s / C`` clients, rounded down or up where that is no integer, and is cut into
    near-equal pieces; what does not divide goes to the smallest holders. ``s = C`` is a stratified IID split.
    """
    rows = class_rows(num_classes, num_clients, classes_per_client, rng)
    held = np.zeros((num_classes, num_clients), dtype=bool)
    held[rows, np.arange(num_clients)[:, None]] = True
    available = np.bincount(labels, minlength=num_classes)
    check_pieces(available, held.sum(axis=1), "partition.classes_per_client")
    counts = np.zeros((num_classes, num_clients), dtype=np.int64)
    for label, mask in enumerate(held):
        holders = np.flatnonzero(mask)
        base, extra = divmod(available[label], len(holders))
        smallest = np.argsort(counts.sum(axis=0)[holders], kind="stable")[:extra]
        counts[label, holders] = base
        counts[label, holders[smallest]] += 1
    return deal(labels, counts, rng)


def shards(
    labels: np.ndarray, rows: np.ndarray, rng: np.random.Generator, allow_empty: bool = False
) -> Parts:
    """Cut each class into equal shards and give every client one shard for each label in its row (FedRep).

    The shards of a class are runs of examples in data set order; leftovers go one each to the first shards.
    The same rows cut train and test, so that a client is tested on the classes it is trained on.

    Args:
        labels: See the module.
        rows: Label of every shard of every client, (K, s), from `tables.shard_rows`.
        rng: Likewise; which client gets which shard of a class.
        allow_empty: Whether a class may have fewer examples than shards (small test sets).
    """
    num_classes = max(int(rows.max()), int(labels.max(initial=0))) + 1
    pieces = np.bincount(rows.ravel(), minlength=num_classes)
    if not allow_empty:
        check_pieces(np.bincount(labels, minlength=num_classes), pieces, "partition.shards_per_client")
    owners = np.full(len(labels), -1, dtype=np.int64)
    for label in np.flatnonzero(pieces):
        members = np.flatnonzero(labels == label)
        base, extra = divmod(len(members), pieces[label])
        shard = np.concatenate([np.repeat(np.arange(pieces[label]), base), np.arange(extra)])
        holders = np.nonzero(rows == label)[0]
        owners[members] = rng.permutation(holders)[shard]
    return parts_by_owner(owners, len(rows))


def dirichlet(
    labels: np.ndarray,
    num_classes: int,
    num_clients: int,
    alpha: float,
    rng: np.random.Generator,
    min_size: int = 10,
    cap: bool = True,
) -> Parts:
    """Draw each class's shares from a symmetric Dirichlet distribution, as the public code of FedMA does.

    The draw is repeated until every client holds ``min_size`` examples; after `MAX_DRAWS` the last one is
    repaired by `tables.raise_to_minimum`, so that the function ends for every alpha.
    """
    _check_sizes(len(labels), num_clients, min_size)
    class_sizes = np.bincount(labels, minlength=num_classes)
    counts = dirichlet_counts(class_sizes, num_clients, alpha, rng, min_size, cap)
    return deal(labels, counts, rng)


def quantity_skew(
    num_examples: int,
    num_clients: int,
    rng: np.random.Generator,
    alpha: float | None = None,
    power: float | None = None,
    min_size: int = 10,
) -> Parts:
    """Give every client the same mix of classes but sizes that differ."""
    if (alpha is None) == (power is None):
        raise ConfigError.rule("partition.alpha", "be null exactly when partition.power is given", alpha)
    _check_sizes(num_examples, num_clients, min_size)
    if power is None:
        assert alpha is not None
        counts = dirichlet_counts(np.array([num_examples]), num_clients, alpha, rng, min_size, cap=False)
    else:
        shares = rng.permutation(np.arange(1.0, num_clients + 1) ** -power)
        counts = raise_to_minimum(cut_sizes(num_examples, shares)[None], min_size)
    return deal(np.zeros(num_examples, dtype=np.int64), counts, rng)


def subsets(labels: np.ndarray, num_classes: int, class_lists: Sequence[Sequence[int]]) -> Parts:
    """Give client i all examples whose class is in list i, as the public code of FedFusion does.

    Lists may overlap (a shared example is then held by several clients) and need not cover all classes.
    """
    parts = []
    for client_id, classes in enumerate(class_lists):
        if not all(0 <= label < num_classes for label in classes):
            rule = f"hold class numbers below {num_classes}"
            raise ConfigError.rule("partition.classes", rule, list(classes))
        parts.append(np.flatnonzero(np.isin(labels, list(classes))))
        if not len(parts[-1]):
            raise DataError(
                f"partition.classes must give client {client_id} an example, but it is {list(classes)}."
            )
    return parts_of(np.concatenate(parts).astype(np.int64), np.array([len(own) for own in parts]))


def natural_groups(column: np.ndarray, num_clients: int, rng: np.random.Generator) -> dict[object, int]:
    """Map every value of a column to a client.

    With as many clients as values, client k is the k-th value in sorted order; with fewer, the values are
    dealt out at random in near-equal groups, so that no example is lost.
    """
    values = np.unique(column)
    if not 1 <= num_clients <= len(values):
        rule = f"be between 1 and the {len(values)} values of the natural column"
        raise ConfigError.rule("federation.num_clients", rule, num_clients)
    order = np.arange(len(values)) if num_clients == len(values) else rng.permutation(len(values))
    clients = np.arange(len(values)) * num_clients // len(values)
    return dict(zip(values[order].tolist(), clients.tolist(), strict=True))


def natural(column: np.ndarray, groups: dict[object, int], num_clients: int) -> Parts:
    """Give every example to the client of its value; examples of unknown values belong to nobody."""
    values, inverse = np.unique(column, return_inverse=True)
    owner_of = np.array([groups.get(value, -1) for value in values.tolist()], dtype=np.int64)
    return parts_by_owner(owner_of[inverse], num_clients)


def parts_by_owner(owners: np.ndarray, num_clients: int) -> Parts:
    """Turn the owner of every example, (N,), into index sets; owner -1 means nobody."""
    indices = np.argsort(owners, kind="stable")
    sizes = np.bincount(owners[owners >= 0], minlength=num_clients)
    return parts_of(indices[len(owners) - sizes.sum() :].astype(np.int64), sizes)


def deal(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Parts:
    """Deal the shuffled examples of each class out by counts, (C, K), whose rows sum to class sizes."""
    num_clients = counts.shape[1]
    owners = np.empty(len(labels), dtype=np.int64)
    for label, row in enumerate(counts):
        members = np.flatnonzero(labels == label)
        owners[members] = rng.permutation(np.repeat(np.arange(num_clients), row))
    return parts_by_owner(owners, num_clients)


def check_clients(num_examples: int, num_clients: int) -> None:
    """Refuse more clients than examples, of which everyone gets one at least."""
    if not 1 <= num_clients <= num_examples:
        rule = f"be between 1 and the {num_examples} training examples"
        raise ConfigError.rule("federation.num_clients", rule, num_clients)


def check_pieces(available: np.ndarray, pieces: np.ndarray, key: str) -> None:
    """Refuse to cut a class, of which so many examples are there (C,), into more pieces (C,) than that."""
    short = np.flatnonzero(available < pieces)
    if len(short):
        label = int(short[0])
        raise DataError(
            f"{key} must not cut a class into more pieces than it has examples, "
            f"but class number {label} has {available[label]} for {pieces[label]} pieces; "
            f"fewer clients (federation.num_clients) or a smaller {key} need fewer."
        )


def _check_sizes(num_examples: int, num_clients: int, min_size: int) -> None:
    check_clients(num_examples, num_clients)
    most = num_examples // num_clients
    if not 1 <= min_size <= most:
        rule = f"be between 1 and {most} ({num_examples} examples for {num_clients} clients)"
        raise ConfigError.rule("partition.min_size", rule, min_size)
