"""The command lines of all commands: folders and output are called the same, and a mistake is one sentence."""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import pairwise
from pathlib import Path
from textwrap import TextWrapper
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser

from fedfeat.config.conditions import Condition, interval
from fedfeat.config.explain import as_user_error, explain, of_system
from fedfeat.errors import ConfigError, did_you_mean

FOLDERS = "run directories, or folders of them"
_OPTION = r"(?<![\w-])--[a-z][\w-]*"
# argparse names the rule, but not in our words, and prints the usage, of many lines, before it.
_SAID = (
    (r"argument (\S+): (must .*)", r"\1 \2."),
    (r"argument (\S+): invalid int value: (.*)", r"\1 must be an integer, but it is \2."),
    (r"argument (\S+): invalid float value: (.*)", r"\1 must be a number, but it is \2."),
    (r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", r"\1 must be one of \3, but it is \2."),
    (r"argument (\S+): expected (.*)", r"\1 must have \2, but it has not."),
    (r"the following arguments are required: (.*)", r"\1 must be given, but nothing is."),
)


@contextmanager
def wrapped_help(words: Sequence[str]) -> Iterator[None]:
    """Break long lines of Hydra's help between words, which a terminal does wherever its width ends."""
    if not {"--help", "-h"} & {*words} or not sys.stdout.isatty():
        yield
        return
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            yield
    finally:
        breaks = TextWrapper(
            shutil.get_terminal_size().columns,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in said.getvalue().splitlines():
            print(line if len(line) <= breaks.width else breaks.fill(line))


class Parser(argparse.ArgumentParser):
    """Reads a command line.

    Args:
        command: What the user has typed.
        documentation: Of the module; its first paragraph is shown.
    """

    def __init__(self, command: str, documentation: str | None) -> None:
        first = (documentation or "").split("\n\n")[0]
        super().__init__(command, description=" ".join(first.split()))

    def read(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Read the words; options may stand between folders."""
        found, unknown = self.parse_known_intermixed_args(arguments)
        if unknown:
            self.error(str(unknown_word(unknown[0], self.format_usage())))
        return found

    def error(self, message: str) -> NoReturn:
        """End with one sentence; argparse's hook."""
        for pattern, words in _SAID:
            if re.fullmatch(pattern, message):
                message = re.sub(pattern, words, message)
                break
        self.exit(2, f"{self.prog}: {message}\n")

    def add_folders(self, said: str = FOLDERS, at_least: int = 1) -> None:
        """Add the folders of runs, the words that are no options."""
        number = "+" if at_least else "*"
        self.add_argument("folders", nargs=number, type=_there, metavar="DIR", help=said)

    def add_out(self, default: Path | None, said: str) -> None:
        """Add ``--out``: where output goes, and what that is if it is not given."""
        self.add_argument(
            "--out", type=_free, default=default, metavar="DIR", help=f"where to write ({said})"
        )

    def add_with(self) -> None:
        """Add ``--with``, as ``extra``: overrides that `evidence.stored.check_neutral` is to accept."""
        said = "an override that changes no number; may be given again"
        self.add_argument("--with", dest="extra", action="append", default=[], metavar="KEY=VALUE", help=said)

    def add_looks(self, default: float, said: str) -> None:
        """Add ``--every``: the seconds between two looks at runs."""
        wait = number(interval("(0, inf)"))
        self.add_argument(
            "--every", type=wait, default=default, metavar="SECONDS", help=f"{said} (%(default)g)"
        )


def _there(word: str) -> Path:
    """Read a folder that has to exist, for the type of an argument."""
    path = Path(word)
    with _askable(word):
        if path.is_dir():
            return path
        if path.is_symlink():
            raise argparse.ArgumentTypeError(f"must be a folder, but {word} is a link to nowhere")
    raise argparse.ArgumentTypeError(f"must be a folder, but it is {word!r}")


def _free(word: str) -> Path:
    """Read a folder that exists or can, for the type of an option."""
    path = Path(word)
    with _askable(word):
        if any(one.exists() and not one.is_dir() for one in (path, *path.parents)):
            raise argparse.ArgumentTypeError(f"must be a folder, but it is {word!r}")
    return path


@contextmanager
def _askable(word: str) -> Iterator[None]:
    """Refuse a path of which the system does not say what is there, as it is too long or behind a closed folder."""
    try:
        yield
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"must be a folder, but of {word!r} the system says: {error.strerror}"
        ) from error


def number(rule: Condition) -> Callable[[str], Any]:
    """Read a number that keeps a rule, for the type of an option."""

    def read(text: str) -> Any:
        for kind in (int, float):
            try:
                value = kind(text)
            except ValueError:
                continue
            if rule.holds(value):
                return value
        raise argparse.ArgumentTypeError(f"must {rule.text}, but it is {text!r}")

    return read


def check_options(arguments: Sequence[str]) -> None:
    """Refuse an option that Hydra does not know, which would print its usage.

    Raises:
        ConfigError: Names the option, and those that may be meant.
    """
    usage = get_args_parser().format_usage()
    known = re.findall(_OPTION, usage)
    for word in arguments:
        name = word.partition("=")[0]
        # Hydra takes the beginning of an option's name for it.
        if name.startswith("--") and not any(option.startswith(name) for option in known):
            raise unknown_word(word, usage)


def options_first(arguments: Sequence[str]) -> list[str]:
    """Put what sets something behind all options: Hydra takes overrides on one side of ``--multirun`` only."""
    actions = [action for action in get_args_parser()._actions if action.nargs is None]
    takes_value = [name for action in actions for name in action.option_strings]
    options, overrides = list[str](), list[str]()
    for before, word in pairwise(["", *arguments]):
        is_value = before.startswith("-") and any(name.startswith(before) for name in takes_value)
        sets = not is_value and not word.startswith("-") and ("=" in word or word[:1] == "~")
        (overrides if sets else options).append(word)
    return [*options, *overrides]


def unknown_word(word: str, usage: str) -> ConfigError:
    """Refuse a word that a command does not know, with the options of its usage that may be meant."""
    name, kind = word.partition("=")[0], "option" if word.startswith("-") else "argument"
    known = dict.fromkeys(re.findall(_OPTION, usage))
    end = did_you_mean(name, known) if kind == "option" else "."
    return ConfigError(f"{name} must be a known {kind}, but there is none of that name{end}")


@contextmanager
def one_sentence(command: str) -> Iterator[None]:
    """End the command with exit code 2 and one sentence on stderr where a refusal comes up."""
    # Hydra otherwise prints its own error pages.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    except Exception as error:
        if as_user_error(error) is None and not of_system(error):
            raise
        print(f"{command}: {explain(error)}", file=sys.stderr)
        sys.exit(2)
