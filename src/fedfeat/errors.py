"""Errors that a user can act on: one sentence that names key, rule and value."""

import difflib
from collections.abc import Iterable
from pathlib import Path

DIVERGED = "holds values that are not finite"
"""The end of the sentence about a client whose local fit has diverged."""


class UserError(Exception):
    """A refusal caused by the input; its message is one complete sentence."""


class ConfigError(UserError):
    """A configuration that breaks a rule."""

    @classmethod
    def rule(cls, key: str, rule: str, value: object, known: Iterable[str] = ()) -> "ConfigError":
        """Build the sentence ``<key> must <rule>, but it is <value>.``; ``known`` are names that may be meant."""
        return cls(f"{key} must {rule}, but it is {value!r}{did_you_mean(str(value), known)}")

    @classmethod
    def unknown(cls, key: str, known: Iterable[str], hint: str = "") -> "ConfigError":
        """Build the refusal of a key that nothing reads.

        Args:
            key: The key.
            known: The names that may stand in its place.
            hint: Where else the key is known, if it is; instead of a name that may be meant.
        """
        # `hydra` is a section that Hydra puts beside ours.
        names = [name for name in known if name != "hydra" and not name.startswith("_")]
        end = f"; {hint}." if hint else did_you_mean(key.rpartition(".")[2], names)
        return cls(
            f"{key} must be a known key, but there is none of that name; known there: {', '.join(names) or 'none'}{end}"
        )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Give the end of a sentence: the names that are most like a word, if some are.

    Folders and case do not count; the last parts of a dotted name are like it. The word itself is never among them.
    """
    names = [name for name in dict.fromkeys(known) if name != word]
    short = {name: name.rpartition("/")[2].lower() for name in names}
    wanted = word.rpartition("/")[2].lower()
    found = [name for name in names if wanted in (short[name], name.lower())]
    found = found or [name for name in names if name.lower().endswith(f".{wanted}")][:2]
    if not found:
        close = difflib.get_close_matches(wanted, dict.fromkeys(short.values()), n=2)
        found = [next(name for name in names if short[name] == one) for one in close]
    return f"; did you mean {' or '.join(found)}?" if found else "."


class DataError(UserError):
    """Data that is missing, unreadable or does not fit the configuration."""

    @classmethod
    def unwritable(cls, what: str, place: Path, error: OSError) -> "DataError":
        """Build the refusal of a cache in which something cannot be kept."""
        return cls(f"paths.cache must be writable, to keep {what} in {place}, but it is not: {error}.")


class CheckpointError(UserError):
    """A run directory or checkpoint that cannot be continued."""


class ClientError(UserError):
    """A local fit that failed; names client, round, seed and cause."""
