"""The command lines and code blocks of every page, for the tests that read and run them."""

import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What a test of its own does word by word: docs/extending.md in a new environment, with a package of its own.
LITERAL = {"docs/extending.md": "tests/system/test_outside.py"}
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ("bash", "sh", "console")
OURS = r"(?:uv run |uv sync |make |(?:python )?scripts/\w+\.py )"
INLINE = re.compile(rf"(?<!`)`({OURS}[^`]+)`(?!`)")
MORE = re.compile(r"\s(?:\.\.\.|\[\w+ \.\.\.\])(?=\s|$)")
"""What stands for further arguments, as in ``DIR [DIR ...]``."""


def lines_of(text: str) -> Iterator[str]:
    """Go through the command lines of a page: of its shell blocks, and what is called inside of a sentence."""
    for language, body in BLOCK.findall(text):
        if language in SHELL:
            yield from body.replace("\\\n", " ").splitlines()
    yield from INLINE.findall(BLOCK.sub("", text))


def commands() -> list[tuple[str, ...]]:
    """Give the words of every command line, without comments, variables in front, and what stands for more (...)."""
    found = set()
    for page, text in PAGES.items():
        for line in lines_of(text) if page not in LITERAL else ():
            for part in re.split(r"\s&&\s", MORE.sub("", line)):
                words = shlex.split(part, comments=True)
                while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                    words = words[1:]
                if words:
                    found.add(tuple(words))
    return sorted(found)


def command_of(words: tuple[str, ...]) -> tuple[str, list[str]]:
    """Give the program that a command line calls in the end, and its arguments."""
    program, *rest = words
    if (program, *rest[:1]) == ("uv", "run"):
        rest = rest[1:]
        while rest and rest[0] in ("--with", "--extra"):
            rest = rest[2:]
        program, *rest = rest
    if program == "python" and rest[0].startswith("scripts/"):
        program, *rest = rest
    return program, rest


def first_of(words: Iterable[str]) -> list[str]:
    """Give the overrides of a sweep's first run; those of a single run as they are."""
    words = [word for word in words if word not in ("--multirun", "-m")]
    parsed = OverridesParser.create().parse_overrides(words)
    return [
        word
        if not override.is_sweep_override()
        else f"{override.get_key_element()}={next(override.sweep_string_iterator())}"
        for word, override in zip(words, parsed, strict=True)
    ]
