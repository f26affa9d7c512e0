"""The file of Sentiment140, read without the names in it."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedfeat.errors import ConfigError, DataError

ORIGINAL = "training.1600000.processed.noemoticon.csv"
"""Name of the training file in its authors' archive."""

PAGE = "http://help.sentiment140.com/for-students"

COLUMNS = ("target", "id", "date", "flag", "user", "text")

LABELS = {"0": 0, "2": 0, "4": 1}
"""Targets negative, neutral and positive; LEAF asks only whether a target is 4."""


class Tweets(NamedTuple):
    """Tweets without the names of those who wrote them.

    Attributes:
        users: Number of the user, from 0 in the order of the file, int64 ``(N,)``.
        labels: 1 for positive, else 0, int64 ``(N,)``.
        texts: What was written, N texts.
    """

    users: np.ndarray
    labels: np.ndarray
    texts: list[str]


def find_csv(root: Path) -> Path:
    """Find the tweets: ``sent140/`` below the root, then the root; the original name, then a single CSV file.

    Args:
        root: Folder of the data.
    """
    for folder in (root / "sent140", root):
        if (folder / ORIGINAL).is_file():
            return folder / ORIGINAL
        found = [path for path in folder.glob("*.csv") if path.is_file()]
        if len(found) == 1:
            return found[0]
    raise DataError(
        f"sent140 must be in data.root as sent140/{ORIGINAL}, {ORIGINAL}, or the only *.csv in either folder, but "
        f"{root} has none of them; {PAGE} offers it (trainingandtestdata.zip)."
    )


def read_tweets(path: Path, encoding: str = "latin-1") -> Tweets:
    """Read the six columns of the original file, which has no header; names become numbers.

    No message tells what a row says: the words are those of real people.

    Args:
        path: The CSV file.
        encoding: See `sent140`.
    """
    try:
        with open(path, encoding=encoding, newline="") as file:
            return _tweets(path, csv.reader(file))
    except LookupError as error:
        raise ConfigError.rule("data.loader.encoding", "name a text encoding", encoding) from error
    except UnicodeError:  # its own message, also as a cause, would show some of the text
        raise DataError(f"{path} must be text in data.loader.encoding={encoding}, but it is not.") from None
    except csv.Error as error:
        raise DataError(f"{path} must be a CSV file, but it is not ({error}).") from error
    except OSError as error:
        raise DataError(f"{path} must be a readable file, but it is not ({error.strerror}).") from error


def _tweets(path: Path, rows: Iterable[list[str]]) -> Tweets:
    numbers: dict[str, int] = {}
    users: list[int] = []
    labels: list[int] = []
    texts: list[str] = []
    for number, row in enumerate(rows, start=1):
        if len(row) != len(COLUMNS):
            names = ", ".join(COLUMNS)
            raise DataError(f"{path} must have the columns {names}, but row {number} has {len(row)} of them.")
        if row[0] not in LABELS:
            raise DataError(f"{path} must have target 0, 2 or 4 in column 1, but row {number} has another.")
        labels.append(LABELS[row[0]])
        users.append(numbers.setdefault(row[4], len(numbers)))
        texts.append(row[5])
    if not texts:
        raise DataError(f"{path} must hold at least one tweet, but it is empty.")
    return Tweets(np.array(users), np.array(labels), texts)
