"""Tables behind the partitions: which classes a client gets, and how many examples of each. Pure NumPy."""

import math

import numpy as np

from fedfeat.errors import ConfigError

# A Dirichlet draw below the minimum size is repeated this often before it is repaired: at alpha 0.5 and 16
# clients (FedMA) one draw in a few succeeds, at alpha 0.01 and many clients none ever does.
MAX_DRAWS = 100


def class_rows(
    num_classes: int,
    num_clients: int,
    classes_per_client: int,
    rng: np.random.Generator,
    key: str = "partition.classes_per_client",
) -> np.ndarray:
    """Assign s distinct classes to each of K clients, every class floor or ceil of ``K * s / C`` times.

    Random permutations of the classes are laid end to end and cut into rows. A row that straddles two
    permutations could meet a class twice; the repeat is swapped with a later class of the same permutation,
    which always exists because a row is no longer than a permutation.

    Returns:
        Classes of every client, (K, s).
    """
    total = num_clients * classes_per_client
    _check_rows(num_classes, num_clients, classes_per_client, key)
    laid = np.empty(math.ceil(total / num_classes) * num_classes, dtype=np.int64)
    for start in range(0, total, num_classes):
        order = rng.permutation(num_classes)
        filled = start % classes_per_client
        head = classes_per_client - filled if filled else 0
        taken = np.isin(order, laid[start - filled : start])
        repeats = np.flatnonzero(taken[:head])
        spares = head + np.flatnonzero(~taken[head:])[: len(repeats)]
        order[repeats], order[spares] = order[spares], order[repeats]
        laid[start : start + num_classes] = order
    return laid[:total].reshape(num_clients, classes_per_client)


def shard_rows(
    num_classes: int,
    num_clients: int,
    shards_per_client: int,
    rng: np.random.Generator,
    distinct: bool = False,
) -> np.ndarray:
    """Draw the label rows of `shards`: every label ``K * s / C`` times, shuffled (FedRep's public code).

    Args:
        num_classes: Number of classes, C.
        num_clients: Number of clients, K.
        shards_per_client: Shards per client, s.
        rng: Source of randomness.
        distinct: Whether the labels of a row must differ; FedRep lets a client draw the same class twice.

    Returns:
        Label of every shard of every client, (K, s).
    """
    total = num_clients * shards_per_client
    if shards_per_client < 1 or total % num_classes:
        rule = f"make num_clients * shards_per_client a multiple of the {num_classes} classes"
        raise ConfigError.rule("partition.shards_per_client", rule, shards_per_client)
    if distinct:
        return class_rows(num_classes, num_clients, shards_per_client, rng, "partition.shards_per_client")
    rows = np.repeat(np.arange(num_classes), total // num_classes)
    return rng.permutation(rows).reshape(num_clients, shards_per_client)


def dirichlet_counts(
    class_sizes: np.ndarray,
    num_clients: int,
    alpha: float,
    rng: np.random.Generator,
    min_size: int,
    cap: bool,
) -> np.ndarray:
    """Draw class shares from a Dirichlet distribution until every client holds ``min_size``; then repair.

    Args:
        class_sizes: Examples of every class, (C,).
        num_clients: Number of clients, K.
        alpha: See `schemes.Dirichlet`.
        rng: Source of randomness.
        min_size: See `schemes.Dirichlet`.
        cap: Likewise.

    Returns:
        How many examples of class c client k gets, int64 (C, K).
    """
    limit = class_sizes.sum() / num_clients
    for _ in range(MAX_DRAWS):
        counts = np.zeros((len(class_sizes), num_clients), dtype=np.int64)
        sizes = np.zeros(num_clients, dtype=np.int64)
        for label, class_size in enumerate(class_sizes):
            shares = rng.dirichlet(np.full(num_clients, alpha))
            is_open = sizes < limit if cap else np.ones(num_clients, dtype=bool)
            # At tiny alpha all mass can lie on full clients (or underflow); the open ones then share equally.
            shares = shares * is_open if shares @ is_open > 0 else is_open.astype(float)
            counts[label] = cut_sizes(int(class_size), shares)
            sizes += counts[label]
        if sizes.min() >= min_size:
            return counts
    return raise_to_minimum(counts, min_size)


def cut_sizes(size: int, shares: np.ndarray) -> np.ndarray:
    """Cut ``size`` at the floors of the cumulative shares; the last piece takes the remainder."""
    if not size:
        return np.zeros(len(shares), dtype=np.int64)
    cuts = np.floor(size * np.cumsum(shares / shares.sum())).astype(np.int64)[:-1].clip(max=size)
    return np.diff(cuts, prepend=0, append=size)


def raise_to_minimum(counts: np.ndarray, min_size: int) -> np.ndarray:
    """Move examples from the largest client to the smallest until all hold ``min_size``; no randomness.

    What moves is the largest client's commonest class, so that the skew of classes survives. Needs
    ``min_size * K <= N``; then some client is above the minimum while another is below, and every move
    shrinks the gap.

    Args:
        counts: Examples of class c at client k, (C, K).
        min_size: Fewest examples of a client.
    """
    counts = counts.copy()
    sizes = counts.sum(axis=0)
    while (missing := min_size - sizes[poor := int(sizes.argmin())]) > 0:
        rich = int(sizes.argmax())
        label = int(counts[:, rich].argmax())
        moved = min(missing, sizes[rich] - min_size, counts[label, rich])
        counts[label, rich] -= moved
        counts[label, poor] += moved
        sizes[rich] -= moved
        sizes[poor] += moved
    return counts


def _check_rows(num_classes: int, num_clients: int, classes_per_client: int, key: str) -> None:
    if not 1 <= classes_per_client <= num_classes:
        raise ConfigError.rule(key, f"be between 1 and the {num_classes} classes", classes_per_client)
    if num_clients * classes_per_client < num_classes:
        least = math.ceil(num_classes / num_clients)
        rule = f"be at least {least} so that {num_clients} clients hold every class"
        raise ConfigError.rule(key, rule, classes_per_client)
