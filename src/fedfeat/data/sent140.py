"""Sentiment140: tweets of many users, negative or positive, each user a client (LEAF; FedRep, FedHeNN)."""

from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch

from fedfeat.config.conditions import Count, Natural, integer, interval
from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.partition.parts import share_of
from fedfeat.data.sent140_file import find_csv, read_tweets
from fedfeat.data.sent140_tokens import encode, frequent_words, read_glove, tokens_of
from fedfeat.data.subset import Limit, limited
from fedfeat.errors import ConfigError
from fedfeat.seeding import numpy_generator
from fedfeat.types import Vocabulary


def sent140(
    root: str | Path,
    encoding: str = "latin-1",
    sample_fraction: Annotated[float, interval("(0, 1]")] = 0.3,
    min_tweets: Annotated[int, integer(2)] = 50,
    num_users: Count | None = 100,
    train_fraction: Annotated[float, interval("(0, 1)")] = 0.8,
    lowercase: bool = False,
    num_tokens: Count = 25,
    embed: Literal["learned", "glove"] = "learned",
    max_words: Count = 10_000,
    glove: str = "glove.6B.300d.txt",
    seed: Natural = 0,
    num_train: Limit = None,
    num_test: Limit = None,
) -> Dataset:
    """Load the tweets of some users, in the way of LEAF; the column ``user`` numbers them from 0.

    Args:
        root: Folder of the data, see `find_csv`.
        encoding: Of the file; Latin-1 is the original's.
        sample_fraction: Share of all tweets that is looked at, user by user in random order, before
            ``min_tweets`` applies; 0.3 in LEAF's non-IID sample for FedProx and FedRep.
        min_tweets: Fewest tweets of a user in that sample; 50 in FedRep, 30 in FedProx.
        num_users: So many of these users, drawn at random; 100 in FedHeNN. None takes all.
        train_fraction: Share of each user's tweets to train on, rounded down; the others test. 0.8 in LEAF.
        lowercase: Whether capitals count as small letters; LEAF keeps them, though GloVe has none.
        num_tokens: So many first tokens of a tweet are read; 25 in LEAF.
        embed: ``learned``, word vectors that the network learns, or ``glove``, fixed ones.
        max_words: Most words of ``learned``, the most frequent ones of all clients' training tweets.
        glove: Text file of ``glove``, a path or a name below ``root``; 300 numbers a word in LEAF.
        seed: Which users are drawn, and which of their tweets.
        num_train: At most so many training examples, see `subset.limited`.
        num_test: At most so many test examples.
    """
    root = Path(root).expanduser()
    tweets = read_tweets(find_csv(root), encoding)
    sample = sampled(tweets.users, sample_fraction, seed)
    chosen = drawn_users(tweets.users[sample], min_tweets, num_users, seed)
    splits = split_users(tweets.users, sample, chosen, train_fraction, seed)
    texts = [[tokens_of(tweets.texts[row], num_tokens, lowercase) for row in split] for split in splits]
    if embed == "learned":
        ids = frequent_words(texts[0], max_words)
        vocabulary = Vocabulary(len(ids) + 1)
    else:
        ids, vocabulary = read_glove(root / Path(glove).expanduser(), {*chain(*chain(*texts))})
    clients = np.full(tweets.users.max() + 1, -1)
    clients[chosen] = np.arange(len(chosen))
    train, test = (
        Examples(
            encode(words, ids, num_tokens),
            torch.from_numpy(tweets.labels[rows]),
            {"user": clients[tweets.users[rows]]},
        )
        for rows, words in zip(splits, texts, strict=True)
    )
    whole = Dataset("sent140", train, test, ("negative", "positive"), (), (), vocabulary)
    return limited(whole, num_train, num_test)


def sampled(users: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Take users in random order until they have a share of all tweets; the last one is cut to fit (LEAF).

    Args:
        users: User of every tweet, ``(N,)``, here and below.
        fraction: The share.
        seed: Source of the order.

    Returns:
        Indices of the tweets taken.
    """
    rng = numpy_generator(seed, "sent140/sample")
    turn = rng.permutation(users.max() + 1)
    order = np.lexsort((rng.random(len(users)), turn[users]))
    return order[: max(int(share_of(fraction, len(users))), 1)]


def drawn_users(users: np.ndarray, min_tweets: int, num_users: int | None, seed: int) -> np.ndarray:
    """Draw users, see `sent140`, among those with enough tweets; the k-th of them becomes client k."""
    counts = np.bincount(users)
    enough = np.flatnonzero(counts >= min_tweets)
    if not len(enough):
        rule = f"be at most {counts.max()}, the most tweets of a user in the sample"
        raise ConfigError.rule("data.loader.min_tweets", rule, min_tweets)
    if num_users is not None and num_users > len(enough):
        rule = f"be at most {len(enough)}, the users in the sample with {min_tweets} tweets or more"
        raise ConfigError.rule("data.loader.num_users", rule, num_users)
    return numpy_generator(seed, "sent140/users").permutation(enough)[:num_users]


def split_users(
    users: np.ndarray, rows: np.ndarray, chosen: np.ndarray, fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cut the tweets of each user at random; both parts have at least one.

    Args:
        users: See `sampled`.
        rows: The tweets of the sample.
        chosen: The users that take part, each with two tweets or more.
        fraction: Share of the first part, rounded down.
        seed: Source of the cut.

    Returns:
        Indices of the training and of the test tweets, ascending.
    """
    rng = numpy_generator(seed, "sent140/split")
    rows = np.sort(rows[np.isin(users[rows], chosen)])
    first, second = [], []
    for user in chosen:
        own = rng.permutation(rows[users[rows] == user])
        cut = min(max(int(share_of(fraction, len(own))), 1), len(own) - 1)
        first.append(own[:cut])
        second.append(own[cut:])
    return np.sort(np.concatenate(first)), np.sort(np.concatenate(second))
