"""Every command line and code block of every page: commands are taken by what they call, code can be read."""

import argparse
import ast
import importlib
import importlib.util
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fedfeat.config.rules import check
from fedfeat.train import CONFIGS

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
# Programs of others, whose words we cannot check.
FOREIGN = {
    "cd",
    "export",
    "git",
    "jupyter",
    "pre-commit",
    "ray",
    "source",
    "ssh",
    "tensorboard",
    "wandb",
    "zensical",
}


class Parsed(Exception):
    """A parser has taken all words."""


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
            for part in re.split(r"\s&&\s", line):
                words = [word for word in shlex.split(part, comments=True) if word != "..."]
                while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                    words = words[1:]
                if words:
                    found.add(tuple(words))
    return sorted(found)


def composes(words: list[str]) -> None:
    """Compose a run, of a sweep its first, and hold it to the rules."""
    words = [word for word in words if word not in ("--multirun", "-m")]
    parsed = OverridesParser.create().parse_overrides(words)
    single = [
        word
        if not override.is_sweep_override()
        else f"{override.get_key_element()}={next(override.sweep_string_iterator())}"
        for word, override in zip(words, parsed, strict=True)
    ]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", single, return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)  # for ${hydra:runtime.cwd}
    plain = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    check(OmegaConf.to_container(plain, resolve=True))


def parses(main, words: list[str], monkeypatch) -> None:
    """Call a command until its parser has taken the words."""
    for kind in ("args", "intermixed_args"):
        parse = getattr(argparse.ArgumentParser, f"parse_known_{kind}")

        def once(self, *arguments, parse=parse, **named):
            _, rest = parse(self, *arguments, **named)
            raise Parsed if not rest else AssertionError(rest)

        monkeypatch.setattr(argparse.ArgumentParser, f"parse_{kind}", once)
    monkeypatch.setattr(sys, "argv", ["command", *words])
    with pytest.raises((Parsed, SystemExit)) as end:
        main()
    if isinstance(end.value, SystemExit):
        assert end.value.code in (None, 0), words  # --help


def script(path: str, monkeypatch):
    """Load a script's module; what stands beside it can be imported."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_is_taken_by_what_it_calls(command, monkeypatch):
    program, *words = command
    if (program, *words[:1]) == ("uv", "run"):
        rest = words[1:]
        while rest and rest[0] in ("--with", "--extra"):
            assert rest[0] == "--with" or rest[1] in PROJECT["optional-dependencies"]
            rest = rest[2:]
        program, *words = rest
    if program == "python" and words[0].startswith("scripts/"):
        program, *words = words
    if program == "fedfeat":
        if words != ["--help"]:
            composes(words)
    elif program in PROJECT["scripts"]:
        module, _, name = PROJECT["scripts"][program].partition(":")
        parses(getattr(importlib.import_module(module), name), words, monkeypatch)
    elif program.startswith("scripts/"):
        parses(script(program, monkeypatch).main, words, monkeypatch)
    elif program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "sbatch":
        (batch,) = (i for i, word in enumerate(words) if word.startswith("scripts/"))
        assert (ROOT / words[batch]).exists()
        composes(words[batch + 1 :])
    elif program == "uv" and words[0] == "sync":
        extras = {extra for option, extra in pairwise(words) if option == "--extra"}
        assert extras <= PROJECT["optional-dependencies"].keys()
    elif program == "python":
        # Of a bundle, below the folder that it was unpacked to.
        assert Path(words[0]).name == "bundle.py"
    else:
        assert program in FOREIGN, command


def test_there_are_commands():
    assert len(commands()) > 50
    for page, test in LITERAL.items():
        assert Path(page).name in (ROOT / test).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page_can_be_read(page):
    for language, body in BLOCK.findall(PAGES[page]):
        if language == "python":
            ast.parse(body if not page.startswith("docs/api/") else "")
        elif language == "yaml":
            list(yaml.safe_load_all(body))
        elif language == "toml":
            tomllib.loads(body)
        else:
            assert language in ("", *SHELL), language


def test_the_help_names_every_command_in_80_columns():
    text = yaml.safe_load((CONFIGS / "hydra" / "default.yaml").read_text())["help"]["header"]
    assert sorted(re.findall(r"^(fedfeat\S*) {2,}\S", text, re.MULTILINE)) == sorted(PROJECT["scripts"])
    assert max(map(len, text.splitlines())) <= 80
