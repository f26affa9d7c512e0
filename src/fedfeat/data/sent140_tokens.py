"""From text to token ids: words, vocabularies and GloVe vectors."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedfeat.errors import DataError
from fedfeat.types import Vocabulary

WORD = re.compile(r"[\w']+|[.,!?;]")
"""A token: a run of letters, digits and apostrophes, or one of five marks (LEAF's language utilities)."""

GLOVE_PAGE = "https://nlp.stanford.edu/projects/glove"


def tokens_of(text: str, num_tokens: int, lowercase: bool) -> list[str]:
    """Give the first tokens of a text.

    Args:
        text: The text.
        num_tokens: At most so many.
        lowercase: Whether capitals count as small letters.
    """
    return WORD.findall(text.lower() if lowercase else text)[:num_tokens]


def frequent_words(texts: Iterable[Sequence[str]], max_words: int) -> dict[str, int]:
    """Number the most frequent words from 1 on; equally frequent ones in the order of the alphabet.

    Args:
        texts: Tokens of every text.
        max_words: At most so many words.
    """
    counts = Counter(word for text in texts for word in text)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: place for place, word in enumerate(ranked[:max_words], start=1)}


def read_glove(path: Path, wanted: Collection[str]) -> tuple[dict[str, int], Vocabulary]:
    """Read the vectors of some words from a text file: a word and its numbers a line, with single spaces.

    Frozen vectors of words that no text has would never be read, so they are left in the file.

    Args:
        path: The file.
        wanted: The words to look for.

    Returns:
        Id of each word that was found, from 1 in the file's order, and the vocabulary; row 0 is zero.
    """
    ids: dict[str, int] = {}
    rows: list[np.ndarray] = []
    dim = 0
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                dim = dim or line.count(" ")
                # Most words are not wanted, and parsing their numbers would take most of the time.
                if line[: line.find(" ")] not in wanted:
                    continue
                word, *numbers = line.rstrip().rsplit(" ", dim)
                if word in wanted and word not in ids:
                    rows.append(_vector(numbers, dim, path, number))
                    ids[word] = len(rows)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} must be UTF-8 text of GloVe vectors, but it is not.") from error
    except OSError as error:
        raise DataError(
            f"data.loader.glove must name a readable text file of GloVe vectors, but {path} is not "
            f"({error.strerror}); they come from {GLOVE_PAGE}."
        ) from error
    if not rows:
        raise DataError(f"{path} must have a vector for some word of the data, but it has none.")
    return ids, Vocabulary(len(rows) + 1, torch.from_numpy(np.stack([np.zeros_like(rows[0]), *rows])))


def encode(texts: Sequence[Sequence[str]], ids: dict[str, int], num_tokens: int) -> Tensor:
    """Turn texts into ids, int32 ``(N, num_tokens)``; 0 fills up at the end and stands for unknown words.

    Args:
        texts: Tokens of every text, at most ``num_tokens`` each.
        ids: Id of every known word.
        num_tokens: Length of every row.
    """
    table = np.zeros((len(texts), num_tokens), dtype=np.int32)
    for row, text in zip(table, texts, strict=True):
        row[: len(text)] = [ids.get(word, 0) for word in text]
    return torch.from_numpy(table)


def _vector(numbers: Sequence[str], dim: int, path: Path, line: int) -> np.ndarray:
    try:
        vector = np.array(numbers, dtype=np.float32)
    except ValueError:
        vector = np.array([np.nan], dtype=np.float32)
    if len(vector) != dim or not np.isfinite(vector).all():
        raise DataError(
            f"{path} must have a word and {dim} finite numbers in every line, but line {line} has not."
        )
    return vector
