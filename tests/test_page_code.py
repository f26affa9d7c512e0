"""Every command line and code block of every page: commands are taken by what they call, code can be read."""

import argparse
import ast
import importlib
import importlib.util
import re
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from page_commands import BLOCK, LITERAL, PAGES, PROJECT, ROOT, SHELL, command_of, commands, first_of

from fedfeat.config import command_line
from fedfeat.config.command_line import Parser
from fedfeat.config.rules import check
from fedfeat.train import CONFIGS

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

# Which test runs what is no console script of the package; those run in tests/system/test_page_runs.py.
RUN_BY = {
    "scripts/benchmark.py": "test_scripts.py",
    "scripts/campaign.py": "test_campaign.py",
    "scripts/fusion_speed.py": "test_scripts.py",
    "scripts/gpu_report.py": "test_gpu_report.py",
    "scripts/memory.py": "test_scripts.py",
    "scripts/new_client.py": "test_new_client.py",
    "scripts/bundle.py": "test_bundle.py",
    "bundle.py": "test_bundle.py",
    "scripts/slurm/run.sbatch": "test_slurm.py",
    "scripts/slurm/ray_nodes.sbatch": "test_slurm.py",
}


class Parsed(Exception):
    """A parser has taken all words."""


def composes(words: list[str]) -> None:
    """Compose a run, of a sweep its first, and hold it to the rules."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", first_of(words), return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)  # for ${hydra:runtime.cwd}
    plain = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    check(OmegaConf.to_container(plain, resolve=True))


def parses(main, words: list[str], monkeypatch) -> None:
    """Call a command until its parser has taken the words."""
    read = Parser.read

    def taken(self, arguments):
        read(self, arguments)
        raise Parsed

    monkeypatch.setattr(Parser, "read", taken)
    monkeypatch.setattr(command_line, "_there", Path)  # runs of an example are not there
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
    program, words = command_of(command)
    extras = {extra for option, extra in pairwise(command) if option == "--extra"}
    assert extras <= PROJECT["optional-dependencies"].keys()
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
    elif program == "uv":
        assert words[0] == "sync"
    elif program == "python":
        # Of a bundle, below the folder that it was unpacked to.
        assert Path(words[0]).name == "bundle.py"
    else:
        assert program in FOREIGN, command


def test_a_test_runs_every_script_of_the_pages():
    found = {
        word
        for command in commands()
        for word in command
        if re.search(r"^(scripts/.*|.*bundle)\.(py|sbatch)$", word)
    }
    found = {word if word.startswith("scripts/") else Path(word).name for word in found}
    assert found == RUN_BY.keys()
    for path, test in RUN_BY.items():
        assert Path(path).stem in (ROOT / "tests" / "system" / test).read_text()


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
